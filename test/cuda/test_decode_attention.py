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

"""The persistent kernel's attention alone (attend_layers.cu) against float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from devices import poisoned
import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.compiler import compile_cubin
from reflex_llm_ros.engine.backends.cuda.persistent import (
    CACHES,
    HEAD_DIM,
    MOST_PARTS,
    THREADS,
)
from reflex_llm_ros.engine.backends.cuda.sources import kernel_source
from reflex_llm_ros.engine.backends.cuda.steps import turns
import shim_build

KERNEL = 'attend_layers'
FREQUENCIES = 1e6 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
EPS = 1e-6
LAYER_COUNT = 2
KV_CACHES = pytest.mark.parametrize('kv_cache', ['f16', 'int8'])


@dataclass(frozen=True)
class Shape:
    """Heads, the blocks that they run on, and what decides how many rows find room in one."""

    heads: int
    groups: int
    blocks: int
    feed_forward: int = 4096


@dataclass
class Cache:
    """Keys and values (T, G, 128), and the scales (T, G) of int8 ones."""

    keys: np.ndarray
    values: np.ndarray
    key_scales: np.ndarray | None = None
    value_scales: np.ndarray | None = None

    def arrays(self) -> list[np.ndarray]:
        every = (self.keys, self.values, self.key_scales, self.value_scales)
        return [array for array in every if array is not None]

    def rows(self, group: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what the first keys and values of a group stand for, (count, 128) float64."""
        rows = [array[:count, group].astype(np.float64) for array in (self.keys, self.values)]
        for array, scales in zip(rows, (self.key_scales, self.value_scales), strict=True):
            if scales is not None:
                array *= scales[:count, group, None]
        return rows[0], rows[1]


@dataclass
class Layer:
    """One layer's inputs: projections, norms' weights and the cache before the step."""

    qkv: np.ndarray
    q_norm: np.ndarray
    k_norm: np.ndarray
    cache: Cache


def random_cache(
    shape: Shape, position: int, kv_cache: str, sizes: np.ndarray, rng: np.random.Generator
) -> Cache:
    """
    Fill a cache up to a position; what lies behind is NaN, or an int8 of scale NaN.

    ``sizes`` (G,) are those of the values of an int8 one, from which rows fall behind.
    """
    def rows(scale: float) -> np.ndarray:
        cache = poisoned(size, np.int8 if kv_cache == 'int8' else np.float16)
        if kv_cache == 'int8':
            cache[:position] = rng.integers(-127, 128, cache[:position].shape)
        else:
            cache[:position] = scale * rng.standard_normal(cache[:position].shape)
        return cache

    def scales(scale: Any, decades: float) -> np.ndarray:
        cache = poisoned(size[:2], np.float32)
        cache[:position] = scale / 73 * 10 ** rng.uniform(-decades, 0, cache[:position].shape)
        return cache

    size = (position + 3, shape.groups, HEAD_DIM)
    key_scale = rng.choice([0.5, 4.0])
    cache = Cache(rows(key_scale), rows(1.0))
    if kv_cache == 'int8':
        cache.key_scales, cache.value_scales = scales(key_scale, 0.3), scales(sizes, 3)
        cache.values[:position:5], cache.value_scales[:position:5] = 0, 0
    return cache


def random_layer(
    shape: Shape, position: int, kv_cache: str, rng: np.random.Generator
) -> Layer:
    sizes = 10 ** rng.uniform(-4, 2, shape.groups) if kv_cache == 'int8' else np.ones(shape.groups)
    qkv = rng.standard_normal((shape.heads + 2 * shape.groups, HEAD_DIM)).astype(np.float32)
    qkv[-shape.groups:] *= sizes[:, None].astype(np.float32)
    return Layer(
        qkv.ravel(),
        rng.uniform(0.5, 2, HEAD_DIM).astype(np.float32),
        rng.uniform(0.5, 2, HEAD_DIM).astype(np.float32),
        random_cache(shape, position, kv_cache, sizes, rng))


