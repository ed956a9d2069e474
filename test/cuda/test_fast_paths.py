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

"""Switches that are really off, and failures that never end a generation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.decode import GRAPH
from reflex_llm_ros.engine.config import FastPaths
from reflex_llm_ros.engine.errors import DeviceError
from shim_device import ShimDevice

PROMPT = [72, 101, 108]
ANSWER_TOKENS = 5

KERNELS_OF_SWITCH = {
    'gemv': ('gemv', 'gemm'),
    'embd': ('embed_row',),
    'norm': ('rmsnorm',),
    'attn': ('attention',),
    'q4k_uint32_loads': (
        'gemv_q4k_uint32', 'gemv_add_q4k_uint32', 'gemv_pair_q4k_uint32', 'gemm_q4k_uint32',
        'gemv_triple_q4k_q4k_q4k_uint32', 'gemv_triple_q4k_q4k_q6k_uint32'),
}


def never(logits: np.ndarray) -> int:
    raise AssertionError('a greedy stream chooses on the device')


def greedy(backend: Any) -> list[int]:
    """Answer PROMPT."""
    token = int(np.argmax(backend.forward(PROMPT, 0)))
    stream = backend.stream(token, len(PROMPT), True, never)
    return [token, *(next(stream) for _ in range(ANSWER_TOKENS - 1))]


@pytest.fixture(params=sorted(FastPaths.__dataclass_fields__))
def switch(request: pytest.FixtureRequest) -> str:
    """Each fast-path switch."""
    return request.param


def test_switch_off_leaves_the_ids_unchanged(
    switch: str, small_qwen3_path: Path, open_backend: Any
) -> None:
    off = replace(FastPaths(), **{switch: False})
    assert greedy(open_backend(small_qwen3_path, fast=off)) == greedy(
        open_backend(small_qwen3_path))


@pytest.mark.parametrize('switch', sorted(set(FastPaths.__dataclass_fields__) - {GRAPH}))
def test_switch_off_launches_none_of_its_kernels(
    switch: str, small_qwen3_path: Path, open_backend: Any
) -> None:
    launched = {}
    for on in (True, False):
        device = ShimDevice()
        greedy(open_backend(
            small_qwen3_path, device, replace(FastPaths(), **{switch: on})))
        launched[on] = {
            kernel for kernel in device.launches
            if kernel.startswith(KERNELS_OF_SWITCH[switch])}
    assert launched[True]
    assert not launched[False]


def test_no_graph_is_captured_when_it_is_off(small_qwen3_path: Path, open_backend: Any) -> None:
    device = ShimDevice()
    device.failing.add(GRAPH)
    backend = open_backend(small_qwen3_path, device, FastPaths(cuda_graph=False))
    greedy(backend)
    assert backend.counters() == {}


FAILURES = {
    'embd': {'embed_row_q6k'},
    'norm': {'rmsnorm', 'rmsnorm_heads'},
    'rope': {'rope'},
    'kv_store': {'kv_store'},
    'attn': {'attention_prefill', 'attention_split', 'attention_decode'},
    'swiglu': {'swiglu'},
    'argmax': {'argmax'},
    'gemv': {
        kernel for switch in ('gemv', 'q4k_uint32_loads')
        for kernel in KERNELS_OF_SWITCH[switch]},
}


@pytest.mark.parametrize('operation', sorted(FAILURES))
def test_answer_completes_on_the_reference_after_a_failure(
    operation: str, small_qwen3_path: Path, open_backend: Any,
    caplog: pytest.LogCaptureFixture
) -> None:
    expected = greedy(open_backend(small_qwen3_path, ShimDevice()))
    device = ShimDevice()
    prefixes = tuple(FAILURES[operation])
    device.failing = _Prefixes(prefixes)
    backend = open_backend(small_qwen3_path, device)
    assert greedy(backend) == expected
    assert backend.counters()[f'fallback {operation}'] >= 1
    messages = [record.message for record in caplog.records if 'simpler path' in record.message]
    assert messages and len(messages) == len(set(messages))


@pytest.mark.parametrize('broken,left', [
    ({'gemv_triple_q4k_q4k_q6k_uint32'}, 'gemv_triple_q4k_q4k_q6k'),
    ({'gemv_triple_q4k_q4k_q6k_uint32', 'gemv_triple_q4k_q4k_q6k'}, 'gemv_q4k_uint32'),
    ({'gemv_pair_q4k_uint32'}, 'gemv_pair_q4k'),
    ({'gemv_add_q4k_uint32'}, 'gemv_add_q4k'),
    ({'gemv_add_q4k_uint32', 'gemv_add_q4k'}, 'residual_add'),
    ({'gemv_logits_q6k'}, 'halves_to_floats'),
    ({'gemm_q4k_uint32'}, 'gemm_q4k'),
    ({'attention_prefill'}, 'attention_decode'),
    ({'attention_split'}, 'attention_decode'),
])
def test_next_simpler_kernel_takes_over(
    broken: set[str], left: str, small_qwen3_path: Path, open_backend: Any
) -> None:
    expected = greedy(open_backend(small_qwen3_path, ShimDevice()))
    device = ShimDevice()
    device.failing = broken
    backend = open_backend(small_qwen3_path, device)
    assert greedy(backend) == expected
    assert device.launches[left] > 0
    assert sum(backend.counters().values()) == len(broken)


def test_decode_attention_is_split_and_prefill_is_one_launch(
    small_qwen3_path: Path, open_backend: Any
) -> None:
    device = ShimDevice()
    greedy(open_backend(small_qwen3_path, device))
    assert device.launches['attention_split'] > 0
    assert device.launches['attention_prefill'] == 1
    assert 'attention_decode' not in device.launches


def test_failure_in_the_middle_of_an_answer(small_qwen3_path: Path, open_backend: Any) -> None:
    expected = greedy(open_backend(small_qwen3_path, ShimDevice()))
    device = ShimDevice()
    backend = open_backend(small_qwen3_path, device)
    token = int(np.argmax(backend.forward(PROMPT, 0)))
    stream = backend.stream(token, len(PROMPT), True, never)
    ids = [token, next(stream)]
    device.failing.add(GRAPH)
    ids += [next(stream) for _ in range(ANSWER_TOKENS - 2)]
    assert ids == expected
    assert backend.counters() == {f'fallback {GRAPH}': 1}


def test_failed_capture_runs_eagerly(small_qwen3_path: Path, open_backend: Any) -> None:
    expected = greedy(open_backend(small_qwen3_path, ShimDevice()))
    device = ShimDevice()
    device.fail_capture = True
    backend = open_backend(small_qwen3_path, device)
    assert greedy(backend) == expected
    assert backend.counters() == {f'fallback {GRAPH}': 1}


def test_lost_device_is_an_error_not_a_loop(small_qwen3_path: Path, open_backend: Any) -> None:
    device = ShimDevice()
    backend = open_backend(small_qwen3_path, device)
    device.failing = _Prefixes(('',))
    device.download = _fail
    device.write = _fail
    with pytest.raises(DeviceError):
        backend.forward(PROMPT, 0)


class _Prefixes(set):
    """Names that begin with one of these."""

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        super().__init__(prefixes)
        self._prefixes = prefixes

    def __contains__(self, name: object) -> bool:
        return str(name).startswith(self._prefixes)


def _fail(*arguments: Any) -> None:
    raise DeviceError('device lost')
