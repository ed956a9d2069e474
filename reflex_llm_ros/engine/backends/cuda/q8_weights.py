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

"""Q8_0 matrices as planes in device memory: int8 words and fp16 scales."""

from dataclasses import dataclass
from typing import Any

from gguf import GGMLQuantizationType
import numpy as np
from reflex_llm_ros.engine.backends.cuda.rearranged import RearrangedPlacement
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.gguf_model import GgufModel, Tensor

KERNEL_TYPE = 'q8_planes'
GROUP = 32
BLOCK_HALVES = 17
BLOCK_BYTES = 2 * BLOCK_HALVES
SPLIT_BLOCK = 128
MAX_HEAD = 256
STEPS = (
    (('attn_q', 'attn_k', 'attn_v'), ()), (('attn_output',), ()),
    (('ffn_gate', 'ffn_up'), ('ffn_down',)), (('ffn_down',), ()))
"""Matrices that one kernel takes, and those that read what only they can read."""


@dataclass(frozen=True)
class PlanesTensor(DeviceTensor):
    """A matrix of which ``data`` is the words (rows, columns) int8; scales (rows, columns/32)."""

    scales: Any


def split_names(model: GgufModel) -> set[str]:
    """
    Return the matrices that go into planes: Q8_0, as are all that one kernel takes with them.

    Empty where the kernels do not take the model's heads.
    """
    dim = model.config.head_dim
    if dim % GROUP or dim > MAX_HEAD:
        return set()
    q8 = {name for name, tensor in model.tensors.items()
          if tensor.type == GGMLQuantizationType.Q8_0}
    names = q8 & {'token_embd.weight', 'output.weight'}
    for index in range(model.config.block_count):
        for roles, together in STEPS:
            if {f'blk.{index}.{role}.weight' for role in (*roles, *together)} <= q8:
                names |= {f'blk.{index}.{role}.weight' for role in roles}
    return names


def planes(weight: DeviceTensor) -> PlanesTensor:
    """Return a matrix that has been split."""
    assert isinstance(weight, PlanesTensor), weight.host.name
    return weight


class PlanesPlacement(RearrangedPlacement):
    """Places a model's tensors: those of ``split_names`` in planes, all others as always."""

    def __init__(self, device: Any, model: GgufModel, *arguments: Any) -> None:
        super().__init__(device, model, *arguments)
        self._names = split_names(model)

    def _rearranged(self, name: str, tensor: Tensor) -> PlanesTensor | None:
        if name not in self._names:
            return None
        rows, columns = tensor.shape
        words = self._memory.empty((rows, columns), np.int8)
        scales = self._memory.empty((rows, columns // GROUP), np.float16)
        for first, piece in self._pieces(tensor):
            blocks = piece.nbytes // BLOCK_BYTES
            end = first + blocks * GROUP // columns
            self._device.launch(
                self._device.function('q8_embed', 'split_q8'),
                (-(-blocks * BLOCK_HALVES // SPLIT_BLOCK),), SPLIT_BLOCK,
                (words[first:end], scales[first:end], piece,
                 np.int64(blocks)))
        return PlanesTensor(words, KERNEL_TYPE, rows, columns, tensor, scales)
