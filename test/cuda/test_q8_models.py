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

"""Whole models on Q8_0 planes: against the oracle, fused against separate, off and failing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from divergence import compare
from gguf import GGMLQuantizationType
import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda import q8_choice
from reflex_llm_ros.engine.backends.cuda.q8_activations import KINDS, q8_buffer_bytes
from reflex_llm_ros.engine.backends.cuda.q8_choice import Choice
from reflex_llm_ros.engine.backends.cuda.q8_steps import KERNEL_FILES
from reflex_llm_ros.engine.backends.cuda.q8_weights import split_names
from reflex_llm_ros.engine.config import FastPaths
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import ModelShape
from reflex_llm_ros.synthetic.qwen3_gguf import generate
from shim_device import CountingDevice, ShimDevice, TABLE_BYTES

TOKENS = 7
MEAN_KL = {'a8': 1e-2, 'a8x2': 1e-3, 'f32': 1e-3}
FUSED = ('q8_qkv', 'q8_add_norm', 'q8_gate_up', 'q8_head')

pytestmark = pytest.mark.usefixtures('short_chunks')
every_kind = pytest.mark.parametrize('kind', sorted(KINDS))


@pytest.fixture(scope='session')
def llama_q8_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a llama with an output matrix of its own and rows that are taken in chunks."""
    shape = ModelShape(
        block_count=2, embedding_length=96, feed_forward_length=1056, head_count=3,
        head_count_kv=1, head_dim=32, vocab_size=0, context_length=128, tied_output=False)
    path = tmp_path_factory.mktemp('models') / 'llama-q8_0.gguf'
    generate(str(path), shape, architecture='llama', mix='q8_0', seed=6)
    return path


@pytest.fixture(params=['small_q8_path', 'llama_q8_path'])
def q8_path(request: pytest.FixtureRequest) -> Path:
    """Each of the generated models."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take short rows in chunks: long ones would need large models."""
    monkeypatch.setattr(q8_choice, 'LEAST_CHUNK', q8_choice.STEP)


def random_tokens(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, 256, count)]


def never(logits: np.ndarray) -> int:
    raise AssertionError('a greedy stream chooses on the device')


def decoded(backend: Any, tokens: list[int]) -> np.ndarray:
    """Return the logits (N, V) of tokens that come one by one."""
    return np.stack([backend.forward([token], at) for at, token in enumerate(tokens)])


@every_kind
@pytest.mark.parametrize('kv_cache', ['f16', 'int8'])
def test_decode_agrees_with_the_oracle(
    q8_path: Path, kind: str, kv_cache: str, open_backend: Any, oracle: Any,
    rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, TOKENS)
    backend = open_backend(q8_path, kv_cache=kv_cache, q8_activations=kind)
    divergence = compare(oracle(q8_path, tokens), decoded(backend, tokens))
    assert divergence.mean_kl <= max(MEAN_KL[kind], 1e-2 if kv_cache == 'int8' else 0)
    if kv_cache == 'f16' and kind != 'a8':
        assert divergence.wrong_ids == 0
    assert backend.counters() == {}


@pytest.mark.parametrize('kind, kv_cache, count', [
    ('a8', 'f16', TOKENS), ('a8x2', 'f16', 34), ('a8x2', 'int8', TOKENS), ('f32', 'f16', TOKENS)])
def test_batches_equal_single_tokens_to_the_bit(
    q8_path: Path, kind: str, kv_cache: str, count: int, open_backend: Any,
    rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, count)
    settings = {'kv_cache': kv_cache, 'q8_activations': kind}
    batched = open_backend(q8_path, **settings).forward(tokens, 0)
    np.testing.assert_array_equal(
        batched, decoded(open_backend(q8_path, **settings), tokens)[-1])


def test_rows_are_taken_in_chunks_where_they_are_few(llama_q8_path: Path) -> None:
    config = GgufModel.open(str(llama_q8_path)).config
    choice = Choice(KINDS['a8x2'], 8)
    assert choice.chunks(config.embedding_length, config.feed_forward_length) == 2
    assert choice.chunks(config.vocab_size, config.embedding_length) == 1


