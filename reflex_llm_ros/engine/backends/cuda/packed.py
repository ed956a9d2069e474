# Copyright 2026 The reflex_llm_ros authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Matrices in the packed layout of kernels/packed.cuh, repacked on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor

REPACK = 'repack'
BLOCK = 128
QUAD = 4
STEP_COLUMNS = 512
STEP_BYTES = {
    'q4k': 1152, 'q5k': 1408, 'q6k': 1680, 'q4_0': 1152, 'q4_1': 1280, 'q5_0': 1408,
    'q5_1': 1536, 'q8_0': 2176}
"""Bytes of a step of four rows by STEP_COLUMNS, by type: those of the file's blocks."""
FORMATS = {
    'q4k': 'PackedQ4K', 'q5k': 'PackedQ5K', 'q6k': 'PackedQ6K', 'q4_0': 'PackedQ4_0',
    'q4_1': 'PackedQ4_1', 'q5_0': 'PackedQ5_0', 'q5_1': 'PackedQ5_1', 'q8_0': 'PackedQ8_0'}
"""What kernels call the layout of a type."""


@dataclass(frozen=True)
class PackedMatrix:
    """Matrices of one type and width, one under the other: ``data`` (bytes,) uint8."""

    data: Any
    kernel_type: str
    rows: int
    columns: int


def can_pack(matrices: Sequence[DeviceTensor]) -> bool:
    """Whether matrices can be one packed matrix: one type that has a layout, whole steps."""
    first = matrices[0]
    return first.kernel_type in STEP_BYTES and first.columns % STEP_COLUMNS == 0 and all(
        matrix.kernel_type == first.kernel_type and matrix.columns == first.columns
        and matrix.rows % QUAD == 0 for matrix in matrices)


def packed_bytes(matrices: Sequence[DeviceTensor]) -> int:
    """Bytes of the packed matrix: as many as the file's blocks."""
    first = matrices[0]
    quads = sum(matrix.rows for matrix in matrices) // QUAD
    return quads * (first.columns // STEP_COLUMNS) * STEP_BYTES[first.kernel_type]


def pack(device: Any, matrices: Sequence[DeviceTensor]) -> PackedMatrix:
    """Pack matrices one under the other."""
    return _pack(device, matrices, [
        (sum(matrix.rows for matrix in matrices[:index]) // QUAD, QUAD, 0)
        for index in range(len(matrices))])


def pack_pair(device: Any, gate: DeviceTensor, up: DeviceTensor) -> PackedMatrix:
    """Pack gate and up: two rows of each in turn, so that one warp has both of a pair."""
    return _pack(device, (gate, up), [(0, 2, 0), (0, 2, 2)])


def _pack(
    device: Any, matrices: Sequence[DeviceTensor], places: Sequence[tuple[int, int, int]]
) -> PackedMatrix:
    """Pack each matrix from its first quad on, so many rows a quad, from a row of it on."""
    first = matrices[0]
    data = device.empty((packed_bytes(matrices),), np.uint8)
    kernel = device.function(REPACK, f'repack_{first.kernel_type}')
    for matrix, place in zip(matrices, places, strict=True):
        threads = matrix.rows * matrix.columns // 32
        device.launch(kernel, (-(-threads // BLOCK),), BLOCK, (
            data, matrix.data, np.int32(0), np.int32(matrix.rows), np.int32(matrix.columns),
            *(np.int32(number) for number in place)))
    return PackedMatrix(
        data, first.kernel_type, sum(matrix.rows for matrix in matrices), first.columns)
