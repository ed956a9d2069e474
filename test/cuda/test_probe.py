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

"""The debug run that names the layer that departs from the oracle."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.opening import open_cuda_backend
from reflex_llm_ros.engine.backends.cuda.probe import device_states, oracle_states, probe, TOKENS
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import ModelShape
from reflex_llm_ros.synthetic.qwen3_gguf import generate
from shim_device import ShimDevice

LAYERS = 3
MIXES = ('q8_0', 'q4_k_m')


@pytest.fixture(scope='module', params=MIXES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a model of three layers."""
    shape = ModelShape(
        block_count=LAYERS, embedding_length=256, feed_forward_length=256, head_count=2,
        head_count_kv=1, head_dim=64, vocab_size=0, context_length=128)
    path = tmp_path_factory.mktemp('probe') / f'{request.param}.gguf'
    generate(str(path), shape, mix=request.param, seed=8)
    return path


def test_the_oracles_states_end_in_the_oracles_logits(path: Path, oracle: Any) -> None:
    logits = oracle(path, list(TOKENS))[-1]
    states = oracle_states(GgufModel.open(str(path)))
    assert states.shape[0] == LAYERS + 1
    np.testing.assert_allclose(states[-1, 0], np.linalg.norm(logits), rtol=1e-4)
    np.testing.assert_allclose(states[-1, 1:], logits[:states.shape[1] - 1], atol=1e-4)


def test_a_sound_model_does_not_depart(path: Path, open_backend: Any) -> None:
    backend = open_backend(path)
    model = GgufModel.open(str(path))
    lines = list(probe(backend, model))
    assert len(lines) == LAYERS + 2
    assert lines[-1] == 'probe: no layer departs'
    ours, oracles = device_states(backend), oracle_states(model)
    np.testing.assert_allclose(ours[:, 0], oracles[:, 0], rtol=0.02)


@pytest.mark.parametrize('damaged', range(LAYERS))
@pytest.mark.parametrize('value', [9.0, np.nan])
def test_a_damaged_layer_is_named(
    path: Path, damaged: int, value: float, open_backend: Any
) -> None:
    backend = open_backend(path)
    norm = backend.loaded().weights.layers[damaged].ffn_norm
    backend.device.write(norm.data, np.full(norm.columns, value, np.float32).view(np.uint8))
    lines = list(probe(backend, GgufModel.open(str(path))))
    assert lines[-1] == f'probe: layer {damaged} departs first'


@pytest.mark.parametrize('on', [False, True])
def test_lines_come_with_the_progress_when_asked_for(path: Path, on: bool) -> None:
    told: list[str] = []
    config = EngineConfig(str(path), context_length=64, debug_probe=on)
    open_cuda_backend(
        GgufModel.open(str(path)), config, ShimDevice(), lambda part, step: told.append(step))
    lines = [line for line in told if line.startswith('probe')]
    assert bool(lines) == on
    if on:
        assert [line.split(':')[0] for line in lines] == [
            *(f'probe layer {index}' for index in range(LAYERS)), 'probe logits', 'probe']
