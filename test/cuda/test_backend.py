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

"""The CUDA backend against the oracle: prefill, decode, every type, both caches."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from divergence import compare
from gguf import GGMLQuantizationType
import numpy as np
import pytest
from reflex_llm_ros.engine.backends.base import no_plan
from reflex_llm_ros.engine.backends.cuda.buffers import ATTENTION_CHUNK
from reflex_llm_ros.engine.backends.cuda.weights import MATRIX_TYPES
from reflex_llm_ros.engine.config import FastPaths, SamplingParams
from reflex_llm_ros.engine.errors import DeviceError, EngineError
from reflex_llm_ros.engine.sampler import Sampler
from reflex_llm_ros.synthetic.model_shape import ModelShape, TINY
from reflex_llm_ros.synthetic.qwen3_gguf import generate
from shim_device import CountingDevice, TABLE_BYTES

TOKENS = 34


def never(logits: np.ndarray) -> int:
    raise AssertionError('a greedy stream chooses on the device')


def kl_divergence(oracle: np.ndarray, logits: np.ndarray) -> float:
    """KL(oracle || logits) in nats, of logits (V,)."""
    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        x = x - x.max()
        return x - np.log(np.exp(x).sum())

    p, q = log_softmax(oracle), log_softmax(logits)
    return float(np.sum(np.exp(p) * (p - q)))


@pytest.fixture(scope='session')
def tiny_llama_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a llama of odd sizes with every type of 32 weights a block."""
    shape = ModelShape(
        block_count=2, embedding_length=96, feed_forward_length=160, head_count=3,
        head_count_kv=1, head_dim=32, vocab_size=0, context_length=512)
    names = ('attn_q', 'attn_k', 'attn_v', 'attn_output', 'ffn_gate', 'ffn_up', 'ffn_down')
    kinds = GGMLQuantizationType
    types = {
        'token_embd.weight': kinds.BF16,
        **dict(zip(
            (f'blk.0.{name}.weight' for name in names),
            (kinds.Q4_0, kinds.Q4_1, kinds.Q5_0, kinds.Q5_1, kinds.Q8_0, kinds.F16, kinds.F32),
            strict=True)),
        **{f'blk.1.{name}.weight': kinds.Q8_0 for name in names},
    }
    path = tmp_path_factory.mktemp('models') / 'tiny-llama.gguf'
    generate(str(path), shape, architecture='llama', mix='f16', types=types, seed=3)
    return path


@pytest.fixture(params=['tiny_qwen3_path', 'tiny_llama_path'])
def model_path(request: pytest.FixtureRequest) -> Path:
    """Each of the generated models."""
    return request.getfixturevalue(request.param)


def random_tokens(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, 256, count)]


@pytest.mark.parametrize('kv_cache', ['f16', 'int8'])
def test_prefill_agrees_with_the_oracle(
    model_path: Path, kv_cache: str, open_backend: Any, oracle: Any, rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, TOKENS)
    backend = open_backend(model_path, kv_cache=kv_cache)
    logits = backend.forward(tokens, 0)
    divergence = kl_divergence(oracle(model_path, tokens)[-1], logits)
    assert divergence <= (1e-3 if kv_cache == 'f16' else 1e-2)


@pytest.mark.parametrize('kv_cache', ['f16', 'int8'])
def test_batches_equal_single_tokens_to_the_bit(
    model_path: Path, kv_cache: str, open_backend: Any, rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, TOKENS)
    batched = open_backend(model_path, kv_cache=kv_cache).forward(tokens, 0)
    single = open_backend(model_path, kv_cache=kv_cache)
    for position, token in enumerate(tokens):
        logits = single.forward([token], position)
    np.testing.assert_array_equal(batched, logits)


