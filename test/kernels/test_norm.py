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

"""RMSNorm of rows and of heads."""

from typing import Any

from devices import constant, poisoned
from numerics import assert_rounded
import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops

EPS = np.float32(1e-6)


@pytest.mark.parametrize('tokens, width, block', [
    (1, 1, 128), (1, 2560, 128), (2, 576, 128), (32, 1000, 128), (7, 129, 1024), (1, 5120, 256),
])
def test_rows(
        device: Any, rng: np.random.Generator, tokens: int, width: int, block: int) -> None:
    x = constant(rng.standard_normal((tokens, width), np.float32) * rng.uniform(1e-3, 300))
    weight = constant(rng.standard_normal(width, np.float32))
    out = poisoned((tokens, width))
    device.run('norm', 'rmsnorm', tokens, block, [out, x, weight, np.int32(width), EPS])
    expected = reference_ops.rmsnorm(x.astype(np.float64), weight.astype(np.float64), EPS)
    assert_rounded(out, expected)


def test_a_row_has_the_same_bits_in_any_batch(device: Any, rng: np.random.Generator) -> None:
    x = constant(rng.standard_normal((32, 576), np.float32))
    weight = constant(rng.standard_normal(576, np.float32))
    batch, single = poisoned((32, 576)), poisoned(576)
    device.run('norm', 'rmsnorm', 32, 128, [batch, x, weight, np.int32(576), EPS])
    row = int(rng.integers(32))
    device.run('norm', 'rmsnorm', 1, 128, [single, constant(x[row]), weight, np.int32(576), EPS])
    np.testing.assert_array_equal(batch[row].view(np.uint16), single.view(np.uint16))


def test_zeros_stay_zero_and_too_large_saturates(device: Any) -> None:
    x = np.zeros((2, 4), np.float32)
    x[1, 0] = 1e4
    weight = np.full(4, 1e5, np.float32)
    out = poisoned((2, 4))
    device.run('norm', 'rmsnorm', 2, 128, [out, constant(x), constant(weight), np.int32(4), EPS])
    np.testing.assert_array_equal(out, [[0, 0, 0, 0], [65504, 0, 0, 0]])


@pytest.mark.parametrize('tokens, heads, groups, dim', [
    (1, 16, 8, 128), (32, 3, 1, 64), (5, 9, 3, 96), (2, 1, 1, 256),
])
def test_heads_in_place(
        device: Any, rng: np.random.Generator,
        tokens: int, heads: int, groups: int, dim: int) -> None:
    q = rng.standard_normal((tokens, heads, dim)).astype(np.float16)
    k = (30 * rng.standard_normal((tokens, groups, dim))).astype(np.float16)
    q_weight = constant(rng.standard_normal(dim, np.float32))
    k_weight = constant(rng.standard_normal(dim, np.float32))
    expected = [
        reference_ops.rmsnorm(x.astype(np.float64), weight.astype(np.float64), EPS)
        for x, weight in ((q, q_weight), (k, k_weight))]
    rows = tokens * (heads + groups)
    device.run('norm', 'rmsnorm_heads', -(-rows // 4), 128, [
        q, k, q_weight, k_weight, np.int32(tokens), np.int32(heads), np.int32(groups),
        np.int32(dim), EPS])
    assert_rounded(q, expected[0])
    assert_rounded(k, expected[1])
