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

import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.compiler import compile_cubin
from reflex_llm_ros.engine.backends.cuda.persistent import HEAD_DIM, MOST_PARTS, THREADS
from reflex_llm_ros.engine.backends.cuda.sources import kernel_source
from reflex_llm_ros.engine.backends.cuda.steps import turns
import shim_build

KERNEL = 'attend_layers'
FREQUENCIES = 1e6 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
EPS = 1e-6
LAYER_COUNT = 2


@dataclass(frozen=True)
class Shape:
    """Heads, the blocks that they run on, and what decides how many rows find room in one."""

    heads: int
    groups: int
    blocks: int
    feed_forward: int = 4096


@dataclass
class Layer:
    """One layer's inputs: projections, norms' weights and the cache's rows before the step."""

    qkv: np.ndarray
    q_norm: np.ndarray
    k_norm: np.ndarray
    keys: np.ndarray
    values: np.ndarray


def random_layer(shape: Shape, position: int, rng: np.random.Generator) -> Layer:
    def rows(scale: float) -> np.ndarray:
        cache = np.full((position + 3, shape.groups, HEAD_DIM), np.nan, np.float16)
        cache[:position] = scale * rng.standard_normal(cache[:position].shape)
        return cache

    count = (shape.heads + 2 * shape.groups) * HEAD_DIM
    return Layer(
        rng.standard_normal(count).astype(np.float32),
        rng.uniform(0.5, 2, HEAD_DIM).astype(np.float32),
        rng.uniform(0.5, 2, HEAD_DIM).astype(np.float32),
        rows(rng.choice([0.5, 4.0])), rows(1.0))


def turned(rows: np.ndarray, weight: np.ndarray, position: int) -> np.ndarray:
    """Norm and rotation of heads (N, 128)."""
    rows = rows / np.sqrt(np.mean(rows ** 2, axis=1, keepdims=True) + EPS) * weight
    first, second = rows[:, :HEAD_DIM // 2], rows[:, HEAD_DIM // 2:]
    cosine, sine = np.cos(position * FREQUENCIES), np.sin(position * FREQUENCIES)
    return np.concatenate(
        [first * cosine - second * sine, first * sine + second * cosine], axis=1)


def attended(layer: Layer, shape: Shape, position: int) -> np.ndarray:
    """Results of all heads (heads, 128) float64; the newest rows are those that were written."""
    queries = turned(
        layer.qkv[:shape.heads * HEAD_DIM].reshape(shape.heads, HEAD_DIM).astype(np.float64),
        layer.q_norm, position)
    out = np.empty((shape.heads, HEAD_DIM))
    for head, query in enumerate(queries):
        group = head * shape.groups // shape.heads
        scores = layer.keys[:position + 1, group].astype(np.float64) @ query / HEAD_DIM ** 0.5
        weights = np.exp(scores - scores.max())
        out[head] = weights / weights.sum() @ layer.values[:position + 1, group]
    return out


def load(device: Any, shape: Shape) -> None:
    defines = {
        'DECODE_EMBEDDING': 512, 'DECODE_FEED_FORWARD': shape.feed_forward,
        'DECODE_HEADS': shape.heads, 'DECODE_GROUPS': shape.groups, 'DECODE_VOCAB': 512,
        'DECODE_WORDS': 2, 'DECODE_SHARED_BYTES': device.info.shared_bytes,
        'DECODE_BLOCKS': shape.blocks, 'DECODE_FORMATS': 'PackedQ4K'}
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
) -> list[np.ndarray]:
    """Run all layers; the last layer's results twice, and the cache with the new rows."""
    load(device, shape)
    size = device.upload(np.zeros(1, np.int32))
    device.launch(device.function(KERNEL, 'attend_shared_bytes'), (1,), 1, (size,))
    held = [[device.upload(array) for array in (
        layer.q_norm, layer.k_norm, layer.keys, layer.values)] for layer in layers]
    places = device.upload(np.array([
        [0, address(q_norm), address(k_norm), 0, address(keys), address(values)]
        for q_norm, k_norm, keys, values in held], np.uint64))
    query = shape.heads * HEAD_DIM
    words = [device.upload(np.zeros(count, np.uint64)) for count in (
        query + 2 * shape.groups * HEAD_DIM, parts * query, parts * shape.heads * 2, query // 2)]
    qkv = device.upload(np.stack([layer.qkv for layer in layers]))
    results = []
    for first_tag in (1, 1 + len(layers)):
        device.launch_together(
            device.function(KERNEL, 'attend_layers'), shape.blocks, THREADS,
            (places, np.int32(len(layers)), qkv, np.int32(position), np.int32(parts),
             device.upload(turns(FREQUENCIES)), *words, np.float32(EPS),
             np.float32(HEAD_DIM ** -0.5), np.uint32(first_tag)),
            int(device.download(size)[0]))
        pairs = device.download(words[3]).view(np.uint32) & np.uint32(0xffffff00)
        # Fours with even numbers come first (pair_slot in decode_exchange.cuh).
        fours = pairs.view(np.float32).reshape(2, -1, 4).transpose(1, 0, 2)
        results.append(fours.reshape(shape.heads, HEAD_DIM))
    return [*results, device.download(held[-1][2]), device.download(held[-1][3])]


@pytest.mark.parametrize(
    'shape', [Shape(4, 1, 5), Shape(12, 2, 6), Shape(4, 4, 3)], ids=str)
@pytest.mark.parametrize('position', [0, 1, 33, 250])
def test_attention_agrees_with_the_oracle_whatever_arrives_first(
    shape: Shape, position: int, make_device: Callable[..., Any], rng: np.random.Generator
) -> None:
    layers = [random_layer(shape, position, rng) for _ in range(LAYER_COUNT)]
    parts = min(max(1, shape.blocks // shape.groups), MOST_PARTS)
    first, again, keys, values = attend(make_device(), shape, position, layers, parts)
    last = layers[-1]
    np.testing.assert_array_equal(first, again)
    count = shape.groups * HEAD_DIM
    key, value = last.qkv[-2 * count:-count], last.qkv[-count:]
    expected = turned(key.reshape(-1, HEAD_DIM).astype(np.float64), last.k_norm, position)
    np.testing.assert_allclose(keys[position], expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(values[position].ravel(), value.astype(np.float16))
    np.testing.assert_array_equal(keys[:position], last.keys[:position])
    last.keys[position], last.values[position] = keys[position], values[position]
    expected = attended(last, shape, position)
    assert np.linalg.norm(first - expected) <= 2e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    'shape', [Shape(4, 1, 5), Shape(4, 1, 5, 9728), Shape(8, 1, 5, 12288), Shape(4, 1, 41)],
    ids=str)
def test_a_long_cache_in_many_parts(
    shape: Shape, make_device: Callable[..., Any], rng: np.random.Generator
) -> None:
    """Parts longer than a block's warps take at once, or more than a warp has lanes."""
    position = 1300
    layer = random_layer(shape, position, rng)
    # Weights outgrow the first ones.
    layer.keys[:position] *= np.linspace(0.1, 4, position).astype(np.float16)[:, None, None]
    first, again, keys, values = attend(make_device(), shape, position, [layer], shape.blocks)
    np.testing.assert_array_equal(first, again)
    layer.keys[position], layer.values[position] = keys[position], values[position]
    expected = attended(layer, shape, position)
    assert np.linalg.norm(first - expected) <= 2e-5 * np.linalg.norm(expected)
