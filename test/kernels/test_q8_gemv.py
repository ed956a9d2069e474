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

"""Products with Q8_0 planes against float64: every kind, variant and batch."""

from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest
from q8_planes import (
    A8,
    A8X2,
    F32,
    Kind,
    KINDS,
    norm_error,
    ONE,
    Planes,
    quantized,
    random_planes,
)

LENGTHS = (32, 96, 512, 576, 1056, 2560 + 64)
"""One group, a partial step, whole steps, tails of several groups."""
VARIANTS = [(kind, suffix) for kind in (A8, A8X2) for suffix in ('_u2', '_u4', '_r2')]
VARIANTS.append((F32, '_r2'))

SUMS = 128

every_kind = pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.name)


def gemv(
    device: Any, kind: Kind, x: np.ndarray, matrix: Planes, suffix: str = '',
    factor: np.ndarray = ONE
) -> np.ndarray:
    """Run a kernel of one token on activations x."""
    rows, length = matrix.words.shape
    y = poisoned(rows, np.float32)
    per_block = 8 if suffix == '_r2' else 4
    device.run('q8_gemv', f'gemv_q8_{kind.name}{suffix}', -(-rows // per_block), 128, [
        y, x, factor, matrix.words, matrix.scales, np.int32(rows), np.int32(length)])
    return y


def gemv_split(
    device: Any, kind: Kind, x: np.ndarray, matrix: Planes, chunk: int
) -> np.ndarray:
    """Run the kernel that takes K in chunks, and the one that adds them."""
    rows, length = matrix.words.shape
    chunks = -(-length // chunk)
    partials, y = poisoned((chunks, rows), np.float32), poisoned(rows, np.float32)
    device.run('q8_gemv', f'gemv_q8_{kind.name}_split', (-(-rows // 4), chunks), 128, [
        partials, x, ONE, matrix.words, matrix.scales, np.int32(rows), np.int32(length),
        np.int32(chunk)])
    device.run('q8_gemv', 'splitk_combine', -(-rows // 128), 128, [
        y, partials, np.int32(rows), np.int32(chunks)])
    return y


def random_x(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return constant(rng.standard_normal(shape).astype(np.float32))


@every_kind
@pytest.mark.parametrize('length', LENGTHS)
@pytest.mark.parametrize('rows', [1, 7, 64])
def test_one_token(
        device: Any, rng: np.random.Generator, kind: Kind, rows: int, length: int) -> None:
    matrix = random_planes(rng, rows, length)
    # The error of a single sum is a matter of chance; the contract is one of many.
    tokens = [random_x(rng, 1, length) for _ in range(-(-SUMS // rows))]
    factor = constant(np.float32(rng.uniform(0.1, 10, 1)))
    y = np.stack([
        gemv(device, kind, quantized(device, kind, x), matrix, factor=factor) for x in tokens])
    assert norm_error(
        y / np.float64(factor), np.concatenate(tokens), matrix.values) <= kind.tolerance


@pytest.mark.parametrize('kind, suffix', VARIANTS, ids=lambda value: getattr(value, 'name', value))
@pytest.mark.parametrize('length', LENGTHS)
@pytest.mark.parametrize('rows', [1, 9, 64])
def test_variants_equal_the_rolled_form_to_the_bit(
        device: Any, rng: np.random.Generator, kind: Kind, suffix: str, rows: int,
        length: int) -> None:
    matrix = random_planes(rng, rows, length)
    x = quantized(device, kind, random_x(rng, 1, length))
    np.testing.assert_array_equal(
        gemv(device, kind, x, matrix, suffix), gemv(device, kind, x, matrix))


@pytest.mark.parametrize('kind', [A8, A8X2], ids=lambda kind: kind.name)
@pytest.mark.parametrize('chunk, length', [(512, 512), (512, 1056), (1024, 4096), (1536, 2048)])
def test_split_k(
        device: Any, rng: np.random.Generator, kind: Kind, chunk: int, length: int) -> None:
    matrix, x = random_planes(rng, 33, length), random_x(rng, 1, length)
    y = gemv_split(device, kind, quantized(device, kind, x), matrix, chunk)
    assert norm_error(y, x[0], matrix.values) <= kind.tolerance


def test_chunks_are_added_in_ascending_order(device: Any) -> None:
    partials = constant(np.array([[1e8], [-1e8], [1.0], [1e-9]], np.float32))
    y = poisoned(1, np.float32)
    device.run('q8_gemv', 'splitk_combine', 1, 128, [y, partials, np.int32(1), np.int32(4)])
    assert y[0] == np.float32(1.0) + np.float32(1e-9)


@pytest.mark.parametrize('length', [512, 2560 + 64])
def test_two_words_are_much_nearer_than_one(
        device: Any, rng: np.random.Generator, length: int) -> None:
    matrix, x = random_planes(rng, 64, length), random_x(rng, 1, length)
    errors = [
        norm_error(gemv(device, kind, quantized(device, kind, x), matrix), x[0], matrix.values)
        for kind in (A8, A8X2)]
    assert errors[0] >= 20 * errors[1]


@every_kind
@pytest.mark.parametrize('tokens', [1, 3, 32])
@pytest.mark.parametrize('length, chunk', [(96, 96), (576, 576), (1056, 512), (2048, 1024)])
def test_batches_equal_single_tokens_to_the_bit(
        device: Any, rng: np.random.Generator, kind: Kind, tokens: int, length: int,
        chunk: int) -> None:
    if kind is F32:  # never taken in chunks
        chunk = length
    rows, stride = 13, 20
    matrix, x = random_planes(rng, rows, length), random_x(rng, tokens, length)
    y = np.zeros((tokens, stride), np.float32)
    device.run('q8_gemm', f'gemm_q8_{kind.name}', -(-rows // 4), 128, [
        y, quantized(device, kind, x), constant(np.ones(tokens, np.float32)), matrix.words,
        matrix.scales, np.int32(tokens), np.int32(rows), np.int32(length), np.int32(stride),
        np.int32(chunk)])
    for token in range(tokens):
        single = quantized(device, kind, x[token:token + 1])
        expected = (
            gemv_split(device, kind, single, matrix, chunk) if chunk < length
            else gemv(device, kind, single, matrix))
        np.testing.assert_array_equal(y[token, :rows], expected)
    assert not y[:, rows:].any()


@pytest.mark.parametrize('rows, length', [(1, 1), (5, 33), (48, 1000)])
def test_float_weights(
        device: Any, rng: np.random.Generator, rows: int, length: int) -> None:
    w, x = random_x(rng, rows, length), random_x(rng, length)
    y = poisoned(rows, np.float32)
    device.run('q8_gemv', 'gemv_f32w', -(-rows // 4), 128, [
        y, x, w, np.int32(rows), np.int32(length)])
    assert norm_error(y, x, w.astype(np.float64)) <= 1e-5
