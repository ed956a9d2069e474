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

"""The reference backend: its two precisions, its cache, its memory."""

from collections.abc import Callable
import itertools
from pathlib import Path

import gguf
import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference
from reflex_llm_ros.engine.backends.reference import ReferenceBackend
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.errors import EngineError, OutOfMemoryError
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import ModelShape
from reflex_llm_ros.synthetic.qwen3_gguf import generate

# Head groups of 3, a head size that is not E / H, a separate output matrix.
ODD = ModelShape(
    block_count=3, embedding_length=96, feed_forward_length=160, head_count=6, head_count_kv=2,
    head_dim=32, vocab_size=0, tied_output=False, context_length=512)

Load = Callable[..., ReferenceBackend]


@pytest.fixture(scope='module', params=['qwen3', 'llama'])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    path = str(tmp_path_factory.mktemp('models') / 'odd.gguf')
    generate(path, ODD, architecture=request.param, seed=7)
    return GgufModel.open(path)


@pytest.fixture
def load(model: GgufModel) -> Load:
    def load(dtype=np.float32, **config):
        return ReferenceBackend(
            model, EngineConfig('', **{'context_length': 64, **config}), dtype=dtype)
    return load


def some_tokens(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, 250, count).tolist()


def one_by_one(backend: ReferenceBackend, tokens: list[int]) -> np.ndarray:
    return np.stack([
        backend.forward_every([token], position)[0] for position, token in enumerate(tokens)])


@pytest.mark.parametrize('dtype, tolerance', [(np.float64, 1e-11), (np.float32, 1e-4)])
def test_a_batch_and_single_tokens_give_the_same_logits(rng, load, dtype, tolerance):
    tokens = some_tokens(rng, 20)
    single = one_by_one(load(dtype), tokens)
    np.testing.assert_allclose(load(dtype).forward_every(tokens, 0), single, atol=tolerance)
    # In chunks, as prompts are prefilled, and the last position's logits alone.
    chunked = load(dtype)
    for start, end in itertools.pairwise((0, 7, 8, 20)):
        last = chunked.forward(tokens[start:end], start)
        assert last.dtype == np.float32
        np.testing.assert_allclose(last, single[end - 1], atol=max(tolerance, 1e-5))


def test_float32_follows_the_oracle(rng, load):
    tokens = some_tokens(rng, 40)
    exact = load(np.float64).forward_every(tokens, 0)
    fast = load().forward_every(tokens, 0)
    assert exact.dtype == np.float64 and fast.dtype == np.float32
    assert 2 < exact.std() < 5, 'logits too flat to tell anything'
    assert np.linalg.norm(fast - exact) / np.linalg.norm(exact) < 1e-5


