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
"""Backends: the devices that run a forward pass."""

from reflex_llm_ros.engine.backends.base import Backend, Progress
from reflex_llm_ros.engine.backends.cuda.opening import open_cuda_backend, open_device
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.errors import EngineError
from reflex_llm_ros.engine.gguf_model import GgufModel


def open_backend(model: GgufModel, config: EngineConfig, on_progress: Progress) -> Backend:
    """
    Load a model on the device that the configuration asks for.

    Backends are imported only when they are chosen: a machine without a GPU needs NumPy alone.

    Parameters
    ----------
    model
        The open file; it may be closed once this returns.
    config
        ``backend`` chooses; ``auto`` tells through ``on_progress`` what it chose.
    on_progress
        Told how far loading is.

    Raises
    ------
    EngineError
        The backend is unknown or cannot run here; one line says what is missing.
    OutOfMemoryError
        The model does not fit. Nothing has been allocated then.

    """
    if config.backend not in ('auto', 'cuda', 'cpu'):
        raise EngineError(f'engine.backend must be auto, cuda or cpu, not {config.backend!r}')
    if config.backend != 'cpu':
        try:
            device = open_device(config.device)
        except EngineError as error:
            if config.backend == 'cuda':
                raise
            on_progress(0.0, f'using the CPU: {error}')
        else:
            return open_cuda_backend(model, config, device, on_progress)
    from reflex_llm_ros.engine.backends.reference import ReferenceBackend

    return ReferenceBackend(model, config, on_progress)