@pytest.mark.parametrize('kv_cache', ['f16', 'int8'])
def test_batches_equal_single_tokens_beyond_a_chunk(
    tiny_llama_path: Path, kv_cache: str, open_backend: Any, rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, ATTENTION_CHUNK + 2)
    backend = open_backend(tiny_llama_path, kv_cache=kv_cache, context_length=len(tokens))
    batched = backend.forward(tokens, 0)
    for position in range(ATTENTION_CHUNK - 1, len(tokens)):
        logits = backend.forward([tokens[position]], position)
    np.testing.assert_array_equal(batched, logits)


def test_greedy_stream_is_the_argmax_of_forward(
    model_path: Path, open_backend: Any, rng: np.random.Generator
) -> None:
    prompt = random_tokens(rng, 5)
    backend = open_backend(model_path)
    token = int(np.argmax(backend.forward(prompt, 0)))
    expected, position = [token], len(prompt)
    while len(expected) < 12:
        expected.append(int(np.argmax(backend.forward(expected[-1:], position))))
        position += 1
    stream = backend.stream(token, len(prompt), True, never)
    assert [next(stream) for _ in range(11)] == expected[1:]


def test_stream_reaches_the_last_position(tiny_qwen3_path: Path, open_backend: Any) -> None:
    backend = open_backend(tiny_qwen3_path, context_length=8)
    stream = backend.stream(1, 0, True, never)
    assert len([next(stream) for _ in range(8)]) == 8


def test_sampled_stream_feeds_choices_back(tiny_qwen3_path: Path, open_backend: Any) -> None:
    backend = open_backend(tiny_qwen3_path)
    choices = iter([7, 8, 9, 10])
    seen = []

    def choose(logits: np.ndarray) -> int:
        seen.append(logits)
        return next(choices)

    stream = backend.stream(6, 0, False, choose)
    assert [next(stream) for _ in range(4)] == [7, 8, 9, 10]
    np.testing.assert_array_equal(seen[-1], backend.forward([6, 7, 8, 9], 0))


@pytest.mark.parametrize('params', [
    SamplingParams(seed=5, temperature=1.5, top_k=40, min_p=0.0),
    SamplingParams(seed=6, temperature=0.0, repeat_penalty=1.3),
])
def test_sampling_on_the_device_is_the_hosts(
    params: SamplingParams, tiny_qwen3_path: Path, open_backend: Any, rng: np.random.Generator
) -> None:
    backend = open_backend(tiny_qwen3_path, context_length=128)
    prompt = random_tokens(rng, 70)

    def text(on_device: bool) -> list[int]:
        sampler, history = Sampler(params), list(prompt)

        def choose(logits: np.ndarray) -> int:
            return sampler(logits, history, len(history) - len(prompt))

        history.append(choose(backend.forward(prompt, 0)))
        stream = backend.stream(
            history[-1], len(prompt), False, never if on_device else choose,
            (lambda most: sampler.plan(history, 1, most)) if on_device else no_plan)
        for _ in range(20):
            history.append(next(stream))
        return history

    assert text(True) == text(False)


