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

"""The persistent decode kernel in the backend: against the oracle, and when it does not run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType
import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda import persistent
from reflex_llm_ros.engine.backends.cuda.load_plan import make_plan, PACKED
from reflex_llm_ros.engine.backends.cuda.packed import STEP_BYTES
from reflex_llm_ros.engine.backends.cuda.persistent import CLOCKED, PersistentDecode, PHASES
from reflex_llm_ros.engine.config import EngineConfig, FastPaths
from reflex_llm_ros.engine.errors import EngineError
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import ModelShape
from reflex_llm_ros.synthetic.qwen3_gguf import generate
from shim_device import CountingDevice, ShimDevice, TABLE_BYTES
from test_backend import kl_divergence, never
import yaml

SHAPE = ModelShape(
    block_count=2, embedding_length=512, feed_forward_length=1024, head_count=4,
    head_count_kv=2, head_dim=128, vocab_size=512, context_length=256)
REPOSITORY = Path(__file__).resolve().parents[2]
MOST_DIVERGENCE = {'a8': 5e-2, 'a8x2': 1e-3}


@pytest.fixture(scope='session')
def wide_qwen3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a Qwen3 in Q4_K_M that the persistent kernel can run."""
    path = tmp_path_factory.mktemp('models') / 'wide-qwen3.gguf'
    generate(str(path), SHAPE, seed=5)
    return path


@pytest.fixture(scope='session')
def every_type_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a Qwen3 with a matrix of every type that has a packed layout."""
    kinds = GGMLQuantizationType
    groups = {
        'attn_q': kinds.Q5_K, 'attn_k': kinds.Q5_K, 'attn_v': kinds.Q8_0,
        'attn_output': kinds.Q4_0, 'ffn_gate': kinds.Q4_1, 'ffn_up': kinds.Q4_1,
        'ffn_down': kinds.Q5_0}
    types = {f'blk.0.{name}.weight': kind for name, kind in groups.items()}
    types['blk.1.attn_output.weight'] = kinds.Q5_1
    path = tmp_path_factory.mktemp('models') / 'every-type.gguf'
    generate(str(path), SHAPE, types=types, seed=6)
    return path


@pytest.fixture(scope='session')
def long_rows_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a Qwen3 whose longest rows are more than a block quantizes at once."""
    path = tmp_path_factory.mktemp('models') / 'long-rows.gguf'
    generate(str(path), replace(SHAPE, block_count=1, feed_forward_length=12800), seed=8)
    return path


@pytest.fixture(params=[1, 3])
def device(request: pytest.FixtureRequest, make_device: Callable[..., Any]) -> Any:
    """Return a device with the shared memory of one; the shim's runs 1 block or 3 together."""
    device = make_device()
    if device.info.name == 'host shim':
        device.info = replace(
            device.info, multiprocessors=request.param, shared_bytes=163 << 10)
    elif request.param > 1:
        pytest.skip('a GPU has its own count of multiprocessors')
    return device


@pytest.mark.parametrize('name, activations, kv_cache', [
    ('wide_qwen3_path', 'a8', 'f16'), ('wide_qwen3_path', 'a8x2', 'f16'),
    ('wide_qwen3_path', 'a8x2', 'int8'), ('every_type_path', 'a8x2', 'f16'),
    ('long_rows_path', 'a8x2', 'f16')])
def test_decoding_agrees_with_the_oracle(
    name: str, activations: str, kv_cache: str, request: pytest.FixtureRequest, device: Any,
    open_backend: Any, oracle: Any, rng: np.random.Generator
) -> None:
    path = request.getfixturevalue(name)
    tokens = [int(token) for token in rng.integers(0, SHAPE.vocab_size, 12)]
    backend = open_backend(
        path, device, gemv_activations=activations, q8_activations=activations,
        kv_cache=kv_cache)
    assert isinstance(backend.loaded().decode, PersistentDecode)
    backend.forward(tokens[:6], 0)
    expected = oracle(path, tokens, kv_cache)
    divergences = [
        kl_divergence(expected[position], backend.forward(tokens[position:position + 1], position))
        for position in range(6, len(tokens))]
    assert np.mean(divergences) <= MOST_DIVERGENCE[activations]
    assert backend.counters() == {}


def test_stream_is_the_argmax_of_forward_and_repeats(
    wide_qwen3_path: Path, device: Any, open_backend: Any, rng: np.random.Generator
) -> None:
    backend = open_backend(wide_qwen3_path, device)
    token, expected = int(rng.integers(0, SHAPE.vocab_size)), []
    for position in range(6):
        logits = backend.forward(([token] + expected)[-1:], position)
        expected.append(int(np.argmax(logits)))
    for _ in range(2):
        stream = backend.stream(token, 0, True, never)
        assert [next(stream) for _ in range(6)] == expected


