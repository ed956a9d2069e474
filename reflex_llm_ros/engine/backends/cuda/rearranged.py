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

"""Placing a model's tensors of which the device rearranges some, part after part."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.staging import Staging
from reflex_llm_ros.engine.backends.cuda.weight_memory import WeightMemory
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor, WeightPlacement
from reflex_llm_ros.engine.gguf_model import GgufModel, Tensor


class RearrangedPlacement(ABC):
    """
    Places the tensors of a model: some as ``_rearranged`` does, all others as always.

    The device rearranges them, a piece at a time.
    """

    def __init__(
        self, device: Any, model: GgufModel, memory: WeightMemory, staging: Staging,
        on_progress: Callable[[int], None]
    ) -> None:
        self._device = device
        self._model = model
        self._memory = memory
        self._staging = staging
        self._piece = device.empty((staging.piece_bytes,), np.uint8)
        self._others = WeightPlacement(
            device, model, False, memory, staging, lambda placed: None)
        self._on_progress = on_progress
        self._placed = 0

    @abstractmethod
    def _rearranged(self, name: str, tensor: Tensor) -> DeviceTensor | None:
        """Rearrange a tensor; None where it stays as it is."""

    def place(self, name: str) -> DeviceTensor:
        """Place the tensor of that name."""
        tensor = self._model.tensors[name]
        placed = self._rearranged(name, tensor) or self._others.place(name)
        self._placed += tensor.data.nbytes
        self._on_progress(self._placed)
        return placed

    def _pieces(self, tensor: Tensor) -> Iterator[tuple[int, Any]]:
        """Bring rows to the device: the first row's number, and the blocks of some."""
        for first, blocks in self._staging.rows(tensor.data):
            piece = self._piece[:blocks.nbytes]
            self._device.write_pinned(piece, blocks.reshape(-1))
            yield first, piece
