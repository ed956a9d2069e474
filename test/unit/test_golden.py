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

"""The forward pass against llama.cpp: what test/golden/make_goldens.py has kept of it."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops as ops
from reflex_llm_ros.engine.backends.reference import ReferenceBackend
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import PRESETS
from reflex_llm_ros.synthetic.qwen3_gguf import generate

GOLDEN = Path(__file__).resolve().parents[1] / 'golden'
SEED = 20
REMAKE = 'is not the file that the goldens are of: run test/golden/make_goldens.py'


class Case:
    """A model, as a file with exact weights and as a quantized one, and its goldens."""

    def __init__(self, name: str, exact: Path, quantized: Path) -> None:
        self.golden = np.load(GOLDEN / f'{name}.npz')
        self.models = {
            'exact': GgufModel.open(str(exact)), 'rounded': GgufModel.open(str(quantized))}
        assert hashlib.sha256(exact.read_bytes()).hexdigest() == self.golden['sha256'], (
            f'{exact} {REMAKE}')

    def sequences(self) -> list[list[int]]:
        return [self.golden['tokens_0'].tolist(), self.golden['tokens_1'].tolist()]

    def backend(self, kind: str, dtype: type) -> ReferenceBackend:
        return ReferenceBackend(
            self.models[kind], EngineConfig('', context_length=128), dtype=dtype)

    def every(self, logits: np.ndarray) -> np.ndarray:
        return logits[:, ::int(self.golden['stride'])]


@pytest.fixture(scope='module')
def smollm2(smollm2_path: Path) -> Case:
    return Case('smollm2', smollm2_path, smollm2_path)


@pytest.fixture(scope='module')
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp('golden')
    for mix in ('f32', 'q4_k_m'):
        generate(str(folder / mix), PRESETS['tiny'], mix=mix, seed=SEED)
    return Case('tiny_qwen3', folder / 'f32', folder / 'q4_k_m')


@pytest.fixture(scope='module', params=['smollm2', 'tiny_qwen3'])
def case(request: pytest.FixtureRequest) -> Case:
    return request.getfixturevalue(request.param)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize('dtype', [np.float64, np.float32])
def test_logits_are_those_of_llama_cpp(case, dtype):
    backend = case.backend('exact', dtype)
    for index, tokens in enumerate(case.sequences()):
        def golden(part, index=index):
            return case.golden[f'exact_{index}_{part}']

        logits = backend.forward_every(tokens, 0)
        # Both sum in float32: measured 1e-4 on logits up to 35.
        top = np.take_along_axis(logits, golden('top_ids').astype(np.int64), axis=-1)
        np.testing.assert_allclose(top, golden('top'), atol=1e-3)
        np.testing.assert_allclose(case.every(logits), golden('every'), atol=1e-3)
        highest = logits.max(axis=-1, keepdims=True)
        log_sum = np.log(np.exp(logits - highest).sum(axis=-1)) + highest[:, 0]
        np.testing.assert_allclose(log_sum, golden('log_sum'), atol=1e-3)
        likely, second = golden('top')[:, 0], golden('top')[:, 1]
        clear = likely - second > 0.05
        assert clear.sum() > len(tokens) / 2
        np.testing.assert_array_equal(
            logits.argmax(axis=-1)[clear], golden('top_ids')[clear, 0])


def round_to_int8(x: np.ndarray) -> np.ndarray:
    """Round every 32 activations to 127 levels of the largest, as llama.cpp does."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    return (np.rint(blocks / np.where(scale == 0, 1, scale)) * scale).reshape(x.shape)


def test_llama_cpp_differs_on_quantized_weights_as_int8_activations_do(case, monkeypatch):
    # float32 is exact beside noise of a few percent.
    backend = case.backend('rounded', np.float32)
    exact = [backend.forward_every(tokens, 0) for tokens in case.sequences()]
    linear = ops.linear
    monkeypatch.setattr(ops, 'linear', lambda x, weight: linear(round_to_int8(x), weight))
    for index, tokens in enumerate(case.sequences()):
        oracle = case.every(exact[index])
        theirs = distance(case.golden[f'rounded_{index}_every'], oracle)
        noise = distance(case.every(backend.forward_every(tokens, 0)), oracle)
        assert noise / 2 < theirs < 2 * noise, (theirs, noise)


def test_greedy_tokens_are_those_of_llama_cpp(tiny_qwen3):
    streams = json.loads((GOLDEN / 'tiny_qwen3_greedy.json').read_text())
    backend = tiny_qwen3.backend('exact', np.float32)
    for stream in streams:
        prompt, ids = stream['prompt_ids'], []
        ids.append(int(backend.forward(prompt, 0).argmax()))
        tokens = backend.stream(ids[0], len(prompt), True, lambda logits: int(logits.argmax()))
        while len(ids) < len(stream['ids']):
            ids.append(next(tokens))
        assert ids == stream['ids']
