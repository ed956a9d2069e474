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

"""Matrix-vector kernels against float64 on the gguf package's dequantized weights."""

from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest
from weights import BY_SUFFIX, dequantized, Format, FORMATS, product_error, random_weights

FP16_TOLERANCE = 2e-3
FP32_TOLERANCE = 1e-5
K_QUANTS = ('q4k', 'q4k_uint32', 'q5k', 'q6k')

every_format = pytest.mark.parametrize('entry', FORMATS, ids=lambda entry: entry.suffix)


def grid(rows: int) -> int:
    """Blocks of four rows."""
    return (rows + 3) // 4


def random_x(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return activations (…, K) fp16, small enough that no product leaves fp16."""
    return constant((rng.standard_normal(shape) * 0.05).astype(np.float16))


def gemv(device: Any, name: str, x: np.ndarray, w: np.ndarray, dtype: Any) -> np.ndarray:
    """Run a kernel that takes y, x, w, M, K."""
    y = poisoned(len(w), dtype)
    device.run('gemv', name, grid(len(w)), 128, [y, x, w, np.int32(len(w)), np.int32(len(x))])
    return y


def lengths(entry: Format) -> tuple:
    """Reduction lengths: one block, an odd number of them, past a warp's step."""
    if entry.block == 1:
        return 1, 31, 33, 1000
    if entry.block == 32:
        return 32, 7 * 32, 9 * 32, 2048 + 32
    return 256, 3 * 256, 11 * 256


@every_format
@pytest.mark.parametrize('rows', [1, 3, 129])
def test_gemv_and_logits(
        device: Any, rng: np.random.Generator, entry: Format, rows: int) -> None:
    for length in lengths(entry):
        w, x = random_weights(rng, entry, rows, length), random_x(rng, length)
        matrix = dequantized(entry, w)
        logits = gemv(device, f'gemv_logits_{entry.suffix}', x, w, np.float32)
        assert product_error(logits, x, matrix) <= FP32_TOLERANCE
        y = gemv(device, f'gemv_{entry.suffix}', x, w, np.float16)
        assert product_error(y, x, matrix) <= FP16_TOLERANCE
        np.testing.assert_array_equal(y, logits.astype(np.float16))


@every_format
@pytest.mark.parametrize('in_place', [False, True])
def test_gemv_add(
        device: Any, rng: np.random.Generator, entry: Format, in_place: bool) -> None:
    rows, length = 37, lengths(entry)[-1]
    w, x = random_weights(rng, entry, rows, length), random_x(rng, length)
    residual = rng.standard_normal(rows).astype(np.float32)
    expected = residual + gemv(device, f'gemv_logits_{entry.suffix}', x, w, np.float32)
    y = residual if in_place else poisoned(rows, np.float32)
    device.run('gemv', f'gemv_add_{entry.suffix}', grid(rows), 128, [
        y, residual if in_place else constant(residual), x, w, np.int32(rows), np.int32(length)])
    np.testing.assert_array_equal(y, expected)


@every_format
@pytest.mark.parametrize('rows', [1, 34, 129])
def test_gemv_pair_equals_two_gemv(
        device: Any, rng: np.random.Generator, entry: Format, rows: int) -> None:
    length = lengths(entry)[1]
    x = random_x(rng, length)
    w = [random_weights(rng, entry, rows, length) for _ in range(2)]
    y = [poisoned(rows) for _ in range(2)]
    device.run('gemv', f'gemv_pair_{entry.suffix}', grid(2 * rows), 128, [
        *y, x, *w, np.int32(rows), np.int32(length)])
    for result, weights in zip(y, w, strict=True):
        np.testing.assert_array_equal(
            result, gemv(device, f'gemv_{entry.suffix}', x, weights, np.float16))


@pytest.mark.parametrize('suffixes', [('q4k', 'q4k', 'q4k'), ('q4k', 'q4k', 'q6k')], ids='-'.join)
@pytest.mark.parametrize('loads', ['', '_uint32'])
@pytest.mark.parametrize('rows', [(1, 1, 1), (64, 16, 16), (37, 6, 9)], ids=str)
def test_gemv_triple_equals_three_gemv(
        device: Any, rng: np.random.Generator, suffixes: tuple, loads: str, rows: tuple) -> None:
    x = random_x(rng, 512)
    w = [random_weights(rng, BY_SUFFIX[suffix], m, 512)
         for suffix, m in zip(suffixes, rows, strict=True)]
    y = [poisoned(m) for m in rows]
    device.run('gemv', f'gemv_triple_{"_".join(suffixes)}{loads}', grid(sum(rows)), 128, [
        *y, x, *w, *(np.int32(m) for m in rows), np.int32(512)])
    for result, weights, suffix in zip(y, w, suffixes, strict=True):
        np.testing.assert_array_equal(
            result, gemv(device, f'gemv_{suffix}', x, weights, np.float16))


@pytest.mark.parametrize('length', [256, 1024, 2816])
def test_word_loads_equal_byte_loads_to_the_bit(
        device: Any, rng: np.random.Generator, length: int) -> None:
    w, x = random_weights(rng, BY_SUFFIX['q4k'], 61, length), random_x(rng, length)
    np.testing.assert_array_equal(
        gemv(device, 'gemv_logits_q4k_uint32', x, w, np.float32),
        gemv(device, 'gemv_logits_q4k', x, w, np.float32))


@pytest.mark.parametrize('suffix', K_QUANTS)
def test_massive_results_saturate(device: Any, rng: np.random.Generator, suffix: str) -> None:
    w = random_weights(rng, BY_SUFFIX[suffix], 64, 256)
    x = constant(np.full(256, 60000, np.float16))
    logits = gemv(device, f'gemv_logits_{suffix}', x, w, np.float32)
    assert np.abs(logits).max() > 65504
    np.testing.assert_array_equal(
        gemv(device, f'gemv_{suffix}', x, w, np.float16),
        np.clip(logits, -65504, 65504).astype(np.float16))


@pytest.mark.parametrize('suffix', ['q6k', 'q8_0'])
def test_a_real_vocabulary(device: Any, rng: np.random.Generator, suffix: str) -> None:
    rows, length, entry = 151936, 256, BY_SUFFIX[suffix]
    w, x = random_weights(rng, entry, rows, length), random_x(rng, length)
    logits = gemv(device, f'gemv_logits_{suffix}', x, w, np.float32)
    sample = np.append(rng.integers(0, rows, 500), [0, rows - 1])
    assert product_error(logits[sample], x, dequantized(entry, w[sample])) <= FP32_TOLERANCE
    assert np.isfinite(logits).all()
