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

"""Attention of one token and of many, against fp16 and int8 caches."""

from typing import Any, NamedTuple

from devices import CheckedShim, constant, KernelError, PlainShim, poisoned
from numerics import assert_near, FP16_TOLERANCE
import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops

CHUNK = 128
LENGTHS = [1, 63, 64, 65, CHUNK - 1, CHUNK, CHUNK + 1, 1000]
CACHES = pytest.mark.parametrize('int8', [False, True], ids=['fp16', 'int8'])


class Cache(NamedTuple):
    """Keys and values [T][G][D] as kernels read them, and what they stand for."""

    k: np.ndarray
    v: np.ndarray
    k_scales: np.ndarray
    v_scales: np.ndarray

    def arguments(self) -> tuple[np.ndarray, ...]:
        """Return the cache arguments of a kernel."""
        if self.k.dtype == np.int8:
            return tuple(map(constant, self))
        return constant(self.k), constant(self.v)

    def attention(self, q: np.ndarray, length: int) -> np.ndarray:
        """Attend from the queries of the last positions below ``length``, in float64."""
        scales = [x[:length].astype(np.float64) for x in (self.k_scales, self.v_scales)]
        return reference_ops.attention(
            q.astype(np.float64), self.k[:length].astype(np.float64),
            self.v[:length].astype(np.float64), *scales)


def random_cache(
        rng: np.random.Generator, length: int, groups: int, dim: int, int8: bool,
        capacity: int = 0) -> Cache:
    """Fill a cache to ``length``; what lies behind is NaN, or an int8 with a scale of NaN."""
    capacity = max(capacity, length)
    shape = (capacity, groups, dim)
    if int8:
        k, v = (rng.integers(-127, 128, shape).astype(np.int8) for _ in range(2))
        k_scales, v_scales = (
            (rng.uniform(0.5, 2, shape[:2]) / 73).astype(np.float32) for _ in range(2))
    else:
        k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(2))
        k_scales, v_scales = (np.ones(shape[:2], np.float32) for _ in range(2))
        k[length:] = v[length:] = np.nan
    k_scales[length:] = v_scales[length:] = np.nan
    return Cache(k, v, k_scales, v_scales)


def random_queries(
        rng: np.random.Generator, tokens: int, heads: int, dim: int) -> np.ndarray:
    return constant((1.5 * rng.standard_normal((tokens, heads, dim))).astype(np.float16))


def attend(
        device: Any, kind: str, q: np.ndarray, cache: Cache, positions: np.ndarray) -> np.ndarray:
    tokens, heads, dim = q.shape
    out = poisoned(q.shape)
    suffix = '_int8' if cache.k.dtype == np.int8 else ''
    device.run('attention', f'attention_{kind}{suffix}', (heads, tokens), 128, [
        out, q, *cache.arguments(), constant(positions.astype(np.int32)), np.int32(heads),
        np.int32(cache.k.shape[1]), np.int32(dim), np.float32(dim ** -0.5)], shared_bytes(dim))
    return out


def attend_split(
        device: Any, q: np.ndarray, cache: Cache, position: int, splits: int) -> np.ndarray:
    _, heads, dim = q.shape
    capacity, groups, _ = cache.k.shape
    out = poisoned(q.shape)
    chunks = -(-capacity // CHUNK)
    counters = np.zeros(groups, np.uint32)
    suffix = '_int8' if cache.k.dtype == np.int8 else ''
    device.run('attention', f'attention_split{suffix}', (groups, splits), 128, [
        out, q, *cache.arguments(), constant(np.array([position], np.int32)),
        poisoned((chunks, heads, dim), np.float32), poisoned((chunks, heads, 2), np.float32),
        counters, np.int32(heads), np.int32(groups), np.int32(dim), np.float32(dim ** -0.5)],
        4 * shared_bytes(dim))
    assert not counters.any()
    return out


def shared_bytes(dim: int) -> int:
    """Shared memory for one head."""
    return 4 * (CHUNK + 4 * dim + 2)


def assert_same_bits(out: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16))


