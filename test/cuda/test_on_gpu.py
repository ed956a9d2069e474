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

"""What only a GPU can show: real sizes by the numerics contract, memory, endurance."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from divergence import compare
from gguf import GGMLQuantizationType
import numpy as np
import pytest
from reflex_llm_ros.engine import Engine, EngineConfig, GenerateRequest, Message, SamplingParams
from reflex_llm_ros.engine.backends.cuda.opening import open_device
from reflex_llm_ros.engine.request import Done
from reflex_llm_ros.synthetic.model_shape import PRESETS
from reflex_llm_ros.synthetic.qwen3_gguf import generate

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures('gpu')]

POSITIONS = 160
CYCLES = 20
GENERATIONS = 200
MIXED_ROLES = (('attn_q', 'attn_k', 'attn_v', 'ffn_down'), ('attn_output', 'ffn_gate', 'ffn_up'))
"""Matrices in Q8_0, of even and of odd layers."""


@pytest.fixture
def make_device() -> Callable[..., Any]:
    """Return what makes a device: a GPU alone, as the shim is too slow for these sizes."""
    return partial(open_device, 0)


@pytest.fixture(scope='session')
def qwen3_600m_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a Qwen3 of the 0.6B sizes in the types of Q4_K_M."""
    path = tmp_path_factory.mktemp('models') / 'qwen3-0.6b-q4_k_m.gguf'
    generate(str(path), PRESETS['0.6b'], seed=4)
    return path


@pytest.fixture(scope='session')
def mixed_600m_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate the same sizes with Q8_0 among the types of Q4_K_M."""
    shape = PRESETS['0.6b']
    types = {f'blk.{block}.{role}.weight': GGMLQuantizationType.Q8_0
             for block in range(shape.block_count) for role in MIXED_ROLES[block % 2]}
    path = tmp_path_factory.mktemp('models') / 'qwen3-0.6b-mixed.gguf'
    generate(str(path), shape, types=types, seed=8)
    return path


def free_bytes() -> int:
    device = open_device(0)
    free = device.free_bytes()
    device.close()
    return free


@pytest.mark.parametrize('activations', ['fp16', 'a8x2'])
@pytest.mark.parametrize('name', ['qwen3_600m_path', 'mixed_600m_path', 'smollm2_path'])
def test_numerics_contract(
    name: str, activations: str, request: pytest.FixtureRequest, open_backend: Any, oracle: Any,
    rng: np.random.Generator
) -> None:
    path = request.getfixturevalue(name)
    tokens = [int(token) for token in rng.integers(0, 49152, POSITIONS)]
    settings = {'context_length': POSITIONS, 'gemv_activations': activations}
    backend = open_backend(path, **settings)
    logits = np.stack([
        backend.forward([token], position) for position, token in enumerate(tokens)])
    if activations == 'fp16':  # prefill and decode run the same sums
        prefilled = open_backend(path, **settings).forward(tokens, 0)
        np.testing.assert_array_equal(prefilled, logits[-1])
    divergence = compare(oracle(path, tokens), logits)
    print(f'{name} {activations}: {divergence}')
    assert divergence.mean_kl <= 1e-3
    assert divergence.wrong_ids == 0


def test_cycles_give_the_memory_back(qwen3_600m_path: Path) -> None:
    config = EngineConfig(str(qwen3_600m_path), backend='cuda', context_length=512)
    Engine(config).close()
    before = free_bytes()
    for _ in range(CYCLES):
        Engine(config).close()
    assert free_bytes() == before


def test_many_generations_leak_nothing_and_stay_the_same(
    qwen3_600m_path: Path, rng: np.random.Generator
) -> None:
    engine = Engine(EngineConfig(str(qwen3_600m_path), backend='cuda', context_length=1024))

    def answer(text: str, tokens: int, cancel_after: int | None = None) -> Done:
        asked = 0

        def cancelled() -> bool:
            nonlocal asked
            asked += 1
            return cancel_after is not None and asked > cancel_after

        *_, done = engine.generate(GenerateRequest(
            (Message('user', text),),
            sampling=SamplingParams(temperature=0.0, max_tokens=tokens)), cancelled)
        assert isinstance(done, Done)
        return done

    first = answer('What is on the table?', 48)
    # CUDA loads a kernel's code when it is first launched.
    free = engine.memory().free
    for _ in range(GENERATIONS):
        length = int(rng.integers(1, 64))
        words = ' '.join(str(number) for number in rng.integers(0, 1000, int(rng.integers(1, 99))))
        cancel_after = int(rng.integers(0, length + 4)) if rng.random() < 0.3 else None
        answer(words, length, cancel_after)
    assert answer('What is on the table?', 48).text == first.text
    assert engine.memory().free == free
    assert engine.counters() == {}
    engine.close()