def turned(rows: np.ndarray, weight: np.ndarray, position: int) -> np.ndarray:
    """Norm and rotation of heads (N, 128)."""
    rows = rows / np.sqrt(np.mean(rows ** 2, axis=1, keepdims=True) + EPS) * weight
    first, second = rows[:, :HEAD_DIM // 2], rows[:, HEAD_DIM // 2:]
    cosine, sine = np.cos(position * FREQUENCIES), np.sin(position * FREQUENCIES)
    return np.concatenate(
        [first * cosine - second * sine, first * sine + second * cosine], axis=1)


def attended(layer: Layer, cache: Cache, shape: Shape, position: int) -> np.ndarray:
    """Results of all heads (heads, 128) float64 against what is in the cache after the step."""
    queries = turned(
        layer.qkv[:shape.heads * HEAD_DIM].reshape(shape.heads, HEAD_DIM).astype(np.float64),
        layer.q_norm, position)
    out = np.empty((shape.heads, HEAD_DIM))
    for head, query in enumerate(queries):
        keys, values = cache.rows(head * shape.groups // shape.heads, position + 1)
        scores = keys @ query / HEAD_DIM ** 0.5
        weights = np.exp(scores - scores.max())
        out[head] = weights / weights.sum() @ values
    return out


def load(device: Any, shape: Shape, layers: int, parts: int, kv_cache: str) -> None:
    defines = {
        'DECODE_LAYERS': layers, 'DECODE_PARTS': parts, 'DECODE_EMBEDDING': 512,
        'DECODE_FEED_FORWARD': shape.feed_forward,
        'DECODE_HEADS': shape.heads, 'DECODE_GROUPS': shape.groups, 'DECODE_VOCAB': 512,
        'DECODE_WORDS': 2, 'DECODE_SHARED_BYTES': device.info.shared_bytes,
        'DECODE_BLOCKS': shape.blocks, 'DECODE_FORMATS': 'PackedQ4K',
        'DECODE_KV': CACHES[kv_cache]}
    if device.info.name == 'host shim':
        device.load({KERNEL: defines})
        return
    import cupy
    macros = ''.join(f'#define {name} {value}\n' for name, value in defines.items())
    source = replace(
        kernel_source('decode'), name=KERNEL,
        code=macros + shim_build.kernel_file(KERNEL).read_text())
    module = cupy.cuda.Module()
    module.load(compile_cubin(source, device.info.capability))
    device._modules[KERNEL] = module


def address(array: Any) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def attend(
    device: Any, shape: Shape, position: int, layers: list[Layer], parts: int
) -> tuple[np.ndarray, np.ndarray, Cache]:
    """Run all layers; the last layer's results twice, and its cache with the new rows."""
    kv_cache = 'f16' if layers[0].cache.key_scales is None else 'int8'
    load(device, shape, len(layers), parts, kv_cache)
    size = device.upload(np.zeros(1, np.int32))
    device.launch(device.function(KERNEL, 'attend_shared_bytes'), (1,), 1, (size,))
    held = [[device.upload(array) for array in (
        layer.q_norm, layer.k_norm, *layer.cache.arrays())] for layer in layers]
    places = device.upload(np.array([
        [0, address(q_norm), address(k_norm), 0, *(address(array) for array in cache)]
        for q_norm, k_norm, *cache in held], np.uint64))
    query = shape.heads * HEAD_DIM
    words = [device.upload(np.zeros(count, np.uint64)) for count in (
        query + 2 * shape.groups * HEAD_DIM, parts * query, parts * shape.heads * 2, query // 2)]
    qkv = device.upload(np.stack([layer.qkv for layer in layers]))
    results = []
    for first_tag in (1, 1 + len(layers)):
        device.launch_together(
            device.function(KERNEL, 'attend_layers'), shape.blocks, THREADS,
            (places, qkv, np.int32(position), device.upload(turns(FREQUENCIES)), *words,
             np.float32(EPS), np.float32(HEAD_DIM ** -0.5), np.uint32(first_tag)),
            int(device.download(size)[0]))
        pairs = device.download(words[3]).view(np.uint32) & np.uint32(0xffffff00)
        # Fours with even numbers come first (pair_slot in decode_exchange.cuh).
        fours = pairs.view(np.float32).reshape(2, -1, 4).transpose(1, 0, 2)
        results.append(fours.reshape(shape.heads, HEAD_DIM))
    return results[0], results[1], Cache(*(device.download(array) for array in held[-1][2:]))


def newest_rows(layer: Layer, shape: Shape, position: int) -> tuple[np.ndarray, np.ndarray]:
    """Key and value (G, 128) of the step itself, float64."""
    rows = layer.qkv[shape.heads * HEAD_DIM:].reshape(2, -1, HEAD_DIM).astype(np.float64)
    return turned(rows[0], layer.k_norm, position), rows[1]


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert errors.max() <= 2e-5


@KV_CACHES
@pytest.mark.parametrize(
    'shape', [Shape(4, 1, 5), Shape(12, 2, 6), Shape(4, 4, 3)], ids=str)
@pytest.mark.parametrize('position', [0, 1, 33, 250])
def test_attention_agrees_with_the_oracle_whatever_arrives_first(
    shape: Shape, position: int, kv_cache: str, make_device: Callable[..., Any],
    rng: np.random.Generator
) -> None:
    layers = [random_layer(shape, position, kv_cache, rng) for _ in range(LAYER_COUNT)]
    parts = min(max(1, shape.blocks // shape.groups), MOST_PARTS)
    first, again, cache = attend(make_device(), shape, position, layers, parts)
    last = layers[-1]
    np.testing.assert_array_equal(first, again)
    for found, before in zip(cache.arrays(), last.cache.arrays(), strict=True):
        others = np.arange(len(found)) != position
        np.testing.assert_array_equal(found[others], before[others])
    newest = np.array([cache.rows(group, position + 1) for group in range(shape.groups)])
    for row, exact in zip(
            newest[:, :, position].swapaxes(0, 1), newest_rows(last, shape, position),
            strict=True):
        error = 6e-4 * np.abs(exact)
        if kv_cache == 'int8':
            error = error + np.abs(exact).max(axis=1, keepdims=True) / 127 * 0.51
        assert np.all(np.abs(row - exact) <= error + 1e-5)
    expected = attended(last, cache, shape, position)
    assert_near(first, expected)


@KV_CACHES
@pytest.mark.parametrize(
    'shape', [Shape(4, 1, 5), Shape(4, 1, 5, 9728), Shape(8, 1, 5, 12288), Shape(4, 1, 41)],
    ids=str)
def test_a_long_cache_in_many_parts(
    shape: Shape, kv_cache: str, make_device: Callable[..., Any], rng: np.random.Generator
) -> None:
    """Parts longer than a block's warps take at once, or more than a warp has lanes."""
    position = 1300
    layer = random_layer(shape, position, kv_cache, rng)
    # Weights outgrow the first ones.
    growing = np.linspace(0.1, 4, position)[:, None]
    if kv_cache == 'int8':
        layer.cache.key_scales[:position] *= growing.astype(np.float32)
    else:
        layer.cache.keys[:position] *= growing.astype(np.float16)[..., None]
    first, again, cache = attend(make_device(), shape, position, [layer], shape.blocks)
    np.testing.assert_array_equal(first, again)
    expected = attended(layer, cache, shape, position)
    assert_near(first, expected)


def test_newest_int8_rows_are_those_that_launches_store(
    make_device: Callable[..., Any], rng: np.random.Generator
) -> None:
    shape, position = Shape(12, 2, 6), 3
    layer = random_layer(shape, position, 'int8', rng)
    layer.qkv[-HEAD_DIM:] = 0  # a value of scale 0
    *_, found = attend(make_device(), shape, position, [layer], 3)
    *_, halves = attend(
        make_device(), shape, position,
        [replace(layer, cache=random_layer(shape, position, 'f16', rng).cache)], 3)
    device = make_device()
    stored = [device.upload(array) for array in layer.cache.arrays()]
    device.load({'kv_cache': {}})
    device.launch(
        device.function('kv_cache', 'quantize_kv_int8'), (1, 2), 128,
        (*stored, device.upload(halves.keys[position]), device.upload(halves.values[position]),
         device.upload(np.array([position], np.int32)), np.int32(1), np.int32(shape.groups),
         np.int32(HEAD_DIM)))
    for array, expected in zip(found.arrays(), stored, strict=True):
        np.testing.assert_array_equal(array, device.download(expected))