@CACHES
@pytest.mark.parametrize('dim', [64, 128])
@pytest.mark.parametrize('length', LENGTHS)
def test_decode_at_the_end_of_the_cache(
        device: Any, rng: np.random.Generator, length: int, dim: int, int8: bool) -> None:
    cache = random_cache(rng, length, 2, dim, int8)
    q = random_queries(rng, 1, 4, dim)
    out = attend(device, 'decode', q, cache, np.array([length - 1]))
    assert_near(out, cache.attention(q, length), FP16_TOLERANCE)


@CACHES
@pytest.mark.parametrize('share', range(1, 9))
def test_decode_with_shared_keys(
        device: Any, rng: np.random.Generator, share: int, int8: bool) -> None:
    groups = int(rng.integers(1, 4))
    cache = random_cache(rng, 70, groups, 64, int8)
    q = random_queries(rng, 1, groups * share, 64)
    out = attend(device, 'decode', q, cache, np.array([69]))
    assert_near(out, cache.attention(q, 70), FP16_TOLERANCE)


@CACHES
@pytest.mark.parametrize('dim', [32, 80, 96, 160, 192, 256])
def test_decode_with_other_head_dims(
        device: Any, rng: np.random.Generator, dim: int, int8: bool) -> None:
    cache = random_cache(rng, 77, 1, dim, int8)
    q = random_queries(rng, 1, 2, dim)
    out = attend(device, 'decode', q, cache, np.array([76]))
    assert_near(out, cache.attention(q, 77), FP16_TOLERANCE)


@CACHES
def test_decode_reads_nothing_behind_its_position(
        device: Any, rng: np.random.Generator, int8: bool) -> None:
    length = int(rng.integers(1, 130))
    cache = random_cache(rng, length, 1, 128, int8, capacity=200)
    q = random_queries(rng, 1, 2, 128)
    out = attend(device, 'decode', q, cache, np.array([length - 1]))
    assert_near(out, cache.attention(q, length), FP16_TOLERANCE)


