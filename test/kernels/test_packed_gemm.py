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

"""Prefill and embeddings out of packed matrices: as from the file's blocks, to the bit."""

from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest
import q8_planes
from test_embed import embed
from test_gemm import ADDED, gemm, gemm_add, ROUNDED, UNROUNDED
from test_gemv import random_x
from test_packed import COLUMNS, every_type, INTERLEAVED, packed, PLAIN, ROWS

every_placement = pytest.mark.parametrize('places', [PLAIN, INTERLEAVED])


def place(numbers: tuple[int, int, int]) -> list[np.int32]:
    return [np.int32(number) for number in numbers]


def shape(tokens: int) -> list[np.int32]:
    return [np.int32(tokens), np.int32(ROWS), np.int32(COLUMNS)]


@every_type
@every_placement
@pytest.mark.parametrize('tokens', [1, 5])
def test_products_equal_those_of_the_files_blocks(
    kind: str, places: tuple, tokens: int, device: Any, rng: np.random.Generator
) -> None:
    data, _, matrices = packed(device, rng, kind, places)
    x = random_x(rng, tokens, COLUMNS)
    residual = rng.standard_normal((tokens, ROWS)).astype(np.float32)
    zeros = np.zeros_like(residual)
    for matrix, where in zip(matrices, places, strict=True):
        rounded = poisoned((tokens, ROWS), np.float16)
        sums, added = poisoned((tokens, ROWS), np.float32), poisoned((tokens, ROWS), np.float32)
        for output, y, read in (
                (ROUNDED, rounded, rounded), (UNROUNDED, sums, sums), (ADDED, added, residual)):
            device.run('packed_gemm', f'packed_gemm_{kind}', -(-ROWS // 4), 128, [
                y, read if read is y else constant(read), x, data, *shape(tokens),
                *place(where), output])
        np.testing.assert_array_equal(rounded, gemm(device, kind, x, matrix))
        np.testing.assert_array_equal(sums, gemm_add(device, kind, zeros, x, matrix))
        np.testing.assert_array_equal(added, gemm_add(device, kind, residual, x, matrix))


@every_type
def test_embeddings_equal_those_of_the_files_blocks(
    kind: str, device: Any, rng: np.random.Generator
) -> None:
    data, rows, matrices = packed(device, rng, kind, PLAIN)
    ids = np.array([0, 2 * ROWS - 1, 5, 9], np.int32)
    x = poisoned((len(ids), COLUMNS), np.float32)
    device.run('packed_embed', f'packed_embed_{kind}', (COLUMNS // 512, len(ids)), 128, [
        x, constant(ids), data, np.int32(COLUMNS)])
    table = constant(np.concatenate(matrices))
    np.testing.assert_array_equal(x, embed(device, kind, ids, table, COLUMNS, 1))
    np.testing.assert_allclose(x, rows[ids], rtol=1e-6, atol=2e-5 * np.abs(rows).max())


@every_placement
@pytest.mark.parametrize('kind', [q8_planes.A8, q8_planes.A8X2], ids=lambda kind: kind.name)
@pytest.mark.parametrize('chunk', [512, COLUMNS])
def test_q8_products_equal_those_of_planes(
    kind: q8_planes.Kind, places: tuple, chunk: int, device: Any, rng: np.random.Generator
) -> None:
    tokens = 3
    data, _, matrices = packed(device, rng, 'q8_0', places)
    x = q8_planes.quantized(
        device, kind, rng.standard_normal((tokens, COLUMNS)).astype(np.float32))
    factors = constant(rng.uniform(0.5, 2, tokens).astype(np.float32))
    for matrix, where in zip(matrices, places, strict=True):
        y, expected = (poisoned((tokens, ROWS), np.float32) for _ in range(2))
        last = [*shape(tokens), np.int32(ROWS), np.int32(chunk)]
        device.run('q8_packed', f'gemm_q8_packed_{kind.name}', -(-ROWS // 4), 128, [
            y, x, factors, data, *place(where), *last])
        blocks = matrix.reshape(ROWS, COLUMNS // 32, 34)
        device.run('q8_gemm', f'gemm_q8_{kind.name}', -(-ROWS // 4), 128, [
            expected, x, factors, constant(blocks[..., 2:]), constant(blocks[..., :2]), *last])
        np.testing.assert_array_equal(y, expected)


def test_q8_embeddings_are_the_weights(device: Any, rng: np.random.Generator) -> None:
    data, rows, _ = packed(device, rng, 'q8_0', PLAIN)
    ids = np.array([3, 2 * ROWS - 1], np.int32)
    x = poisoned((len(ids), COLUMNS), np.float32)
    device.run('q8_packed', 'embed_q8_packed', (COLUMNS // 128, len(ids)), 128, [
        x, constant(ids), data, *place((0, 4, 0)), np.int32(COLUMNS)])
    np.testing.assert_allclose(x, rows[ids], rtol=1e-6)