def test_a_kernel_that_counts_its_cycles_computes_the_same(
    wide_qwen3_path: Path, device: Any, open_backend: Any, rng: np.random.Generator
) -> None:
    tokens = [int(token) for token in rng.integers(0, SHAPE.vocab_size, 6)]
    backend = open_backend(wide_qwen3_path, device)
    decode = backend.loaded().decode

    def logits() -> list[np.ndarray]:
        return [backend.forward([token], place) for place, token in enumerate(tokens)]

    expected = logits()
    with decode.clocked() as counts:
        np.testing.assert_array_equal(logits(), expected)
        first = device.download(counts)
        np.testing.assert_array_equal(logits(), expected)
        both = device.download(counts)
    np.testing.assert_array_equal(logits(), expected)
    np.testing.assert_array_equal(device.download(counts), both)
    assert backend.counters() == {}

    assert (both >= first).all()
    nanoseconds = first[:, -1]
    assert (nanoseconds > 0).all()
    first, both = (counts[:, :-1].reshape(-1, len(CLOCKED), len(PHASES))
                   for counts in (first, both))
    assert len(first) == device.info.multiprocessors
    cycles = first.sum(axis=0)
    attention = CLOCKED.index('attention')
    # Nothing is quantized for attention; every other phase there is.
    assert cycles[attention, PHASES.index('quantize')] == 0
    assert np.count_nonzero(cycles) == cycles.size - 1
    if device.info.name != 'host shim':
        assert (0.1 < first.sum(axis=(1, 2)) / nanoseconds).all()  # GHz
        assert (first.sum(axis=(1, 2)) / nanoseconds < 10).all()
        return
    # There the clock moves by the same whenever it is read: a layer's stage once a layer.
    wait = first[:, :, PHASES.index('wait')]
    once = wait[:, CLOCKED.index('head')]
    for name in ('query, key, value', 'attention output', 'gate, up', 'down'):
        np.testing.assert_array_equal(wait[:, CLOCKED.index(name)], SHAPE.block_count * once)
    assert wait[:, attention].sum() == SHAPE.block_count * SHAPE.head_count_kv * once[0]
    np.testing.assert_array_equal(both, 2 * first)


@pytest.mark.parametrize('kv_cache', ['f16', 'int8'])
def test_launches_take_over_where_the_kernel_fails(
    kv_cache: str, wide_qwen3_path: Path, device: Any, open_backend: Any
) -> None:
    if device.info.name != 'host shim':
        pytest.skip('only the shim can be told to fail')
    backend = open_backend(wide_qwen3_path, device, kv_cache=kv_cache)
    stream = backend.stream(3, 0, True, never)
    ids = [next(stream) for _ in range(2)]
    device.failing.add('decode_step')
    ids += [next(stream) for _ in range(4)]
    assert backend.counters() == {'fallback decode': 1}
    assert len(ids) == 6 and all(0 <= token < SHAPE.vocab_size for token in ids)
    launches = open_backend(wide_qwen3_path, gemv_activations='fp16', kv_cache=kv_cache)
    assert launches.loaded().decode is not backend.loaded().decode
    logits = launches.forward([3, *ids[:5]], 0)
    assert ids[5] == int(np.argmax(logits))


@pytest.mark.parametrize('settings', [
    {'gemv_activations': 'fp16'}, {'weights': 'mapped'}, {'weights': 'device'},
    {'fast': FastPaths(attn=False)}])
def test_what_it_cannot_run_is_left_to_launches(
    settings: dict, wide_qwen3_path: Path, device: Any, open_backend: Any
) -> None:
    backend = open_backend(wide_qwen3_path, device, **settings)
    assert not isinstance(backend.loaded().decode, PersistentDecode)


def test_the_ring_leaves_what_it_can_to_the_cache(
    wide_qwen3_path: Path, open_backend: Any
) -> None:
    needed = []
    for shared_bytes in (163 << 10, 227 << 10):
        device = ShimDevice()
        device.info = replace(device.info, multiprocessors=1, shared_bytes=shared_bytes)
        decode = open_backend(wide_qwen3_path, device).loaded().decode
        assert isinstance(decode, PersistentDecode)
        needed.append(decode.shared_bytes)
    assert needed[0] == needed[1] <= 163 << 10


def test_the_shallowest_ring_decodes_the_same(
    wide_qwen3_path: Path, open_backend: Any, monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator
) -> None:
    monkeypatch.setattr(persistent, 'SMALLEST_SHARED_BYTES', 0)
    tokens = [int(token) for token in rng.integers(0, SHAPE.vocab_size, 3)]
    logits, needed = [], []
    for shared_bytes in (512 << 10, 80 << 10):
        device = ShimDevice()
        device.info = replace(device.info, multiprocessors=2, shared_bytes=shared_bytes)
        backend = open_backend(wide_qwen3_path, device)
        needed.append(backend.loaded().decode.shared_bytes)
        logits.append([backend.forward([token], place) for place, token in enumerate(tokens)])
        assert backend.counters() == {}
    assert needed[0] - needed[1] == 12 * STEP_BYTES['q6k']  # of four steps
    np.testing.assert_array_equal(logits[0], logits[1])


