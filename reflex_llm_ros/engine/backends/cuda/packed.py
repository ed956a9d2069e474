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

"""Matrices in the packed layout of kernels/packed.cuh, repacked on the device as they come."""

from dataclasses import dataclass
import math
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.rearranged import RearrangedPlacement
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor, MATRIX_TYPES
from reflex_llm_ros.engine.gguf_model import GgufModel, Tensor

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
STACKED, INTERLEAVED = ('attn_q', 'attn_k'), ('ffn_gate', 'ffn_up')
"""Matrices of a layer that are packed as one: one under the other; two rows of each in turn."""


@dataclass(frozen=True)
class PackedTensor(DeviceTensor):
    """
    A matrix whose rows lie in a packed one, which other matrices may share.

    ``data`` (bytes,) is the packed matrix. Row r is row ``first_row + r % rows_a_quad`` of
    quad ``first_quad + r // rows_a_quad``.
    """

    first_quad: int
    rows_a_quad: int
    first_row: int

    @property
    def place(self) -> tuple[np.int32, np.int32, np.int32]:
        """Return what kernels are told of where the rows are."""
        return np.int32(self.first_quad), np.int32(self.rows_a_quad), np.int32(self.first_row)


def shared_by(name: str) -> tuple[str, ...]:
    """Return the names of the tensors that are packed as one with this one, in their order."""
    for roles in (STACKED, INTERLEAVED):
        for role in roles:
            before, found, after = name.partition(f'.{role}.')
            if found:
                return tuple(f'{before}.{other}.{after}' for other in roles)
    return (name,)


def cannot_pack(model: GgufModel) -> str:
    """Say in a phrase why a model's matrices cannot all be packed; empty where they can."""
    for name, tensor in model.tensors.items():
        if len(tensor.shape) != 2:
            continue
        rows, columns = tensor.shape
        if MATRIX_TYPES.get(tensor.type) not in STEP_BYTES:
            return f'{name} is {tensor.type.name}'
        if rows % QUAD or columns % STEP_COLUMNS:
            return f'{name} is {rows} by {columns}'
        types = {model.tensors[other].type.name for other in shared_by(name)}
        if len(types) > 1:
            return f'{" and ".join(shared_by(name))} differ in type'
    return ''


class PackedPlacement(RearrangedPlacement):
    """Places a model that can be packed: its matrices packed, its vectors as always."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._matrices: dict[str, Any] = {}

    def _rearranged(self, name: str, tensor: Tensor) -> PackedTensor | None:
        if len(tensor.shape) == 1:
            return None
        names = shared_by(name)
        kind = MATRIX_TYPES[tensor.type]
        rows, columns = tensor.shape
        if names[0] not in self._matrices:
            elements = sum(math.prod(self._model.tensors[other].shape) for other in names)
            steps = elements // (QUAD * STEP_COLUMNS)
            self._matrices[names[0]] = self._memory.empty((steps * STEP_BYTES[kind],), np.uint8)
        packed = PackedTensor(
            self._matrices[names[0]], kind, rows, columns, tensor, *self._place_of(name, names))
        self._repack(packed)
        return packed

    def _place_of(self, name: str, names: tuple[str, ...]) -> tuple[int, int, int]:
        index = names.index(name)
        if any(f'.{role}.' in name for role in INTERLEAVED):
            share = QUAD // len(INTERLEAVED)
            return 0, share, share * index
        before = sum(self._model.tensors[other].shape[0] for other in names[:index])
        return before // QUAD, QUAD, 0

    def _repack(self, packed: PackedTensor) -> None:
        kernel = self._device.function(REPACK, f'repack_{packed.kernel_type}')
        for first, piece in self._pieces(packed.host):
            rows = piece.nbytes // packed.host.data.shape[1]
            threads = rows * packed.columns // 32
            self._device.launch(kernel, (-(-threads // BLOCK),), BLOCK, (
                packed.data, piece, np.int32(first), np.int32(rows),
                np.int32(packed.columns), *packed.place))
