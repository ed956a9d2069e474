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

"""The NumPy quantizers, checked by the gguf package's dequantizers."""

from gguf import dequantize, GGML_QUANT_SIZES, GGMLQuantizationType
import numpy as np
import pytest
from reflex_llm_ros.synthetic.quantize import quantize

HALF_ULP = 2.0 ** -11
"""Relative error of rounding a scale to float16."""

SMALLEST_HALF = 2.0 ** -24

SIMPLE = {'Q4_0': 4, 'Q5_0': 5, 'Q8_0': 8, 'Q4_1': 4, 'Q5_1': 5}
K_QUANTS = {'Q4_K': (4, 32), 'Q5_K': (5, 32), 'Q6_K': (6, 16)}
ALL = [*SIMPLE, *K_QUANTS, 'F32', 'F16', 'BF16']


def decoded(weights: np.ndarray, name: str) -> np.ndarray:
    """Quantize and dequantize, (rows, K) float32."""
    kind = GGMLQuantizationType[name]
    raw = quantize(weights, kind)
    block, size = GGML_QUANT_SIZES[kind]
    assert raw.dtype == np.uint8
    assert raw.shape == (len(weights), weights.shape[1] // block * size)
    return dequantize(raw, kind).reshape(weights.shape)


def random_weights(rng: np.random.Generator) -> np.ndarray:
    """Rows of very different sizes, (24, 512)."""
    sizes = 10.0 ** rng.uniform(-3, 3, (24, 1))
    return (rng.standard_normal((24, 512)) * sizes).astype(np.float32)


@pytest.mark.parametrize('name', SIMPLE)
def test_simple_blocks_are_within_half_a_step(rng, name):
    weights = random_weights(rng)
    blocks = weights.reshape(-1, 32).astype(np.float64)
    levels = 2 ** SIMPLE[name]
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    beyond = np.zeros(blocks.shape)
    if name.endswith('_1'):
        step = np.ptp(blocks, axis=1, keepdims=True) / (levels - 1)
    elif name == 'Q8_0':
        step = largest / 127
    else:
        # The largest magnitude takes the level that has no counterpart of the other sign.
        step = largest / (levels / 2)
        at = np.abs(blocks).argmax(axis=1)[:, None]
        other_sign = -blocks * np.sign(np.take_along_axis(blocks, at, axis=1))
        beyond = np.maximum(other_sign - (levels / 2 - 1) * step, 0)
    rounding = 2 * largest * HALF_ULP + levels * SMALLEST_HALF
    error = np.abs(decoded(weights, name).reshape(-1, 32) - blocks)
    assert (error <= np.maximum(step / 2, beyond) + rounding).all()


@pytest.mark.parametrize('name', K_QUANTS)
def test_k_quants_are_as_good_as_their_levels_allow(rng, name):
    """An even error within every step has the RMS step / sqrt(12); 6-bit scales add little."""
    weights = random_weights(rng)
    bits, sub = K_QUANTS[name]
    blocks = weights.reshape(-1, sub).astype(np.float64)
    if name == 'Q6_K':
        step = np.abs(blocks).max(axis=1) / 32
    else:
        low = np.minimum(blocks.min(axis=1), 0)
        step = (np.maximum(blocks.max(axis=1), 0) - low) / (2 ** bits - 1)
    even = np.sqrt((step ** 2).mean() / 12)
    error = np.sqrt(((decoded(weights, name).reshape(-1, sub) - blocks) ** 2).mean())
    assert 0.3 * even < error < 1.1 * even


@pytest.mark.parametrize(('name', 'better'), [('Q4_K', 'Q4_0'), ('Q5_K', 'Q5_0')])
def test_k_quants_beat_the_simple_blocks_of_as_many_bits(rng, name, better):
    weights = rng.standard_normal((16, 1024)).astype(np.float32)

    def error(kind: str) -> float:
        return float(np.linalg.norm(decoded(weights, kind) - weights))

    assert error(name) < error(better)


@pytest.mark.parametrize('name', ALL)
def test_zeros_stay_zero(name):
    assert not decoded(np.zeros((3, 256), np.float32), name).any()


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize('sign', [1, -1])
def test_constants_come_back(rng, name, sign):
    value = sign * rng.uniform(1e-2, 1e2)
    weights = np.full((2, 512), value, np.float32)
    precision = 2 ** -8 if name == 'BF16' else 2 * HALF_ULP
    np.testing.assert_allclose(decoded(weights, name), weights, rtol=precision)


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize('scale', [1e-38, 1e-30, 1e-10, 1e6, 1e10, 1e30])
def test_sizes_beyond_float16_stay_finite_and_on_their_side(rng, name, scale):
    weights = (rng.standard_normal((4, 256)) * scale).astype(np.float32)
    with np.errstate(all='raise', under='ignore'):
        out = decoded(weights, name)
    assert np.isfinite(out).all()
    assert (np.abs(out) <= np.abs(weights).max() * 1.2).all()


@pytest.mark.parametrize('name', K_QUANTS)
def test_one_outlier_leaves_the_other_sub_blocks_usable(rng, name):
    weights = rng.standard_normal((1, 256)).astype(np.float32)
    weights[0, 100] = 30.0
    others = np.r_[0:96, 128:256]
    error = np.linalg.norm((decoded(weights, name) - weights)[0, others])
    assert error < 0.5 * np.linalg.norm(weights[0, others])


@pytest.mark.parametrize('name', ALL)
def test_rows_are_independent(rng, name):
    weights = random_weights(rng)
    kind = GGMLQuantizationType[name]
    whole = quantize(weights, kind)
    np.testing.assert_array_equal(whole[5:6], quantize(weights[5:6], kind))


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    weights = np.ones((1, 256), np.float32)
    weights[0, 3] = bad
    with pytest.raises(ValueError, match='finite'):
        quantize(weights, GGMLQuantizationType.Q4_K)


def test_rows_that_do_not_fill_blocks_and_unknown_types_are_refused():
    with pytest.raises(ValueError, match='multiple of 256'):
        quantize(np.ones((1, 128), np.float32), GGMLQuantizationType.Q6_K)
    with pytest.raises(ValueError, match='no quantizer for IQ2_XS'):
        quantize(np.ones((1, 256), np.float32), GGMLQuantizationType.IQ2_XS)