@pytest.mark.parametrize(
    'file', sorted((REPOSITORY / 'config').glob('orin_*.yaml')), ids=lambda file: file.name)
def test_it_runs_with_the_settings_for_an_orin(
    file: Path, wide_qwen3_path: Path, device: Any, open_backend: Any
) -> None:
    parameters = yaml.safe_load(file.read_text())['/**']['ros__parameters']
    assert not {'model.weights', 'gemv.activations'} & set(parameters)
    backend = open_backend(wide_qwen3_path, device, kv_cache=parameters['context.kv_cache'])
    assert isinstance(backend.loaded().decode, PersistentDecode)


def test_weights_are_held_once_and_what_is_allocated_was_planned(
    wide_qwen3_path: Path, open_backend: Any
) -> None:
    device = CountingDevice()
    device.info = replace(device.info, multiprocessors=1, shared_bytes=163 << 10)
    backend = open_backend(wide_qwen3_path, device)
    assert isinstance(backend.loaded().decode, PersistentDecode)
    memory = backend.memory()
    assert device.allocated <= memory.weights + memory.kv_cache + memory.scratch + TABLE_BYTES
    assert memory.weights == open_backend(
        wide_qwen3_path, gemv_activations='fp16').memory().weights


@pytest.mark.parametrize('name', ['wide_qwen3_path', 'every_type_path'])
def test_prefill_equals_that_of_the_files_blocks_to_the_bit(
    name: str, request: pytest.FixtureRequest, device: Any, open_backend: Any,
    rng: np.random.Generator
) -> None:
    path = request.getfixturevalue(name)
    tokens = [int(token) for token in rng.integers(0, SHAPE.vocab_size, 5)]
    packed = open_backend(path, device)
    assert isinstance(packed.loaded().decode, PersistentDecode)
    blocks = open_backend(path, gemv_activations='fp16', weights='device')
    np.testing.assert_array_equal(packed.forward(tokens, 0), blocks.forward(tokens, 0))


@pytest.fixture(scope='session')
def q8_qwen3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a Qwen3 in Q8_0 with an output matrix of its own."""
    path = tmp_path_factory.mktemp('models') / 'wide-q8.gguf'
    generate(str(path), replace(SHAPE, tied_output=False), mix='q8_0', seed=7)
    return path


@pytest.mark.parametrize('activations', ['a8', 'a8x2'])
def test_q8_decoding_agrees_with_the_oracle_and_prefill_with_planes(
    activations: str, q8_qwen3_path: Path, device: Any, open_backend: Any, oracle: Any,
    rng: np.random.Generator
) -> None:
    tokens = [int(token) for token in rng.integers(0, SHAPE.vocab_size, 8)]
    backend = open_backend(q8_qwen3_path, device, q8_activations=activations)
    assert isinstance(backend.loaded().decode, PersistentDecode)
    planes = open_backend(
        q8_qwen3_path, q8_activations=activations, fast=FastPaths(cuda_graph=False))
    np.testing.assert_array_equal(
        backend.forward(tokens[:4], 0), planes.forward(tokens[:4], 0))
    expected = oracle(q8_qwen3_path, tokens)
    divergences = [
        kl_divergence(expected[position], backend.forward(tokens[position:position + 1], position))
        for position in range(4, len(tokens))]
    assert np.mean(divergences) <= MOST_DIVERGENCE[activations]
    assert backend.counters() == {}


@pytest.mark.parametrize('name, settings, activations', [
    ('q8_qwen3_path', {'q8_activations': 'a8', 'gemv_activations': 'fp16'}, 'a8'),
    ('q8_qwen3_path', {'q8_activations': 'f32'}, ''),
    ('wide_qwen3_path', {'q8_activations': 'f32', 'gemv_activations': 'a8'}, 'a8'),
    ('every_type_path', {'q8_activations': 'a8x2', 'gemv_activations': 'a8x2'}, 'a8x2'),
    ('every_type_path', {'q8_activations': 'a8', 'gemv_activations': 'a8x2'}, '')])
def test_each_type_follows_its_parameter(
    name: str, settings: dict, activations: str, request: pytest.FixtureRequest
) -> None:
    device = ShimDevice()
    device.info = replace(device.info, shared_bytes=163 << 10)
    path = request.getfixturevalue(name)
    plan = make_plan(
        device, GgufModel.open(str(path)), EngineConfig(str(path), **settings), FastPaths())
    assert plan.activations == activations
    assert (plan.placement == PACKED) == bool(activations)


def test_what_cannot_be_packed_is_refused_where_that_is_asked_for(
    wide_qwen3_path: Path, device: Any, open_backend: Any
) -> None:
    with pytest.raises(EngineError, match='weights cannot be packed: activations are fp16'):
        open_backend(wide_qwen3_path, device, weights='packed', gemv_activations='fp16')
