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

"""Batched matrix kernels: against float64, and equal to the matrix-vector kernels to the bit."""

from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest
from test_gemv import every_format, FP16_TOLERANCE, gemv, grid, lengths, random_x
from weights import BY_SUFFIX, dequantized, Format, product_error, random_weights

ROUNDED, UNROUNDED, ADDED = map(np.int32, range(3))


def gemm(device: Any, suffix: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Run gemm on x (N, K)."""
    n, k = x.shape
    y = poisoned((n, len(w)))
    device.run('gemm', f'gemm_{suffix}', grid(len(w)), 128, [
        y, y, x, w, np.int32(n), np.int32(len(w)), np.int32(k), ROUNDED])
    return y


def gemm_add(
    device: Any, suffix: str, residual: np.ndarray, x: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """Run gemm on x (N, K) and a residual (N, M)."""
    n, k = x.shape
    y = poisoned((n, len(w)), np.float32)
    device.run('gemm', f'gemm_{suffix}', grid(len(w)), 128, [
        y, constant(residual), x, w, np.int32(n), np.int32(len(w)), np.int32(k), ADDED])
    return y


@every_format
@pytest.mark.parametrize('tokens', [1, 2, 7, 32])
def test_gemm_against_float64(
        device: Any, rng: np.random.Generator, entry: Format, tokens: int) -> None:
    rows = 33
    for length in lengths(entry)[:3]:
        w, x = random_weights(rng, entry, rows, length), random_x(rng, tokens, length)
        y = gemm(device, entry.suffix, x, w)
        assert product_error(y, x, dequantized(entry, w)) <= FP16_TOLERANCE


@every_format
@pytest.mark.parametrize('tokens', [1, 5, 31, 32])
def test_gemm_equals_gemv_to_the_bit(
        device: Any, rng: np.random.Generator, entry: Format, tokens: int) -> None:
    rows, length = 13, lengths(entry)[-1]
    w, x = random_weights(rng, entry, rows, length), random_x(rng, tokens, length)
    zeros = np.zeros((tokens, rows), np.float32)
    sums = gemm_add(device, entry.suffix, zeros, x, w)
    rounded = gemm(device, entry.suffix, x, w)
    for token in range(tokens):
        one = constant(x[token])
        np.testing.assert_array_equal(
            sums[token], gemv(device, f'gemv_logits_{entry.suffix}', one, w, np.float32))
        np.testing.assert_array_equal(
            rounded[token], gemv(device, f'gemv_{entry.suffix}', one, w, np.float16))


@pytest.mark.parametrize('suffix', ['q4k', 'q6k'])
def test_gemm_equals_gemv_for_every_number_of_tokens(
        device: Any, rng: np.random.Generator, suffix: str) -> None:
    w, x = random_weights(rng, BY_SUFFIX[suffix], 5, 512), random_x(rng, 32, 512)
    rows = [gemv(device, f'gemv_{suffix}', constant(row), w, np.float16) for row in x]
    for tokens in range(1, 33):
        np.testing.assert_array_equal(
            gemm(device, suffix, constant(x[:tokens]), w), rows[:tokens])


@every_format
def test_gemm_add_in_place(device: Any, rng: np.random.Generator, entry: Format) -> None:
    tokens, rows, length = 9, 21, lengths(entry)[1]
    w, x = random_weights(rng, entry, rows, length), random_x(rng, tokens, length)
    residual = rng.standard_normal((tokens, rows)).astype(np.float32)
    zeros = np.zeros((tokens, rows), np.float32)
    expected = residual + gemm_add(device, entry.suffix, zeros, x, w)
    np.testing.assert_array_equal(gemm_add(device, entry.suffix, residual, x, w), expected)
    device.run('gemm', f'gemm_{entry.suffix}', grid(rows), 128, [
        residual, residual, x, w, np.int32(tokens), np.int32(rows), np.int32(length), ADDED])
    np.testing.assert_array_equal(residual, expected)


@every_format
def test_sums_need_no_residual(device: Any, rng: np.random.Generator, entry: Format) -> None:
    tokens, rows, length = 3, 9, lengths(entry)[1]
    w, x = random_weights(rng, entry, rows, length), random_x(rng, tokens, length)
    sums = poisoned((tokens, rows), np.float32)
    device.run('gemm', f'gemm_{entry.suffix}', grid(rows), 128, [
        sums, sums, x, w, np.int32(tokens), np.int32(rows), np.int32(length), UNROUNDED])
    np.testing.assert_array_equal(sums, gemm_add(device, entry.suffix, np.zeros_like(sums), x, w))