@pytest.mark.parametrize('rows, columns', [(64, 9728), (2560, 4096), (2560, 9728), (32, 2047)])
@pytest.mark.parametrize('multiprocessors', [8, 132])
def test_chunks_cover_a_row(rows: int, columns: int, multiprocessors: int) -> None:
    choice = Choice(KINDS['a8'], multiprocessors)
    chunk, chunks = choice.chunk(rows, columns), choice.chunks(rows, columns)
    assert (chunks - 1) * chunk < columns <= chunks * chunk
    assert chunks == 1 or chunk % 512 == 0


@every_kind
def test_six_launches_a_layer(q8_path: Path, kind: str, open_backend: Any) -> None:
    device = ShimDevice()
    backend = open_backend(q8_path, device, q8_activations=kind)
    backend.forward([1], 0)
    device.launches.clear()
    backend.forward([2], 1)
    assert device.launches.pop('argmax') == 1
    outside = {'embed_q8', f'rmsnorm_q8_{kind}'} | {
        name for name in device.launches if name.startswith('q8_head_')}
    layers = GgufModel.open(str(q8_path)).config.block_count
    launches = sum(
        count for name, count in device.launches.items() if name not in outside)
    assert launches == 6 * layers


@every_kind
@pytest.mark.parametrize('broken', [*((name,) for name in FUSED), FUSED], ids='-'.join)
def test_parts_equal_fused_kernels_to_the_bit(
    q8_path: Path, kind: str, broken: tuple[str, ...], open_backend: Any,
    rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, 4)
    expected = decoded(open_backend(q8_path, ShimDevice(), q8_activations=kind), tokens)
    device = ShimDevice()
    device.failing = {
        f'{name}_{kind}{suffix}' for name in broken for suffix in ('', '_u2', '_u4', '_r2')}
    # Chosen by time, two shapes may take two kernels of an operation, of which each fails once.
    backend = open_backend(q8_path, device, q8_activations=kind, q8_variant='u1')
    np.testing.assert_array_equal(decoded(backend, tokens), expected)
    assert sum(backend.counters().values()) == len(broken)


@pytest.mark.parametrize('kind', ['a8', 'a8x2'])
def test_the_variant_changes_nothing(
    q8_path: Path, kind: str, open_backend: Any, rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, 3)
    logits = []
    for variant in ('u1', 'u2', 'u4', 'r2'):
        backend = open_backend(q8_path, q8_activations=kind, q8_variant=variant)
        logits.append(decoded(backend, tokens))
        assert backend.counters() == {}
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])


@every_kind
@pytest.mark.parametrize('switch', ['gemv', 'embd', 'norm', 'attn'])
def test_an_operation_on_the_host_changes_little(
    small_q8_path: Path, kind: str, switch: str, open_backend: Any, rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, 5)
    expected = open_backend(small_q8_path, ShimDevice(), q8_activations=kind).forward(tokens, 0)
    off = replace(FastPaths(), **{switch: False})
    device = ShimDevice()
    backend = open_backend(small_q8_path, device, fast=off, q8_activations=kind)
    kernels = {
        'gemv': ('gemv_', 'gemm_', 'q8_qkv', 'q8_add', 'q8_gate', 'q8_head_'),
        'embd': ('embed',), 'norm': ('rmsnorm', 'add_rmsnorm', 'q8_heads'),
        'attn': ('attention',)}[switch]
    error = np.linalg.norm(backend.forward(tokens, 0) - expected) / np.linalg.norm(expected)
    # Rounding to a word may fall the other way.
    assert error <= {'a8': 2e-2, 'a8x2': 1e-3, 'f32': 1e-3}[kind]
    assert not [name for name in device.launches if name.startswith(kernels)]


@every_kind
def test_everything_on_the_host_when_all_kernels_fail(
    small_q8_path: Path, kind: str, open_backend: Any, oracle: Any, rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, 5)
    device = ShimDevice()
    device.failing = _AllBut({'split_q8', 'norm_factors'})
    backend = open_backend(small_q8_path, device, q8_activations=kind)
    divergence = compare(oracle(small_q8_path, tokens), decoded(backend, tokens))
    assert divergence.mean_kl <= MEAN_KL[kind]
    assert set(device.launches) == {'split_q8'}


def test_greedy_stream_is_the_argmax_of_forward(
    q8_path: Path, open_backend: Any, rng: np.random.Generator
) -> None:
    backend = open_backend(q8_path)
    token = random_tokens(rng, 1)[0]
    stream = backend.stream(token, 0, True, never)
    ids = [token, *(next(stream) for _ in range(12))]
    stream.close()
    expected = [int(np.argmax(logits)) for logits in decoded(open_backend(q8_path), ids[:-1])]
    assert ids[1:] == expected


