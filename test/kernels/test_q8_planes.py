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

"""Blocks of a file into planes, rows of an embedding, the head's input, the probes."""

from typing import Any

from devices import constant, poisoned
from numerics import assert_near
import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops
from weights import BY_SUFFIX, dequantized, random_weights

EPS = np.float32(1e-5)


@pytest.mark.parametrize('rows, length', [(1, 32), (3, 96), (40, 576)])
def test_planes_of_a_file(
        device: Any, rng: np.random.Generator, rows: int, length: int) -> None:
    entry = BY_SUFFIX['q8_0']
    file = random_weights(rng, entry, rows, length)
    blocks = rows * length // 32
    words, scales = poisoned((rows, length), np.int8), poisoned((rows, length // 32))
    device.run('q8_embed', 'split_q8', -(-blocks * 17 // 128), 128, [
        words, scales, file, np.int64(blocks)])
    parts = file.reshape(blocks, 34)
    np.testing.assert_array_equal(scales.view(np.uint8).reshape(blocks, 2), parts[:, :2])
    np.testing.assert_array_equal(words.view(np.uint8).reshape(blocks, 32), parts[:, 2:])

    ids = constant(rng.integers(0, rows, 4).astype(np.int32))
    x = poisoned((4, length), np.float32)
    device.run('q8_embed', 'embed_q8', (-(-length // 128), 4), 128, [
        x, ids, constant(words), constant(scales), np.int32(length)])
    np.testing.assert_array_equal(x, dequantized(entry, file)[ids].astype(np.float32))


@pytest.mark.parametrize('tokens, width', [(1, 32), (3, 576)])
def test_mtp_concat(
        device: Any, rng: np.random.Generator, tokens: int, width: int) -> None:
    embedding, hidden = (
        constant(scale * rng.standard_normal((tokens, width), np.float32))
        for scale in (np.float32(0.01), np.float32(30)))
    weights = [constant(rng.standard_normal(width, np.float32)) for _ in range(2)]
    out = poisoned((tokens, 2 * width), np.float32)
    device.run('mtp_concat', 'mtp_concat', (tokens, 2), 128, [
        out, embedding, hidden, *weights, np.int32(width), EPS])
    expected = [
        reference_ops.rmsnorm(x.astype(np.float64), weight.astype(np.float64), EPS)
        for x, weight in zip((embedding, hidden), weights, strict=True)]
    assert_near(out[:, :width], expected[0], 1e-6)
    assert_near(out[:, width:], expected[1], 1e-6)


@pytest.mark.parametrize('count, first', [(1, 4), (5, 5), (2560, 8)])
def test_l2_probe(device: Any, rng: np.random.Generator, count: int, first: int) -> None:
    x = constant(rng.standard_normal(count, np.float32))
    out = np.zeros(1 + first, np.float32)
    device.run('vector_probe', 'l2_probe', 1, 128, [out, x, np.int32(count), np.int32(first)])
    np.testing.assert_allclose(out[0], np.linalg.norm(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_array_equal(out[1:1 + min(first, count)], x[:first])


def test_head_probe(device: Any, rng: np.random.Generator) -> None:
    x = constant(rng.standard_normal((3, 64)).astype(np.float16))
    out = poisoned((3, 5), np.float32)
    device.run('vector_probe', 'head_probe', 3, 128, [out, x, np.int32(64), np.int32(4)])
    np.testing.assert_allclose(
        out[:, 0], np.linalg.norm(x.astype(np.float64), axis=1), rtol=1e-6)
    np.testing.assert_array_equal(out[:, 1:], x[:, :4])
