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

"""The packed layout: its products with int8 activations, and what rows come out of it."""

from typing import Any

import devices
import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.packed import STEP_BYTES
import weights

ROWS, COLUMNS = 8, 1024
SCALE = np.dtype([('unit', np.float32), ('sum', np.float32), ('low', np.int32),
                  ('high', np.int32)])
PLAIN = ((0, 4, 0), (2, 4, 0))
INTERLEAVED = ((0, 2, 0), (0, 2, 2))
"""First quad, rows a quad and first row of two matrices: one under the other, or in turn."""

every_type = pytest.mark.parametrize('kind', sorted(STEP_BYTES))


def packed(
    device: Any, rng: np.random.Generator, kind: str, places: tuple
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Pack two random matrices: packed bytes, rows (2 * ROWS, COLUMNS) in their order, blocks."""
    entry = weights.BY_SUFFIX[kind]
    data = devices.poisoned((2 * ROWS // 4 * COLUMNS // 512 * STEP_BYTES[kind],), np.uint8)
    rows, matrices = np.empty((2 * ROWS, COLUMNS)), []
    for quad, rows_a_quad, first_row in places:
        matrix = weights.random_weights(rng, entry, ROWS, COLUMNS)
        matrices.append(matrix)
        for first in range(0, ROWS, ROWS // 2):  # a part at a time
            part = matrix[first:first + ROWS // 2]
            device.run('repack', f'repack_{kind}', -(-part.shape[0] * COLUMNS // 32 // 128), 128, [
                data, devices.constant(part), *(np.int32(number) for number in (
                    first, len(part), COLUMNS, quad, rows_a_quad, first_row))])
        for row, values in enumerate(weights.dequantized(entry, matrix)):
            rows[(quad + row // rows_a_quad) * 4 + first_row + row % rows_a_quad] = values
    return devices.constant(data), rows, matrices


def activations(
    rng: np.random.Generator, words: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Planes of words, scales, and the values (COLUMNS,) that they stand for."""
    levels = rng.integers(-127, 128, (words, COLUMNS // 32, 2, 16), np.int8)
    units = levels[0].astype(np.int64) if words == 1 else (
        levels[0].astype(np.int64) * 127 + levels[1])
    scales = np.zeros(COLUMNS // 32, SCALE)
    scales['unit'] = rng.uniform(0.5, 2, len(scales))
    scales['low'], scales['high'] = units.sum(axis=2).T
    values = units * scales['unit'].astype(np.float64)[:, None, None]
    scales['sum'] = values.sum(axis=(1, 2))
    planes = np.ascontiguousarray(levels.transpose(2, 0, 1, 3))
    return planes.view(np.uint8), scales, values.reshape(COLUMNS)


@every_type
@pytest.mark.parametrize('words', [1, 2])
def test_products_are_those_of_the_files_weights(
    kind: str, words: int, device: Any, rng: np.random.Generator
) -> None:
    data, rows, _ = packed(device, rng, kind, INTERLEAVED if words == 1 else PLAIN)
    planes, scales, values = activations(rng, words)
    quad_bytes = len(data) // (2 * ROWS // 4)
    for quad in range(2 * ROWS // 4):
        y = devices.poisoned((4,), np.float32)
        device.run('packed_probe', f'quad_dot_{kind}_{words}', 1, 32, [
            y, devices.constant(data[quad * quad_bytes:(quad + 1) * quad_bytes]),
            devices.constant(planes), devices.constant(scales.view(np.uint8)),
            np.int32(COLUMNS // 512)])
        assert weights.product_error(y, values, rows[quad * 4:quad * 4 + 4]) < 2e-6
