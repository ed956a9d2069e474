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

"""
One CUDA device through CuPy: probe, memory, copies, launches, graphs.

Everything that touches CUDA passes here. The thread that makes a CudaDevice owns it: all
work goes to one non-default stream, and every failure comes out as a DeviceError.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import ctypes
import mmap
from statistics import median
from typing import Any

import cupy as cp
import numpy as np
from reflex_llm_ros.engine.backends.cuda.compiler import compile_cubins
from reflex_llm_ros.engine.backends.cuda.device_info import DeviceInfo
from reflex_llm_ros.engine.backends.cuda.sources import Defines, kernel_source
from reflex_llm_ros.engine.errors import DeviceError, EngineError, OutOfMemoryError
from reflex_llm_ros.engine.memory import host_free_bytes

CUDA_ERRORS = (cp.cuda.driver.CUDADriverError, cp.cuda.runtime.CUDARuntimeError)
HOST_REGISTER_MAPPED = 0x02
HOST_REGISTER_READ_ONLY = 0x08
COPY_PROBE_BYTES = 1 << 28


class CudaDevice:
    """
    The CUDA device with an ordinal, for the thread that makes it.

    Raises
    ------
    EngineError
        There is no such device, or no driver: one line that says which.

    """

    def __init__(self, ordinal: int = 0) -> None:
        with _cuda_errors():
            count = cp.cuda.runtime.getDeviceCount()
            if not 0 <= ordinal < count:
                raise EngineError(
                    f'engine.device is {ordinal}, but this machine has {count} CUDA device(s)')
            self._device = cp.cuda.Device(ordinal)
            self._device.use()
            properties = cp.cuda.runtime.getDeviceProperties(ordinal)
            self._stream = cp.cuda.Stream(non_blocking=True)
        self.info = DeviceInfo(
            name=properties['name'].decode(),
            capability=(properties['major'], properties['minor']),
            multiprocessors=properties['multiProcessorCount'],
            integrated=bool(properties['integrated']),
            total_bytes=properties['totalGlobalMem'],
            shared_bytes=properties['sharedMemPerBlockOptin'],
        )
        self._modules: dict[str, cp.cuda.Module] = {}
        self._functions: dict[tuple[str, str], cp.cuda.Function] = {}
        self._registered: list[int] = []

    def free_bytes(self) -> int:
        """
        Return the bytes that can be allocated.

        Where CPU and GPU share memory, CUDA does not count the page cache as free,
        although the kernel gives it up on demand.
        """
        with _cuda_errors():
            free = int(cp.cuda.runtime.memGetInfo()[0])
        return max(free, host_free_bytes()) if self.info.integrated else free

    def load(
        self, files: Mapping[str, Defines], on_loaded: Callable[[str], None] = lambda file: None
    ) -> None:
        """
        Compile and load files of kernels by name, each with its macros, in any order.

        What was loaded of a file is replaced. ``on_loaded`` is told each as it is done. Raises
        EngineError where one fails.
        """
        sources = [kernel_source(file, defines) for file, defines in files.items()]
        for file, cubin in compile_cubins(sources, self.info.capability):
            with _cuda_errors():
                module = cp.cuda.Module()
                module.load(cubin)
            self._modules[file] = module
            self._functions = {
                key: function for key, function in self._functions.items() if key[0] != file}
            on_loaded(file)

    def function(self, file: str, kernel: str) -> cp.cuda.Function:
        """Return a kernel of kernels/``file``.cu, which ``load`` has loaded."""
        key = (file, kernel)
        if key not in self._functions:
            with _cuda_errors():
                self._functions[key] = self._modules[file].get_function(kernel)
        return self._functions[key]

    def launch(
        self,
        function: cp.cuda.Function,
        grid: tuple[int, ...],
        block: int,
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> None:
        """Launch on the stream; arguments are arrays, and NumPy scalars of the kernel's types."""
        with _cuda_errors():
            function(grid, (block,), arguments, shared_bytes, self._stream)

    def launch_together(
        self, function: cp.cuda.Function, blocks: int, block: int, arguments: Sequence[Any],
        shared_bytes: int
    ) -> None:
        """Launch blocks that wait for each other: all run at once, or a DeviceError is raised."""
        with _cuda_errors():
            cp.cuda.driver.funcSetAttribute(
                function.ptr, cp.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared_bytes)
            function((blocks,), (block,), arguments, shared_bytes, self._stream, True)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> cp.ndarray:
        """Allocate device memory of its own, given back when the array goes."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        try:
            memory = cp.cuda.Memory(max(size, 1))
        except CUDA_ERRORS as error:
            raise OutOfMemoryError(
                f'the device refused {size / 2**20:.0f} MiB: {error}') from error
        return cp.ndarray(shape, dtype, memptr=cp.cuda.MemoryPointer(memory, 0))

    def write(self, destination: cp.ndarray, source: np.ndarray) -> None:
        """Copy host to device, in stream order; ``source`` may be reused afterwards."""
        with _cuda_errors():
            destination.set(np.ascontiguousarray(source), stream=self._stream)

    def pinned(self, size: int) -> np.ndarray:
        """Allocate bytes (size,) of host memory that the device copies from; not of a pool."""
        with _cuda_errors():
            memory = cp.cuda.PinnedMemoryPointer(cp.cuda.PinnedMemory(size), 0)
        return np.frombuffer(memory, np.uint8, size)

    def write_pinned(self, destination: cp.ndarray, source: np.ndarray) -> None:
        """Copy from ``pinned`` memory, in stream order; it is read until the copy ends."""
        with _cuda_errors():
            cp.cuda.runtime.memcpyAsync(
                destination.data.ptr, source.ctypes.data, source.nbytes,
                cp.cuda.runtime.memcpyHostToDevice, self._stream.ptr)

    def upload(self, source: np.ndarray) -> cp.ndarray:
        """Copy a host array into new device memory."""
        array = self.empty(source.shape, source.dtype)
        self.write(array, source)
        return array

    def download(self, source: cp.ndarray) -> np.ndarray:
        """Wait for the stream and copy device to host."""
        with _cuda_errors():
            return source.get(stream=self._stream)

    def synchronize(self) -> None:
        """Wait for everything on the stream."""
        with _cuda_errors():
            self._stream.synchronize()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the launches of ``work`` as a graph; returns what replays it."""
        with _cuda_errors():
            self._stream.begin_capture()
            try:
                work()
            finally:
                graph = self._stream.end_capture()
            graph.upload(self._stream)

        def replay() -> None:
            with _cuda_errors():
                graph.launch(self._stream)

        return replay

    def record(self) -> Callable[[], None]:
        """Mark this point of the stream; returns what waits for it."""
        with _cuda_errors():
            event = cp.cuda.Event(disable_timing=True)
            event.record(self._stream)

        def wait() -> None:
            with _cuda_errors():
                event.synchronize()

        return wait

    def host_ring(self, length: int) -> tuple[np.ndarray, cp.ndarray]:
        """Allocate ``length`` int32 in pinned host memory: its host and its device view."""
        with _cuda_errors():
            pinned = cp.cuda.alloc_pinned_memory(length * 4)
        host = np.frombuffer(pinned, dtype=np.int32, count=length)
        host[:] = 0
        return host, _device_alias(pinned.ptr, length * 4, pinned).view(np.int32)

    def can_map_host_memory(self) -> bool:
        """Whether a read-only file mapping can be registered for kernels to read."""
        with _cuda_errors():
            attributes = self._device.attributes
        return bool(
            attributes.get('HostRegisterSupported')
            and attributes.get('HostRegisterReadOnlySupported'))

    def map_host(self, address: int, size: int) -> cp.ndarray:
        """
        Register read-only host memory and return its device alias (size,) uint8.

        The registration covers whole pages and lasts until ``close``.
        """
        first = address - address % mmap.PAGESIZE
        pages = -(-(address + size - first) // mmap.PAGESIZE) * mmap.PAGESIZE
        with _cuda_errors():
            cp.cuda.runtime.hostRegister(
                first, pages, HOST_REGISTER_MAPPED | HOST_REGISTER_READ_ONLY)
        self._registered.append(first)
        return _device_alias(first, pages, None)[address - first:address - first + size]

    def copy_bandwidth(self) -> float:
        """Measure a device-to-device copy, in bytes read plus written a second."""
        size = min(COPY_PROBE_BYTES, self.free_bytes() // 8)
        source, destination = self.empty((size,), np.uint8), self.empty((size,), np.uint8)

        def copy() -> None:
            cp.cuda.runtime.memcpyAsync(
                destination.data.ptr, source.data.ptr, size,
                cp.cuda.runtime.memcpyDeviceToDevice, self._stream.ptr)

        return 2 * size / median(self.elapsed(copy) for _ in range(8))

    def elapsed(self, work: Callable[[], None]) -> float:
        """Return the seconds that the launches of ``work`` take on the stream."""
        with _cuda_errors():
            start, end = cp.cuda.Event(), cp.cuda.Event()
            start.record(self._stream)
            work()
            end.record(self._stream)
            end.synchronize()
            return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3

    def close(self) -> None:
        """Take back host registrations and unload the kernels; arrays free themselves."""
        with _cuda_errors():
            while self._registered:
                cp.cuda.runtime.hostUnregister(self._registered.pop())
        self._functions.clear()
        self._modules.clear()


def _device_alias(address: int, size: int, owner: object) -> cp.ndarray:
    """Return the device's view of mapped host memory: kernels never see a raw host pointer."""
    driver = ctypes.CDLL('libcuda.so.1')
    alias = ctypes.c_uint64()
    status = driver.cuMemHostGetDevicePointer_v2(
        ctypes.byref(alias), ctypes.c_void_p(address), ctypes.c_uint(0))
    if status:
        raise DeviceError(f'cuMemHostGetDevicePointer returned {status}')
    memory = cp.cuda.UnownedMemory(alias.value, size, owner)
    return cp.ndarray((size,), np.uint8, memptr=cp.cuda.MemoryPointer(memory, 0))


@contextmanager
def _cuda_errors() -> Iterator[None]:
    try:
        yield
    except CUDA_ERRORS as error:
        raise DeviceError(str(error)) from error
