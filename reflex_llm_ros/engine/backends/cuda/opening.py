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

"""From a configuration to a CUDA backend, or to one line that says what is missing."""

import ctypes
import importlib.util
import os
from typing import Any

from reflex_llm_ros.engine.backends.base import Backend, Progress
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.errors import DeviceError, EngineError
from reflex_llm_ros.engine.gguf_model import GgufModel

DRIVER = 'libcuda.so.1'


def open_device(ordinal: int) -> Any:
    """
    Return the ``CudaDevice`` with an ordinal.

    Raises
    ------
    EngineError
        CuPy, the driver or the device is missing: one line that says which.

    """
    if importlib.util.find_spec('cupy') is None:
        raise EngineError(
            'CuPy is not installed for this Python; pip install cupy-cuda12x, '
            'or set engine.backend to cpu')
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        raise EngineError(
            f'this machine has no NVIDIA driver ({DRIVER}); set engine.backend to cpu') from error
    try:
        from reflex_llm_ros.engine.backends.cuda.device import CudaDevice

        return CudaDevice(ordinal)
    except ImportError as error:
        raise EngineError(
            f'CuPy does not load: {error}; install the cupy-cuda12x or cupy-cuda13x that fits '
            'the CUDA of this machine') from error
    except DeviceError as error:
        raise EngineError(
            f'no CUDA device: {error}; check that nvidia-smi works, '
            'or set engine.backend to cpu') from error


def open_cuda_backend(
    model: GgufModel, config: EngineConfig, device: Any, on_progress: Progress
) -> Backend:
    """Load a model on a device from ``open_device``; the device closes with the backend."""
    from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend

    fast = config.fast_paths.overridden(os.environ)
    try:
        backend = CudaBackend(device, model, config, fast, on_progress)
        if config.debug_probe:
            from reflex_llm_ros.engine.backends.cuda.probe import probe

            for line in probe(backend, model):
                on_progress(1.0, line)
        return backend
    except BaseException:
        device.close()
        raise