def test_the_oracle_is_the_formula(rng, model, load):
    """One position at a time, with nothing of the backend but the rotary frequencies."""
    sizes = model.config
    weights = {
        name: gguf.dequantize(tensor.data, tensor.type).astype(float)
        for name, tensor in model.tensors.items()}
    share = sizes.head_count // sizes.head_count_kv

    def norm(x, name):
        weight = weights[name].reshape(-1)
        return x / np.sqrt((x * x).sum(-1, keepdims=True) / x.shape[-1] + sizes.rms_eps) * weight

    def turn(x, position):
        pairs = x.reshape(len(x), -1, 2) if sizes.rope.pairing == 'adjacent' else (
            x.reshape(len(x), 2, -1).transpose(0, 2, 1))
        angles = position * sizes.rope.frequencies
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
        pairs = np.stack([turned.real, turned.imag], axis=-1)
        if sizes.rope.pairing == 'half':
            pairs = pairs.transpose(0, 2, 1)
        return pairs.reshape(x.shape)

    tokens = some_tokens(rng, 6)
    keys, values = [[[] for _ in range(sizes.block_count)] for _ in range(2)]
    logits = []
    for position, token in enumerate(tokens):
        x = weights['token_embd.weight'][token]
        for index in range(sizes.block_count):
            block = f'blk.{index}.'
            h = norm(x, block + 'attn_norm.weight')
            q, k, v = (
                (weights[f'{block}attn_{kind}.weight'] @ h).reshape(-1, sizes.head_dim)
                for kind in 'qkv')
            if sizes.qk_norm:
                q, k = norm(q, block + 'attn_q_norm.weight'), norm(k, block + 'attn_k_norm.weight')
            keys[index].append(turn(k, position))
            values[index].append(v)
            q = turn(q, position)
            mixed = []
            for head in range(sizes.head_count):
                scores = np.exp([
                    q[head] @ key[head // share] / sizes.head_dim ** 0.5 for key in keys[index]])
                mixed.append(sum(
                    score / scores.sum() * value[head // share]
                    for score, value in zip(scores, values[index], strict=True)))
            x = x + weights[block + 'attn_output.weight'] @ np.concatenate(mixed)
            h = norm(x, block + 'ffn_norm.weight')
            gate = weights[block + 'ffn_gate.weight'] @ h
            up = weights[block + 'ffn_up.weight'] @ h
            x = x + weights[block + 'ffn_down.weight'] @ (gate / (1 + np.exp(-gate)) * up)
        logits.append(weights['output.weight'] @ norm(x, 'output_norm.weight'))

    np.testing.assert_allclose(load(np.float64).forward_every(tokens, 0), logits, atol=1e-11)


def test_writing_at_a_position_forgets_what_stood_there_and_after(rng, load):
    tokens, others = some_tokens(rng, 12), some_tokens(rng, 5)
    used, fresh = load(np.float64), load(np.float64)
    used.forward(tokens, 0)
    np.testing.assert_allclose(
        used.forward(others, 4), fresh.forward(tokens[:4] + others, 0), atol=1e-6)


def test_the_cache_can_be_filled_to_the_last_position(rng, load):
    tokens = some_tokens(rng, 16)
    full, roomy = load(np.float64, context_length=16), load(np.float64)
    np.testing.assert_array_equal(full.forward(tokens, 0), roomy.forward(tokens, 0))


def test_an_int8_cache_costs_little_accuracy_and_a_quarter_of_the_memory(rng, load):
    tokens = some_tokens(rng, 40)
    exact = load(np.float64).forward_every(tokens, 0)
    small = load(kv_cache='int8')
    error = np.linalg.norm(one_by_one(small, tokens) - exact) / np.linalg.norm(exact)
    # Rounding to 127 levels of a head's largest element is off by some 0.6% of its norm.
    assert 1e-4 < error < 2e-2
    batched = load(kv_cache='int8').forward_every(tokens, 0)
    assert np.linalg.norm(batched - exact) / np.linalg.norm(exact) < 2e-2
    assert small.memory().kv_cache < 0.3 * load().memory().kv_cache


def test_stream_feeds_each_token_back(rng, load):
    tokens = some_tokens(rng, 5)
    streamed, stepped = load(np.float64), load(np.float64)

    def second_likeliest(logits):
        return int(np.argsort(logits)[-2])

    token = second_likeliest(streamed.forward(tokens, 0))
    assert token == second_likeliest(stepped.forward(tokens, 0))
    stream = streamed.stream(token, 5, False, second_likeliest)
    for position in range(5, 15):
        expected = second_likeliest(stepped.forward([token], position))
        token = next(stream)
        assert token == expected
    stream.close()


def test_memory_is_what_the_sizes_say(model, load):
    report = load(context_length=48).memory()
    weights = sum(int(np.prod(tensor.shape)) for tensor in model.tensors.values())
    assert report.weights == 4 * weights
    assert report.kv_cache == 4 * 2 * 3 * 48 * 2 * 32
    assert 0 < report.scratch < report.weights
    assert report.free > 0


def test_a_context_of_zero_is_the_models_own(load):
    assert load(context_length=0).context_length == 512


def test_too_little_memory_is_found_before_anything_is_allocated(load, monkeypatch):
    monkeypatch.setattr(reference, 'KvCache', None)
    monkeypatch.setattr(reference, 'ReferenceWeights', None)
    with pytest.raises(OutOfMemoryError, match='memory_limit_mb'):
        load(memory_limit_mb=1)


def test_progress_rises_to_one(model):
    seen = []
    ReferenceBackend(
        model, EngineConfig('', context_length=8), lambda done, phrase: seen.append(done))
    assert seen == sorted(seen) and seen[0] < 0.5 and seen[-1] == 1


def test_a_closed_backend_holds_nothing_and_says_so(load):
    backend = load()
    backend.close()
    backend.close()
    assert backend.memory().weights == backend.memory().kv_cache == 0
    with pytest.raises(EngineError, match='closed'):
        backend.forward([1], 0)


def test_the_file_may_go_once_the_weights_are_loaded(rng, tiny_qwen3_path: Path):
    tokens = some_tokens(rng, 5)
    model = GgufModel.open(str(tiny_qwen3_path))
    backend = ReferenceBackend(model, EngineConfig('', context_length=8))
    before = backend.forward(tokens, 0)
    model.close()
    assert tiny_qwen3_path.name not in Path('/proc/self/maps').read_text()
    np.testing.assert_array_equal(backend.forward(tokens, 0), before)
