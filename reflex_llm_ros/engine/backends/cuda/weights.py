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

"""A model's tensors where kernels read them: in device memory or in the mapped file."""

from collections.abc import Callable
from dataclasses import dataclass
import logging
from typing import Any

from gguf import GGMLQuantizationType
import numpy as np
from reflex_llm_ros.engine.backends.cuda.staging import Staging
from reflex_llm_ros.engine.backends.cuda.weight_memory import WeightMemory, with_gaps
from reflex_llm_ros.engine.gguf_model import GgufModel, Tensor

MATRIX_TYPES: dict[GGMLQuantizationType, str] = {
    GGMLQuantizationType.Q4_K: 'q4k',
    GGMLQuantizationType.Q5_K: 'q5k',
    GGMLQuantizationType.Q6_K: 'q6k',
    GGMLQuantizationType.Q4_0: 'q4_0',
    GGMLQuantizationType.Q4_1: 'q4_1',
    GGMLQuantizationType.Q5_0: 'q5_0',
    GGMLQuantizationType.Q5_1: 'q5_1',
    GGMLQuantizationType.Q8_0: 'q8_0',
    GGMLQuantizationType.F16: 'f16',
    GGMLQuantizationType.BF16: 'bf16',
    GGMLQuantizationType.F32: 'f32',
}
"""Types that have kernels, with the name that the kernels carry."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceTensor:
    """
    One weight on the device.

    ``data`` (bytes,) uint8 holds the file's blocks of a matrix (rows, columns), unchanged,
    or a vector's float32; ``kernel_type`` names the kernels that read it; ``host`` is the
    tensor in the file, which the reference implementation reads.
    """

    data: Any
    kernel_type: str
    rows: int
    columns: int
    host: Tensor


def kernel_type(tensor: Tensor) -> str:
    """Name of the kernels that read a matrix: fp16's where its type has none."""
    return MATRIX_TYPES.get(tensor.type, MATRIX_TYPES[GGMLQuantizationType.F16])


def placed_bytes(tensor: Tensor) -> int:
    """Bytes that a tensor takes in device memory."""
    if len(tensor.shape) == 1:
        return tensor.shape[0] * 4
    if tensor.type in MATRIX_TYPES:
        return tensor.data.nbytes
    return int(np.prod(tensor.shape)) * 2


def is_read_as_stored(tensor: Tensor) -> bool:
    """Say whether kernels read a tensor as the file has it."""
    return len(tensor.shape) == 2 and tensor.type in MATRIX_TYPES


def memory_bytes(model: GgufModel, mapped: bool) -> int:
    """Bytes of the ``WeightMemory`` of a model, of which what can be mapped may stay out."""
    return sum(
        with_gaps(placed_bytes(tensor)) for tensor in model.tensors.values()
        if not (mapped and is_read_as_stored(tensor)))


class WeightPlacement:
    """
    Places tensors one at a time: copies them, or maps the file once and points into it.

    A vector is always a float32 copy. A matrix of a type without kernels is converted to
    float16 and copied, with a warning that names it and what that costs.
    """

    def __init__(
        self, device: Any, model: GgufModel, mapped: bool, memory: WeightMemory,
        staging: Staging, on_progress: Callable[[int], None]
    ) -> None:
        self._device = device
        self._model = model
        self._memory = memory
        self._staging = staging
        self._on_progress = on_progress
        self._placed = 0
        self._window = _MappedWindow(device, model) if mapped else None

    def place(self, name: str) -> DeviceTensor:
        """Place the tensor of that name."""
        tensor = self._model.tensors[name]
        placed = self._place(name, tensor)
        self._placed += tensor.data.nbytes
        self._on_progress(self._placed)
        return placed

    def _place(self, name: str, tensor: Tensor) -> DeviceTensor:
        kind = kernel_type(tensor)
        if len(tensor.shape) == 1:
            return self._convert(tensor, np.float32, 'f32', (1, tensor.shape[0]))
        rows, columns = tensor.shape
        if not is_read_as_stored(tensor):
            log.warning(
                '%s has the type %s, which has no kernel: converted to float16, %d MiB in place '
                'of %d MiB', name, tensor.type.name, placed_bytes(tensor) >> 20,
                tensor.data.nbytes >> 20)
            return self._convert(tensor, np.float16, kind, (rows, columns))
        if self._window is not None:
            return DeviceTensor(self._window.view(tensor), kind, rows, columns, tensor)
        array = self._memory.empty((tensor.data.nbytes,), np.uint8)
        for first, blocks in self._staging.rows(tensor.data):
            at = first * tensor.data.shape[1]
            self._device.write_pinned(array[at:at + blocks.nbytes], blocks.reshape(-1))
        return DeviceTensor(array, kind, rows, columns, tensor)

    def _convert(
        self, tensor: Tensor, dtype: type[np.generic], kind: str, shape: tuple[int, int]
    ) -> DeviceTensor:
        values = tensor.dequantize(dtype=np.float32).astype(dtype, copy=False)
        array = self._memory.empty((values.nbytes,), np.uint8)
        self._device.write(array, values.reshape(-1).view(np.uint8))
        return DeviceTensor(array, kind, *shape, tensor)


class _MappedWindow:
    """The span of the file's map that holds the tensors, registered with the device."""

    def __init__(self, device: Any, model: GgufModel) -> None:
        spans = [
            (tensor.data.ctypes.data, tensor.data.nbytes) for tensor in model.tensors.values()]
        self._start = min(address for address, _ in spans)
        end = max(address + size for address, size in spans)
        self._alias = device.map_host(self._start, end - self._start)

    def view(self, tensor: Tensor) -> Any:
        """Return the device's alias of a tensor's bytes."""
        offset = tensor.data.ctypes.data - self._start
        return self._alias[offset:offset + tensor.data.nbytes]
