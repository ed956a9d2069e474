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

"""Bytes of a file on their way to the device: through pinned memory, two parts in flight."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from reflex_llm_ros.engine.gguf_model import GgufModel

PART_BYTES = 16 << 20
IN_FLIGHT = 2


def part_bytes(model: GgufModel) -> int:
    """Bytes that are staged at a time."""
    return min(PART_BYTES, max(tensor.data.nbytes for tensor in model.tensors.values()))


class Staging:
    """
    Copies to the device while the next part comes out of the page cache.

    A copy from the file's pages directly would stage them too, but one part after the other.
    """

    def __init__(self, device: Any, size: int) -> None:
        self._device = device
        self._parts = [device.pinned(size) for _ in range(IN_FLIGHT)]
        self._waits: list[Callable[[], None]] = [device.synchronize] * IN_FLIGHT
        self._turn = 0

    def rows(self, scratch: Any, blocks: np.ndarray) -> Iterator[tuple[int, Any]]:
        """
        Bring rows of blocks (N, bytes) to the device, as many at a time as ``scratch`` holds.

        Yields the first row's number and the part of ``scratch`` that has the rows; the next
        part overwrites it, in stream order.
        """
        step = scratch.nbytes // blocks.shape[1]
        for first in range(0, len(blocks), step):
            source = blocks[first:first + step]
            part = scratch[:source.nbytes]
            self.copy(part, source.reshape(-1))
            yield first, part

    def copy(self, destination: Any, source: np.ndarray) -> None:
        """Copy bytes (n,) in stream order; ``source`` may be reused afterwards."""
        size = self._parts[0].nbytes
        for first in range(0, source.nbytes, size):
            part = source[first:first + size]
            self._waits[self._turn]()
            pinned = self._parts[self._turn][:part.nbytes]
            np.copyto(pinned, part)
            self._device.write_pinned(destination[first:first + part.nbytes], pinned)
            self._waits[self._turn] = self._device.record()
            self._turn = (self._turn + 1) % IN_FLIGHT
