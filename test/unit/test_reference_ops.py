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

"""The reference operations against their definitions, written out as loops."""

import math
import warnings

import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops as ops

SHAPES = [  # tokens, cached positions (tokens included), query heads, key/value heads, dim
    (1, 1, 1, 1, 2), (1, 17, 4, 4, 8), (5, 5, 6, 2, 4), (3, 40, 8, 1, 64), (7, 9, 9, 3, 16),
]


def attention_by_loops(q, k, v):
    tokens, heads, dim = q.shape
    length, groups, _ = k.shape
    out = np.zeros_like(q)
    for n in range(tokens):
        for h in range(heads):
            g = h // (heads // groups)
            seen = length - tokens + n + 1
            scores = [math.exp(np.dot(q[n, h], k[t, g]) / math.sqrt(dim)) for t in range(seen)]
            for t in range(seen):
                out[n, h] += scores[t] / sum(scores) * v[t, g]
    return out


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('dtype, tolerance', [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_attention_is_softmax_of_scaled_products(rng, shape, dtype, tolerance):
    tokens, length, heads, groups, dim = shape
    q = rng.standard_normal((tokens, heads, dim))
    k, v = rng.standard_normal((2, length, groups, dim))
    got = ops.attention(q.astype(dtype), k.astype(dtype), v.astype(dtype))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, attention_by_loops(q, k, v), atol=tolerance, rtol=tolerance)


def test_attention_of_int8_equals_attention_of_what_the_int8_stand_for(rng):
    q = rng.standard_normal((3, 6, 8))
    k, v = rng.standard_normal((2, 11, 2, 8))
    (k8, k_scale), (v8, v_scale) = ops.quantize_kv_int8(k), ops.quantize_kv_int8(v)
    got = ops.attention(q, k8, v8, k_scale, v_scale)
    expected = attention_by_loops(q, k8 * k_scale[..., None], v8 * v_scale[..., None])
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_attention_survives_scores_that_overflow_exp():
    q = np.full((1, 1, 2), 1e3, np.float32)
    k = np.array([[[1e3, 0]], [[0, 0]]], np.float32)
    v = np.array([[[1, 2]], [[3, 4]]], np.float32)
    np.testing.assert_array_equal(ops.attention(q, k, v), [[[1, 2]]])


def test_rmsnorm_scales_to_unit_root_mean_square(rng):
    x, weight = rng.standard_normal((4, 3, 32)) * 50, rng.standard_normal(32)
    got = ops.rmsnorm(x, weight, 1e-6)
    for row in np.ndindex(4, 3):
        root = math.sqrt(sum(value * value for value in x[row]) / 32 + 1e-6)
        np.testing.assert_allclose(got[row], x[row] / root * weight, rtol=1e-12)


def test_rmsnorm_of_zeros_is_zero():
    np.testing.assert_array_equal(ops.rmsnorm(np.zeros((2, 8)), np.ones(8), 1e-6), 0)


@pytest.mark.parametrize('pairing', ['half', 'adjacent'])
def test_rope_turns_each_pair_by_its_angle(rng, pairing):
    dim, positions = 8, np.array([0, 1, 5, 4000])
    frequencies = 1e4 ** (-np.arange(dim // 2) / (dim // 2))
    x = rng.standard_normal((4, 3, dim))
    got = ops.rope(x, *ops.rope_angles(positions, frequencies, np.float64), pairing)
    for n, position in enumerate(positions):
        for i, frequency in enumerate(frequencies):
            first, second = (i, i + dim // 2) if pairing == 'half' else (2 * i, 2 * i + 1)
            turned = (x[n, :, first] + 1j * x[n, :, second]) * np.exp(1j * position * frequency)
            np.testing.assert_allclose(got[n, :, first], turned.real, atol=1e-12)
            np.testing.assert_allclose(got[n, :, second], turned.imag, atol=1e-12)


@pytest.mark.parametrize('pairing', ['half', 'adjacent'])
def test_rope_products_depend_on_the_distance_alone(rng, pairing):
    q, k = rng.standard_normal((2, 1, 1, 64))
    frequencies = 1e6 ** (-np.arange(32) / 32)

    def product(at_q, at_k):
        def turn(x, position):
            angles = ops.rope_angles(np.array([position]), frequencies, np.float64)
            return ops.rope(x, *angles, pairing)
        return np.sum(turn(q, at_q) * turn(k, at_k))

    np.testing.assert_allclose(product(30007, 30000), product(7, 0), rtol=1e-9)


def test_rope_angles_are_computed_in_float64():
    cosine, sine = ops.rope_angles(np.array([99_999]), np.array([0.7]), np.float32)
    assert cosine.dtype == sine.dtype == np.float32
    assert cosine[0, 0] == np.float32(math.cos(99_999 * 0.7))
    assert sine[0, 0] == np.float32(math.sin(99_999 * 0.7))


def test_swiglu_is_silu_times_up_and_quiet_at_the_extremes(rng):
    gate = np.array([[-1e4, -100, -1, 0, 1, 100, 1e4]], np.float32)
    up = rng.standard_normal(gate.shape).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        got = ops.swiglu(gate, up)
    sigmoid = [1 / (1 + math.exp(-max(g, -700.0))) for g in gate[0].tolist()]
    np.testing.assert_allclose(got, gate * sigmoid * up.astype(float), rtol=1e-6, atol=1e-37)


def test_softmax_is_positive_and_sums_to_one(rng):
    x = rng.standard_normal((5, 1000)) * 200
    got = ops.softmax(x)
    assert (got >= 0).all()
    np.testing.assert_allclose(got.sum(axis=-1), 1, rtol=1e-12)
    largest = x.argmax(axis=-1)
    other = (largest + 1) % 1000
    rows = np.arange(5)
    np.testing.assert_allclose(
        got[rows, other] / got[rows, largest], np.exp(x[rows, other] - x[rows, largest]),
        rtol=1e-9)


def test_linear_multiplies_by_the_transpose(rng):
    x, weight = rng.standard_normal((2, 5)), rng.standard_normal((3, 5))
    expected = [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in weight] for row in x]
    np.testing.assert_allclose(ops.linear(x, weight), expected, rtol=1e-12)


def test_embed_takes_rows(rng):
    table = rng.standard_normal((10, 4))
    np.testing.assert_array_equal(ops.embed(table, np.array([7, 0, 7])), table[[7, 0, 7]])


def test_quantize_kv_int8_is_off_by_half_a_scale_at_most(rng):
    x = (rng.standard_normal((6, 3, 64)) * 10.0 ** rng.integers(-3, 4, (6, 3, 1)))
    values, scale = ops.quantize_kv_int8(x.astype(np.float32))
    assert values.dtype == np.int8 and scale.dtype == np.float32
    np.testing.assert_allclose(scale, np.abs(x).max(axis=-1) / 127, rtol=1e-6)
    assert (np.abs(values).max(axis=-1) == 127).all()
    error = np.abs(values * scale[..., None].astype(float) - x)
    assert (error <= scale[..., None] * 0.5001).all()


def test_quantize_kv_int8_of_zeros_is_zero_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        values, scale = ops.quantize_kv_int8(np.zeros((1, 2, 4), np.float32))
    assert not values.any() and not scale.any()
