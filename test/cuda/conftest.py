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

"""Fixtures of the CUDA backend's tests: generated models, a backend on the shim or a GPU."""

from collections.abc import Callable, Iterator
from pathlib import Path
import sys
from typing import Any

from gguf import GGMLQuantizationType
import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda import q8_variants
from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
from reflex_llm_ros.engine.backends.reference import ReferenceBackend
from reflex_llm_ros.engine.config import EngineConfig, FastPaths
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import ModelShape
from reflex_llm_ros.synthetic.qwen3_gguf import generate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'kernels'))

OpenBackend = Callable[..., CudaBackend]


@pytest.fixture(scope='session', autouse=True)
def variants_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep what is measured of Q8_0 kernels out of the user's cache."""
    folder = tmp_path_factory.mktemp('cache')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(q8_variants, 'cache_folder', lambda: folder)
        yield folder


@pytest.fixture(scope='session')
def small_qwen3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate the smallest Qwen3 with each K-quant kernel of a Q4_K_M file: q, k, v mixed."""
    shape = ModelShape(
        block_count=1, embedding_length=256, feed_forward_length=256, head_count=4,
        head_count_kv=2, head_dim=64, vocab_size=0, context_length=128)
    types = {
        'blk.0.attn_v.weight': GGMLQuantizationType.Q6_K,
        'blk.0.ffn_down.weight': GGMLQuantizationType.Q4_K,
    }
    path = tmp_path_factory.mktemp('models') / 'small-qwen3.gguf'
    generate(str(path), shape, types=types, seed=2)
    return path


@pytest.fixture(scope='session')
def small_q8_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a Qwen3 of two layers in Q8_0 whose rows end within a warp's step."""
    shape = ModelShape(
        block_count=2, embedding_length=160, feed_forward_length=544, head_count=4,
        head_count_kv=2, head_dim=64, vocab_size=0, context_length=128)
    path = tmp_path_factory.mktemp('models') / 'small-q8_0.gguf'
    generate(str(path), shape, mix='q8_0', seed=5)
    return path


@pytest.fixture(params=['shim', pytest.param('gpu', marks=pytest.mark.gpu)])
def make_device(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return what makes a device: the kernel shim everywhere, a GPU where there is one."""
    if request.param == 'shim':
        from shim_device import ShimDevice
        return ShimDevice
    request.getfixturevalue('gpu')
    from reflex_llm_ros.engine.backends.cuda.device import CudaDevice
    return CudaDevice


@pytest.fixture
def open_backend(make_device: Callable[..., Any]) -> Iterator[OpenBackend]:
    """Open a CUDA backend on a model; keyword arguments are the configuration's."""
    opened: list[CudaBackend] = []

    def open_it(
        path: Path, device: Any = None, fast: FastPaths | None = None, **settings: Any
    ) -> CudaBackend:
        settings.setdefault('context_length', 64)
        model = GgufModel.open(str(path))
        backend = CudaBackend(
            device or make_device(), model, EngineConfig(str(path), **settings),
            fast or FastPaths())
        opened.append(backend)
        return backend

    yield open_it
    for backend in opened:
        backend.close()


@pytest.fixture(scope='session')
def oracle() -> Callable[..., np.ndarray]:
    """Return the logits (N, V) float64 of every position by the oracle."""
    def run(path: Path, tokens: list[int], kv_cache: str = 'f16') -> np.ndarray:
        model = GgufModel.open(str(path))
        backend = ReferenceBackend(
            model, EngineConfig(str(path), context_length=len(tokens), kv_cache=kv_cache),
            dtype=np.float64)
        return backend.forward_every(tokens, 0)

    return run
