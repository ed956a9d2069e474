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

"""Rotary embedding and its scaling, as files ask for it."""

import math

from gguf_files import rewrite, small_model
import numpy as np
import pytest
from reflex_llm_ros.engine.backends.reference import ReferenceBackend
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.errors import ModelFileError
from reflex_llm_ros.engine.gguf_metadata import Metadata
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.gguf_rope import rope_config

QWEN3 = {'qwen3.rope.freq_base': 1e6}
YARN = {
    **QWEN3,
    'qwen3.rope.scaling.type': 'yarn',
    'qwen3.rope.scaling.factor': 4.0,
    'qwen3.rope.scaling.original_context_length': 32768,
}


def rope(values, divisors=None, dim=128):
    return rope_config(Metadata(values), 'qwen3', dim, divisors)


def plain(dim=128):
    """Frequencies without scaling: 1e6 to the power of -2i/D."""
    return np.array([1e6 ** (-2 * i / dim) for i in range(dim // 2)])


@pytest.mark.parametrize('values', [
    {}, {'scaling.type': 'none'}, {'scaling.type': 'none', 'scaling.factor': 4.0},
    {'scaling.factor': 0.0}, {'scaling.type': 'linear'},
])
def test_no_scaling(values):
    config = rope({**QWEN3, **{f'qwen3.rope.{key}': value for key, value in values.items()}})
    np.testing.assert_allclose(config.frequencies, plain(), rtol=1e-12)
    assert config.frequencies.dtype == np.float64
    assert (config.pairing, config.magnitude) == ('half', 1.0)


@pytest.mark.parametrize('key', ['scaling.factor', 'scale_linear'])
def test_linear_scaling_divides_every_angle(key):
    config = rope({**QWEN3, 'qwen3.rope.' + key: 8.0})
    np.testing.assert_allclose(config.frequencies, plain() / 8, rtol=1e-12)
    assert config.magnitude == 1.0


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    # Pair i turns 32768 / (2 pi 1e6^(i/64)) times in the original context: 32 times at
    # i = 64 ln(32768 / 64 pi) / ln 1e6 = 23.6, once at i = 39.7. The bounds are 23 and 40.
    config = rope(YARN)
    np.testing.assert_allclose(config.frequencies[:24], plain()[:24], rtol=1e-12)
    np.testing.assert_allclose(config.frequencies[40:], plain()[40:] / 4, rtol=1e-12)
    mix = (31 - 23) / (40 - 23)
    assert config.frequencies[31] == pytest.approx(plain()[31] * (1 - mix + mix / 4))
    assert config.magnitude == pytest.approx(1 + 0.1 * math.log(4))


def test_yarn_takes_its_bounds_and_magnitude_from_the_file():
    config = rope({
        **YARN,
        'qwen3.rope.scaling.yarn_beta_fast': 1.0,
        'qwen3.rope.scaling.yarn_beta_slow': 1.0,
        'qwen3.rope.scaling.attn_factor': 0.5,
    })
    np.testing.assert_allclose(config.frequencies[:40], plain()[:40], rtol=1e-12)
    np.testing.assert_allclose(config.frequencies[40:], plain()[40:] / 4, rtol=1e-12)
    assert config.magnitude == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))


def test_divisors_divide_before_linear_scaling(rng):
    divisors = rng.uniform(1, 32, 64)
    config = rope({**QWEN3, 'qwen3.rope.scaling.factor': 2.0}, divisors)
    np.testing.assert_allclose(config.frequencies, plain() / divisors / 2, rtol=1e-12)


@pytest.mark.parametrize(('values', 'divisors', 'fault'), [
    ({'scaling.type': 'longrope'}, None, "'longrope' is not supported"),
    ({'scaling.type': 'yarn', 'scaling.factor': 4.0}, None, 'original_context_length is missing'),
    ({'scaling.type': 'yarn', 'scaling.factor': 0.5, 'scaling.original_context_length': 9},
     None, 'yarn needs at least 1'),
    ({'scaling.type': 'yarn', 'scaling.original_context_length': 9,
      'scaling.yarn_ext_factor': 0.5}, None, 'yarn_ext_factor'),
    ({'scaling.type': 'yarn', 'scaling.original_context_length': 9,
      'scaling.yarn_log_multiplier': 0.1}, None, 'yarn_log_multiplier'),
    ({'scaling.attn_factor': 1.5}, None, 'with yarn scaling only'),
    ({'scaling.factor': -1.0}, None, 'scaling.factor is -1'),
    ({'scaling.factor': math.nan}, None, 'scaling.factor is nan'),
    ({'scaling.type': 4}, None, 'scaling.type must be a string'),
    ({'freq_base': math.inf}, None, 'freq_base is inf'),
    ({'freq_base': 0.0}, None, 'freq_base is 0'),
    ({'dimension_count': 64}, None, 'partial rotation is not supported'),
    ({}, np.ones(63), 'rope_freqs.weight has the shape [63]'),
    ({}, np.r_[np.ones(63), 0.0], 'not positive'),
    ({}, np.r_[np.ones(63), np.nan], 'not positive'),
])
def test_what_is_not_implemented_is_refused_by_name(values, divisors, fault):
    values = {f'qwen3.rope.{key}': value for key, value in values.items()}
    with pytest.raises(ModelFileError) as caught:
        rope({**QWEN3, **values}, divisors)
    assert fault in str(caught.value)


def test_a_file_with_divisors_opens_scaled(tmp_path):
    path = small_model(tmp_path / 'plain.gguf', architecture='llama')
    before = GgufModel.open(path).config.rope.frequencies
    divisors = np.array([1, 1, 2, 4, 8, 8, 8, 8], np.float32)
    model = GgufModel.open(
        rewrite(path, tmp_path / 'model.gguf', more={'rope_freqs.weight': divisors}))
    np.testing.assert_allclose(model.config.rope.frequencies, before / divisors, rtol=1e-12)
    assert 'rope_freqs.weight' not in model.tensors


def test_divisors_must_be_a_short_float_vector(tmp_path):
    path = small_model(tmp_path / 'plain.gguf', architecture='llama')
    divisors = np.ones(8, np.float16)
    with pytest.raises(ModelFileError, match='must be a short F32 vector but is F16'):
        GgufModel.open(
            rewrite(path, tmp_path / 'model.gguf', more={'rope_freqs.weight': divisors}))


def test_yarn_magnitude_reaches_the_scores(tmp_path, rng):
    """Queries and keys m times as large are scores m * m times as large, as larger norms make."""
    def logits(attention, norm_factor):
        scaling = {key: value for key, value in YARN.items() if 'scaling' in key}
        scaling['qwen3.rope.scaling.attn_factor'] = attention
        path = small_model(tmp_path / 'plain.gguf', mix='f32', metadata=scaling)
        norms = {
            name: (tensor.dequantize() * norm_factor).astype(np.float32)
            for name, tensor in GgufModel.open(path).tensors.items() if 'q_norm' in name}
        path = rewrite(path, tmp_path / 'model.gguf', without=norms, more=norms)
        backend = ReferenceBackend(
            GgufModel.open(path), EngineConfig(path, context_length=32), dtype=np.float64)
        return backend.forward(tokens, 0)

    tokens = rng.integers(0, 256, 32).tolist()
    natural = 1 + 0.1 * math.log(4)
    got = logits(1.5, 1.0)
    np.testing.assert_allclose(
        got, logits(1 / natural, (1.5 * natural) ** 2), rtol=1e-4, atol=1e-4)
    assert np.abs(got - logits(1.0, 1.0)).max() > 0.01
