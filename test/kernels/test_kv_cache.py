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

"""Keys and values into the cache, as fp16 and as int8."""

from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops

SHAPES = [(1, 8, 128), (32, 3, 64), (5, 1, 96), (2, 8, 256), (3, 1, 32)]


def random_rows(rng: np.random.Generator, tokens: int, groups: int, dim: int) -> np.ndarray:
    scale = 10.0 ** rng.uniform(-2, 2, (tokens, groups, 1))
    return constant((scale * rng.standard_normal((tokens, groups, dim))).astype(np.float16))


@pytest.mark.parametrize('tokens, groups, dim', SHAPES)
def test_store_ends_at_the_end_of_the_cache(
        device: Any, rng: np.random.Generator, tokens: int, groups: int, dim: int) -> None:
    k, v = random_rows(rng, tokens, groups, dim), random_rows(rng, tokens, groups, dim)
    start = int(rng.integers(1, 9))
    k_cache, v_cache = poisoned((start + tokens, groups, dim)), poisoned(
        (start + tokens, groups, dim))
    positions = constant(np.arange(start, start + tokens, dtype=np.int32))
    device.run('kv_cache', 'kv_store', (-(-groups * dim // 1024), tokens), 128, [
        k_cache, v_cache, k, v, positions, np.int32(groups), np.int32(dim)])
    for cache, rows in ((k_cache, k), (v_cache, v)):
        np.testing.assert_array_equal(cache[start:], rows)
        assert np.isnan(cache[:start]).all()


@pytest.mark.parametrize('tokens, groups, dim', SHAPES)
def test_quantize_ends_at_the_end_of_the_cache(
        device: Any, rng: np.random.Generator, tokens: int, groups: int, dim: int) -> None:
    k, v = random_rows(rng, tokens, groups, dim), random_rows(rng, tokens, groups, dim)
    start = int(rng.integers(1, 9))
    caches = [poisoned((start + tokens, groups, dim), np.int8) for _ in range(2)]
    scales = [poisoned((start + tokens, groups), np.float32) for _ in range(2)]
    positions = constant(np.arange(start, start + tokens, dtype=np.int32))
    device.run('kv_cache', 'quantize_kv_int8', (-(-tokens * groups // 4), 2), 128, [
        *caches, *scales, k, v, positions, np.int32(tokens), np.int32(groups), np.int32(dim)])
    for cache, scale, rows in zip(caches, scales, (k, v), strict=True):
        exact = rows.astype(np.float64)
        _, expected_scale = reference_ops.quantize_kv_int8(exact)
        np.testing.assert_allclose(scale[start:], expected_scale, rtol=1e-7)
        restored = cache[start:] * scale[start:, :, None].astype(np.float64)
        assert np.all(np.abs(restored - exact) <= 0.5001 * expected_scale[..., None])
        assert np.abs(cache[start:].astype(int)).max(axis=-1).min() == 127
        assert (cache[:start] == -1).all() and np.isnan(scale[:start]).all()


def test_quantize_zeros_and_extremes(device: Any) -> None:
    rows = np.zeros((3, 1, 32), np.float16)
    rows[1, 0, :3] = [65504, -65504, 32752]
    rows[2, 0, :2] = [2.0 ** -24, -(2.0 ** -24)]
    caches = [poisoned((3, 1, 32), np.int8) for _ in range(2)]
    scales = [poisoned((3, 1), np.float32) for _ in range(2)]
    device.run('kv_cache', 'quantize_kv_int8', (1, 2), 128, [
        *caches, *scales, constant(rows), constant(-rows),
        constant(np.arange(3, dtype=np.int32)), np.int32(3), np.int32(1), np.int32(32)])
    expected = np.zeros((3, 32))
    expected[1, :3] = [127, -127, 64]  # 63.5 rounds to even
    expected[2, :2] = [127, -127]
    np.testing.assert_array_equal(caches[0][:, 0], expected)
    np.testing.assert_array_equal(caches[1][:, 0], -expected)
    np.testing.assert_array_equal(
        scales[0][:, 0], np.abs(rows).max(axis=-1)[:, 0].astype(np.float32) / np.float32(127))