def test_graph_and_eager_streams_are_identical(
    q8_path: Path, open_backend: Any, rng: np.random.Generator
) -> None:
    token = random_tokens(rng, 1)[0]
    streams = []
    for graph in (True, False):
        backend = open_backend(q8_path, fast=FastPaths(cuda_graph=graph))
        stream = backend.stream(token, 0, True, never)
        streams.append([next(stream) for _ in range(12)])
    assert streams[0] == streams[1]


def test_rewriting_a_position_forgets_what_followed(
    q8_path: Path, open_backend: Any, rng: np.random.Generator
) -> None:
    first, second = random_tokens(rng, 8), random_tokens(rng, 4)
    backend = open_backend(q8_path)
    backend.forward(first, 0)
    fresh = open_backend(q8_path).forward(first[:6] + second, 0)
    np.testing.assert_array_equal(backend.forward(second, 6), fresh)


@pytest.mark.parametrize('weights', ['device', 'mapped'])
def test_other_placements_leave_the_file_whole(
    small_q8_path: Path, weights: str, open_backend: Any
) -> None:
    device = ShimDevice()
    backend = open_backend(small_q8_path, device, weights=weights)
    backend.forward([1, 2, 3], 0)
    assert not set(KERNEL_FILES) & set(device.loaded)


MIXED = {
    'blk.0.attn_v.weight': GGMLQuantizationType.Q5_0,
    'blk.0.ffn_down.weight': GGMLQuantizationType.Q4_1,
    'blk.1.attn_output.weight': GGMLQuantizationType.Q4_0,
    'blk.1.ffn_gate.weight': GGMLQuantizationType.F16,
}
"""Of two layers: in the first one half of the steps are on planes, in the second the other."""


@every_kind
@pytest.mark.parametrize('also', [None, 'token_embd.weight', 'output.weight'])
def test_tensors_of_other_types_beside_planes(
    kind: str, also: str | None, tmp_path: Path, open_backend: Any, oracle: Any,
    rng: np.random.Generator
) -> None:
    shape = ModelShape(
        block_count=2, embedding_length=160, feed_forward_length=544, head_count=4,
        head_count_kv=2, head_dim=64, vocab_size=0, context_length=128, tied_output=False)
    path = tmp_path / 'mixed.gguf'
    types = {**MIXED, **({also: GGMLQuantizationType.Q5_1} if also else {})}
    generate(str(path), shape, mix='q8_0', types=types, seed=7)
    model = GgufModel.open(str(path))
    assert split_names(model) == {name for name, tensor in model.tensors.items() if len(
        tensor.shape) == 2} - {also} - set(MIXED) - {
            'blk.0.attn_q.weight', 'blk.0.attn_k.weight', 'blk.0.ffn_gate.weight',
            'blk.0.ffn_up.weight', 'blk.1.ffn_up.weight'}
    backend = open_backend(path, q8_activations=kind)
    tokens = random_tokens(rng, 4)
    divergence = compare(oracle(path, tokens), decoded(backend, tokens))
    assert divergence.mean_kl <= MEAN_KL[kind]
    assert backend.counters() == {}
    if isinstance(backend.device, ShimDevice):
        assert {f'quantize_{kind}_half', 'gemv_q5_0', 'swiglu'} <= set(backend.device.launches)
    batched = open_backend(path, q8_activations=kind).forward(tokens, 0)
    np.testing.assert_array_equal(batched, backend.forward(tokens, 0))


def test_memory_is_what_was_planned(small_q8_path: Path, open_backend: Any) -> None:
    device = CountingDevice()
    backend = open_backend(small_q8_path, device)
    report = backend.memory()
    config = GgufModel.open(str(small_q8_path)).config
    choice = Choice(KINDS['a8x2'], device.info.multiprocessors)
    assert q8_buffer_bytes(config, choice.kind, choice.partial_rows(config)) < report.scratch
    assert device.allocated <= report.weights + report.kv_cache + report.scratch + TABLE_BYTES


class _AllBut(set):
    """Every name but these."""

    def __contains__(self, name: object) -> bool:
        return name != 'cuda_graph' and not super().__contains__(name)
