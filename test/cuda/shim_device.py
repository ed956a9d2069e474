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

"""The kernel shim as a device for the CUDA backend: the whole backend runs without a GPU."""

from collections.abc import Callable, Mapping, Sequence
import ctypes
import math
import time
from typing import Any

import devices
import numpy as np
from reflex_llm_ros.engine.backends.cuda.device_info import DeviceInfo
from reflex_llm_ros.engine.backends.cuda.sources import Defines
from reflex_llm_ros.engine.errors import DeviceError

TABLE_BYTES = 4096
"""Of a few words a layer, which no plan counts."""


class ShimDevice:
    """
    The interface of ``cuda.device.CudaDevice`` with NumPy arrays for device memory.

    Memory is poisoned when allocated. ``failing`` names kernels whose launch fails, as on a
    device that refuses them; ``launches`` counts the launches of each kernel.
    """

    def __init__(self, free_bytes: int = 1 << 34) -> None:
        self.info = DeviceInfo('host shim', (8, 7), 8, True, free_bytes)
        self.failing: set[str] = set()
        self.fail_capture = False
        self.launches: dict[str, int] = {}
        self.loaded: dict[str, Defines] = {}
        self.closed = False
        self._free_bytes = free_bytes
        self._shim = devices.PlainShim()
        self._recording: list[Callable[[], None]] | None = None

    def free_bytes(self) -> int:
        return self._free_bytes

    def load(
        self, files: Mapping[str, Defines], on_loaded: Callable[[str], None] = lambda file: None
    ) -> None:
        for file, defines in files.items():
            self.loaded[file] = defines
            self._shim.define(file, defines)
            on_loaded(file)

    def function(self, file: str, kernel: str) -> tuple[str, str]:
        return file, kernel

    def launch(
        self, function: tuple[str, str], grid: tuple[int, ...], block: int,
        arguments: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        self._launch(function, grid, block, arguments, shared_bytes, together=False)

    def launch_together(
        self, function: tuple[str, str], blocks: int, block: int, arguments: Sequence[Any],
        shared_bytes: int
    ) -> None:
        self._launch(function, (blocks,), block, arguments, shared_bytes, together=True)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return devices.poisoned(shape, dtype)

    def write(self, destination: np.ndarray, source: np.ndarray) -> None:
        self._refuse_in_capture()
        destination[...] = source

    def pinned(self, size: int) -> np.ndarray:
        return np.empty(size, np.uint8)

    def write_pinned(self, destination: np.ndarray, source: np.ndarray) -> None:
        destination[...] = source

    def upload(self, source: np.ndarray) -> np.ndarray:
        return np.array(source, order='C')

    def download(self, source: np.ndarray) -> np.ndarray:
        self._refuse_in_capture()
        return source.copy()

    def synchronize(self) -> None:
        self._refuse_in_capture()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        recording = self._recording = []
        try:
            work()
        finally:
            self._recording = None
        if self.fail_capture:
            raise DeviceError('injected failure')

        def replay() -> None:
            if 'cuda_graph' in self.failing:
                raise DeviceError('injected failure')
            for launch in recording:
                launch()

        return replay

    def copy_bandwidth(self) -> float:
        return 1e10

    def elapsed(self, work: Callable[[], None]) -> float:
        start = time.monotonic()
        work()
        return time.monotonic() - start

    def record(self) -> Callable[[], None]:
        return lambda: None

    def host_ring(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        ring = np.zeros(length, np.int32)
        return ring, ring

    def can_map_host_memory(self) -> bool:
        return True

    def map_host(self, address: int, size: int) -> np.ndarray:
        return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)

    def close(self) -> None:
        self.closed = True

    def _launch(
        self, function: tuple[str, str], grid: tuple[int, ...], block: int,
        arguments: Sequence[Any], shared_bytes: int, together: bool
    ) -> None:
        file, kernel = function
        if kernel in self.failing:
            raise DeviceError('injected failure')

        def work() -> None:
            self.launches[kernel] = self.launches.get(kernel, 0) + 1
            self._shim.run(file, kernel, grid, block, arguments, shared_bytes, together)

        if self._recording is None:
            work()
        else:
            self._recording.append(work)

    def _refuse_in_capture(self) -> None:
        if self._recording is not None:
            raise DeviceError('not allowed while capturing')


class CountingDevice(ShimDevice):
    """Counts the bytes that are asked for."""

    allocated = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.allocated += math.prod(shape) * np.dtype(dtype).itemsize
        return super().empty(shape, dtype)

    def pinned(self, size: int) -> np.ndarray:
        self.allocated += size
        return super().pinned(size)

    def upload(self, source: np.ndarray) -> np.ndarray:
        self.allocated += source.nbytes
        return super().upload(source)
