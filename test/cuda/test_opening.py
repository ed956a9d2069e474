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

"""Choosing a backend: what is missing is said in one line, and auto goes on without it."""

from pathlib import Path
from typing import Any

import pytest
from reflex_llm_ros.engine import backends
from reflex_llm_ros.engine.backends import open_backend
from reflex_llm_ros.engine.backends.cuda import opening
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.errors import EngineError, OutOfMemoryError
from reflex_llm_ros.engine.gguf_model import GgufModel
from shim_device import ShimDevice

MISSING = 'CuPy is not installed for this Python'


def open_with(path: Path, backend: str, **settings: Any) -> tuple[Any, list[str]]:
    """Return the backend and what it told about its progress."""
    told: list[str] = []
    opened = open_backend(
        GgufModel.open(str(path)),
        EngineConfig(str(path), backend=backend, context_length=32, **settings),
        lambda fraction, phrase: told.append(phrase))
    return opened, told


@pytest.fixture
def without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide CuPy."""
    monkeypatch.setattr(opening.importlib.util, 'find_spec', lambda name: None)


def test_auto_without_a_gpu_says_so_once(tiny_qwen3_path: Path, without_cupy: None) -> None:
    backend, told = open_with(tiny_qwen3_path, 'auto')
    assert backend.name == 'cpu'
    assert len([phrase for phrase in told if MISSING in phrase]) == 1


def test_cuda_without_a_gpu_is_one_line(tiny_qwen3_path: Path, without_cupy: None) -> None:
    with pytest.raises(EngineError, match=MISSING) as raised:
        open_with(tiny_qwen3_path, 'cuda')
    assert '\n' not in str(raised.value)


def test_machine_without_a_driver_is_one_line(
    tiny_qwen3_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip('cupy', reason='CuPy is not installed')
    monkeypatch.setattr(opening, 'DRIVER', 'libnothing.so.1')
    with pytest.raises(EngineError, match='no NVIDIA driver .*engine.backend') as raised:
        open_with(tiny_qwen3_path, 'cuda')
    assert '\n' not in str(raised.value)


def test_unknown_backend_is_refused(tiny_qwen3_path: Path) -> None:
    with pytest.raises(EngineError, match="auto, cuda or cpu, not 'tpu'"):
        open_with(tiny_qwen3_path, 'tpu')


@pytest.fixture
def shim_machine(monkeypatch: pytest.MonkeyPatch) -> list[ShimDevice]:
    """Make the shim the machine's device; the list fills with the devices opened."""
    opened: list[ShimDevice] = []

    def open_device(ordinal: int) -> ShimDevice:
        opened.append(ShimDevice())
        return opened[-1]

    monkeypatch.setattr(backends, 'open_device', open_device)
    return opened


def test_auto_takes_the_gpu(
    tiny_qwen3_path: Path, shim_machine: list[ShimDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('JLLM_Q4K_UINT32_LOADS', '0')
    backend, told = open_with(tiny_qwen3_path, 'auto')
    backend.forward([1, 2], 0)
    assert backend.name == 'cuda'
    assert any(phrase.startswith('compiling kernels') and 'gemv.cu' in phrase for phrase in told)
    assert any('MiB for 32 tokens' in phrase and 'free' in phrase for phrase in told)
    assert not any(kernel.endswith('_uint32') for kernel in shim_machine[0].launches)
    backend.close()


def test_cpu_leaves_the_gpu_alone(
    tiny_qwen3_path: Path, shim_machine: list[ShimDevice]
) -> None:
    backend, _ = open_with(tiny_qwen3_path, 'cpu')
    assert backend.name == 'cpu'
    assert not shim_machine


def test_budget_is_checked_before_anything_is_allocated(
    tiny_qwen3_path: Path, shim_machine: list[ShimDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError('allocated')

    monkeypatch.setattr(ShimDevice, 'free_bytes', lambda self: 100_000)
    monkeypatch.setattr(ShimDevice, 'empty', refuse)
    monkeypatch.setattr(ShimDevice, 'upload', refuse)
    with pytest.raises(OutOfMemoryError, match='free memory may be used'):
        open_with(tiny_qwen3_path, 'cuda')
    assert shim_machine[0].closed