@pytest.mark.parametrize('failing', [0, 1, 5])
def test_sampling_goes_on_by_the_host_when_the_kernel_fails(
    failing: int, tiny_qwen3_path: Path, open_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(seed=7, temperature=1.5, top_k=40, min_p=0.0)
    backend = open_backend(tiny_qwen3_path)

    def text() -> list[int]:
        sampler, history = Sampler(params), [3]
        stream = backend.stream(
            3, 0, False, lambda logits: sampler(logits, history, len(history)),
            lambda most: sampler.plan(history, len(history), most))
        for _ in range(10):
            history.append(next(stream))
        return history

    expected = text()
    launch, launched = backend.loaded().sampling.launch, []

    def fail_once(position: int) -> None:
        if len(launched) == failing:
            raise DeviceError('injected')
        launched.append(position)
        launch(position)

    monkeypatch.setattr(backend.loaded().sampling, 'launch', fail_once)
    assert text() == expected
    assert backend.counters() == {'fallback sample': 1}
    assert text() == expected
    assert len(launched) == failing


def test_logits_that_are_no_numbers_end_a_sampled_stream(
    tiny_qwen3_path: Path, open_backend: Any
) -> None:
    backend = open_backend(tiny_qwen3_path)
    norm = backend.loaded().weights.output_norm.data
    damaged = np.full(norm.nbytes, 0xff, np.uint8)  # NaN as a float of any size
    backend.device.write(norm, damaged.view(norm.dtype).reshape(norm.shape))
    sampler = Sampler(SamplingParams())
    stream = backend.stream(3, 0, False, never, lambda most: sampler.plan([3], 1, most))
    with pytest.raises(EngineError, match='^logits are NaN or infinite'):
        next(stream)


def test_rewriting_a_position_forgets_what_followed(
    tiny_qwen3_path: Path, open_backend: Any, rng: np.random.Generator
) -> None:
    first, second = random_tokens(rng, 20), random_tokens(rng, 10)
    backend = open_backend(tiny_qwen3_path)
    backend.forward(first, 0)
    reused = backend.forward(second, 6)
    fresh = open_backend(tiny_qwen3_path).forward(first[:6] + second, 0)
    np.testing.assert_array_equal(reused, fresh)


@pytest.mark.parametrize('weights', ['device', 'mapped'])
def test_placements_give_the_same_logits(
    weights: str, tiny_qwen3_path: Path, open_backend: Any
) -> None:
    logits = open_backend(tiny_qwen3_path, weights=weights).forward([1, 2, 3], 0)
    expected = open_backend(tiny_qwen3_path, weights='auto').forward([1, 2, 3], 0)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize('weights', ['device', 'mapped'])
def test_a_matrix_of_a_type_without_kernels_is_converted_within_the_plan(
    weights: str, tmp_path: Path, open_backend: Any, oracle: Any, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(MATRIX_TYPES, GGMLQuantizationType.Q5_1)
    path = tmp_path / 'other.gguf'
    generate(
        str(path), TINY, types={'blk.0.ffn_down.weight': GGMLQuantizationType.Q5_1}, seed=9)
    tokens = random_tokens(rng, 5)
    device = CountingDevice()
    device.info = replace(device.info, integrated=False)
    backend = open_backend(path, device, weights=weights)
    assert 'blk.0.ffn_down.weight has the type Q5_1' in caplog.text
    memory = backend.memory()
    assert device.allocated <= memory.weights + memory.kv_cache + memory.scratch + TABLE_BYTES
    divergence = compare(oracle(path, tokens), np.stack([
        backend.forward([token], at) for at, token in enumerate(tokens)]))
    assert divergence.mean_kl <= 1e-3


def test_graph_and_eager_streams_are_identical(
    model_path: Path, open_backend: Any, rng: np.random.Generator
) -> None:
    token = random_tokens(rng, 1)[0]
    streams = []
    for graph in (True, False):
        backend = open_backend(model_path, fast=FastPaths(cuda_graph=graph))
        stream = backend.stream(token, 0, True, never)
        streams.append([next(stream) for _ in range(12)])
    assert streams[0] == streams[1]


def test_longest_context_that_is_allowed_stays_within_its_memory(
    tmp_path: Path, open_backend: Any
) -> None:
    shape = ModelShape(
        block_count=1, embedding_length=64, feed_forward_length=64, head_count=16,
        head_count_kv=1, head_dim=32, vocab_size=0, context_length=1 << 20)
    path = tmp_path / 'long.gguf'
    generate(str(path), shape, mix='f16', seed=4)
    backend = open_backend(path, context_length=0, memory_limit_mb=5, weights='device')
    memory = backend.memory()
    assert backend.context_length > 2 * ATTENTION_CHUNK
    assert 0.95 * 5 * 2**20 < memory.weights + memory.kv_cache + memory.scratch <= 5 * 2**20


def test_closing_frees_the_device(
    tiny_qwen3_path: Path, make_device: Callable[..., Any], open_backend: Any
) -> None:
    backend = open_backend(tiny_qwen3_path, make_device())
    backend.close()
    backend.close()
    assert backend.memory().weights == 0
