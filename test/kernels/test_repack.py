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

"""Repacking: every weight of the packed layout is the file's: what gguf reads of its blocks."""

from typing import Any

import devices
import numpy as np
import pytest
import weights

COLUMNS = 1024
STEP_BYTES = {'q4k': 1152, 'q6k': 1680}


def place(row: int, column: int, steps: int) -> tuple[int, int, int, int]:
    """Step, byte of the nibbles' first, index among scales, sub-block, of a weight."""
    block, sub = column // 256, column % 256 // 32
    half, pair = row % 4 // 2, block % 2
    lane = row % 2 * 16 + pair * 8 + sub
    return (row // 4 * steps + block // 2, half * 512 + lane * 16,
            half * 4 + row % 2 * 2 + pair, sub)


def half(data: np.ndarray, at: int) -> float:
    return float(data[at:at + 2].view(np.float16)[0])


def unpacked(kind: str, data: np.ndarray, row: int, column: int) -> float:
    """Weight of a matrix in the packed layout, as kernels/packed.cuh describes it."""
    step, nibbles, scale, sub = place(row, column, COLUMNS // 512)
    data = data[step * STEP_BYTES[kind]:(step + 1) * STEP_BYTES[kind]]
    index = column % 32
    low = int(data[nibbles + index % 16]) >> (4 if index >= 16 else 0) & 15
    if kind == 'q4k':
        fields = data[1024 + scale * 16:1024 + scale * 16 + 16]
        bits = int.from_bytes(fields[4:].tobytes(), 'little') >> 12 * sub
        return (half(fields, 0) * (bits & 63) * low) - half(fields, 2) * (bits >> 6 & 63)
    upper = 1024 + nibbles // 2 + index % 16 // 8 * 4 + index % 4
    field = index % 8 // 4 * 2 + index // 16
    level = low | (int(data[upper]) >> 2 * field & 3) << 4
    factor = int(data[1536 + scale * 16 + sub * 2 + index // 16].view(np.int8))
    return half(data, 1664 + scale * 2) * factor * (level - 32)


@pytest.mark.parametrize('kind', ['q4k', 'q6k'])
@pytest.mark.parametrize('shared', [False, True])
def test_packed_weights_are_the_files(
    kind: str, shared: bool, device: Any, rng: np.random.Generator
) -> None:
    entry = weights.BY_SUFFIX[kind]
    matrices = [weights.random_weights(rng, entry, 8, COLUMNS) for _ in range(2)]
    packed = devices.poisoned((16 // 4 * COLUMNS // 512 * STEP_BYTES[kind],), np.uint8)
    places = [(0, 2, 0), (0, 2, 2)] if shared else [(0, 4, 0), (2, 4, 0)]
    for matrix, where in zip(matrices, places, strict=True):
        device.run('repack', f'repack_{kind}', -(-8 * COLUMNS // 32 // 128), 128, [
            packed, devices.constant(matrix), np.int32(8), np.int32(COLUMNS),
            *(np.int32(number) for number in where)])
    for matrix, (quad, rows_a_quad, first) in zip(matrices, places, strict=True):
        expected = weights.dequantized(entry, matrix)
        for row in range(8):
            packed_row = (quad + row // rows_a_quad) * 4 + first + row % rows_a_quad
            got = [unpacked(kind, packed, packed_row, column) for column in range(COLUMNS)]
            np.testing.assert_allclose(
                got, expected[row], rtol=1e-5, atol=1e-5 * np.abs(expected[row]).max())