@CACHES
@pytest.mark.parametrize('start', [0, 1, 60, 127])
@pytest.mark.parametrize('tokens, heads, groups, dim', [
    (1, 3, 3, 64), (32, 3, 1, 64), (9, 4, 2, 128),
])
def test_prefill_is_decode_to_the_bit(
        device: Any, rng: np.random.Generator, start: int, tokens: int, heads: int, groups: int,
        dim: int, int8: bool) -> None:
    cache = random_cache(rng, start + tokens, groups, dim, int8)
    q = random_queries(rng, tokens, heads, dim)
    positions = np.arange(start, start + tokens)
    out = attend(device, 'prefill', q, cache, positions)
    assert_near(out, cache.attention(q, start + tokens), FP16_TOLERANCE)
    for token in {0, tokens // 2, tokens - 1}:
        single = attend(
            device, 'decode', q[token:token + 1], cache, positions[token:token + 1])
        assert_same_bits(out[token], single[0])


@CACHES
@pytest.mark.parametrize('dim', [64, 128])
@pytest.mark.parametrize('length', LENGTHS)
def test_split_at_the_end_of_the_cache_is_decode_to_the_bit(
        device: Any, rng: np.random.Generator, length: int, dim: int, int8: bool) -> None:
    cache = random_cache(rng, length, 2, dim, int8)
    q = random_queries(rng, 1, 4, dim)
    single = attend(device, 'decode', q, cache, np.array([length - 1]))
    out = attend_split(device, q, cache, length - 1, splits=int(rng.integers(1, 11)))
    assert_near(out, cache.attention(q, length), FP16_TOLERANCE)
    assert_same_bits(out, single)


@CACHES
def test_split_of_a_long_cache(device: Any, rng: np.random.Generator, int8: bool) -> None:
    cache = random_cache(rng, 4096, 1, 128, int8)
    q = random_queries(rng, 1, 2, 128)
    single = attend(device, 'decode', q, cache, np.array([4095]))
    assert_near(single, cache.attention(q, 4096), FP16_TOLERANCE)
    for splits in (3, 32):
        assert_same_bits(attend_split(device, q, cache, 4095, splits), single)


@CACHES
@pytest.mark.parametrize('share', range(1, 9))
def test_split_with_shared_keys(
        device: Any, rng: np.random.Generator, share: int, int8: bool) -> None:
    groups, length = int(rng.integers(1, 4)), int(rng.integers(100, 300))
    cache = random_cache(rng, length, groups, 64, int8)
    q = random_queries(rng, 1, groups * share, 64)
    out = attend_split(device, q, cache, length - 1, splits=2)
    assert_near(out, cache.attention(q, length), FP16_TOLERANCE)
    assert_same_bits(out, attend(device, 'decode', q, cache, np.array([length - 1])))


@CACHES
@pytest.mark.parametrize('dim', [32, 80, 96, 160, 192, 256])
def test_split_with_other_head_dims(
        device: Any, rng: np.random.Generator, dim: int, int8: bool) -> None:
    cache = random_cache(rng, 140, 1, dim, int8)
    q = random_queries(rng, 1, 3, dim)
    out = attend_split(device, q, cache, 139, splits=2)
    assert_near(out, cache.attention(q, 140), FP16_TOLERANCE)
    assert_same_bits(out, attend(device, 'decode', q, cache, np.array([139])))


@CACHES
def test_split_reads_nothing_behind_its_position(
        device: Any, rng: np.random.Generator, int8: bool) -> None:
    length = int(rng.integers(1, 300))
    cache = random_cache(rng, length, 1, 128, int8, capacity=700)
    q = random_queries(rng, 1, 2, 128)
    out = attend_split(device, q, cache, length - 1, splits=6)
    assert_near(out, cache.attention(q, length), FP16_TOLERANCE)


@CACHES
def test_to_know_the_head_size_changes_no_bit(
        shim: CheckedShim, rng: np.random.Generator, int8: bool) -> None:
    """A model's attention is compiled for its heads; the kernels of these tests are not."""
    dim, known = 80, PlainShim()
    known.define('attention', {'HEAD_DIM': dim})
    cache = random_cache(rng, 300, 2, dim, int8)
    q, positions = random_queries(rng, 3, 4, dim), np.arange(297, 300)
    for kind in ('prefill', 'decode'):
        assert_same_bits(
            attend(known, kind, q, cache, positions), attend(shim, kind, q, cache, positions))
    assert_same_bits(
        attend_split(known, q[2:], cache, 299, splits=2),
        attend_split(shim, q[2:], cache, 299, splits=2))


def test_the_largest_score_may_come_late_or_early(device: Any, rng: np.random.Generator) -> None:
    """Weights of a tile vanish when a later one has a score 1000 higher, and the reverse."""
    cache = random_cache(rng, 200, 1, 64, False)
    q = random_queries(rng, 1, 1, 64)
    for loud in (0, 63, 64, 199):
        cache.k[:] = rng.standard_normal(cache.k.shape)
        cache.k[loud] = 100 * q[0]
        out = attend(device, 'decode', q, cache, np.array([199]))
        np.testing.assert_array_equal(out[0, 0], cache.v[loud, 0])


def test_equal_keys_average_the_values(device: Any, rng: np.random.Generator) -> None:
    cache = random_cache(rng, 130, 1, 128, False)
    cache.k[:] = cache.k[0]
    q = random_queries(rng, 1, 1, 128)
    out = attend(device, 'decode', q, cache, np.array([129]))
    assert_near(out[0], cache.v.astype(np.float64).mean(axis=0), FP16_TOLERANCE)


def test_a_position_past_the_cache_is_caught(shim: Any, rng: np.random.Generator) -> None:
    """The shim sees a read past the cache, so the tests above prove there is none."""
    cache = random_cache(rng, 64, 1, 64, False)
    with pytest.raises(KernelError, match='heap-buffer-overflow'):
        attend(shim, 'decode', random_queries(rng, 1, 1, 64), cache, np.array([64]))
