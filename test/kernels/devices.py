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
Where kernels run in tests: on the shim, checked or plain, or on a GPU, with one interface.

``run(family, kernel, grid, block, args)`` launches ``kernel`` of ``kernels/<family>.cu`` and
returns when it is done. An argument is a NumPy array, passed by address, or a NumPy scalar,
passed by value with exactly its type (Python numbers are refused: their size is not the
kernel's business to guess). A writeable array holds the kernel's result afterwards; a read-only
one is an input. The same array given twice is one buffer, so a kernel may work in place.

The shims run blocks one after the other, or ``together`` in a random order, so that they may wait
for each other; ``seed`` is printed when one is made and gives the same orders again.

* ``CheckedShim``: compiled with the address and undefined-behaviour sanitizers, in a process of
  its own; each buffer is an allocation of exactly its size.
* ``PlainShim``: no sanitizers, in this process, arrays used where they lie: for running a whole
  model. An argument may also be an address, as ``np.uint64``.
* ``GpuDevice``: CuPy, on the current device; arrays are copied to it and back.
"""

from collections.abc import Iterator, Mapping, Sequence
import ctypes
import itertools
import os
import struct
import subprocess
import tempfile
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.sources import COMPILE_OPTIONS
import shim_build

_ERROR_BYTES = 512
_SCALAR, _INPUT, _OUTPUT, _ALIAS = range(4)


class KernelError(Exception):
    """A kernel did what no kernel may do; the message is the shim's or the sanitizer's."""


def poisoned(shape: Any, dtype: Any = np.float16) -> np.ndarray:
    """Return an output to write: every byte 0xff, which is NaN as fp16 and fp32."""
    array = np.empty(shape, dtype)
    array.view(np.uint8)[...] = 0xFF
    return array


def constant(array: np.ndarray) -> np.ndarray:
    """Return an input: a contiguous, read-only view or copy."""
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array


def _triple(size: Any) -> tuple[int, int, int]:
    """Grid or block as three numbers."""
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (*sizes, 1, 1, 1)[:3]


def _orders(seed: int | None) -> Iterator[int]:
    """Return a number for each launch, by which the shim orders blocks and threads."""
    if seed is None:
        seed = int.from_bytes(os.urandom(4), 'little')
    print(f'order seed: {seed}')
    return (order & 0xffffffff for order in itertools.count(seed))


def _check(argument: Any) -> None:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise TypeError('an array argument must be C-contiguous')
    elif not isinstance(argument, np.generic):
        raise TypeError(f'wrap {argument!r} in the NumPy type that the kernel declares')


class CheckedShim:
    """Run kernels under sanitizers, one worker process a kernel file."""

    name = 'shim'

    def __init__(self, seed: int | None = None) -> None:
        self._workers: dict[str, _Worker] = {}
        self._orders = _orders(seed)

    def run(
        self, family: str, kernel: str, grid: Any, block: Any, args: Sequence[Any],
        shared_bytes: int = 0, together: bool = False
    ) -> None:
        """Launch a kernel; raises KernelError when it or the sanitizer objects."""
        for argument in args:
            _check(argument)
        if family not in self._workers:
            self._workers[family] = _Worker(family)
        try:
            self._workers[family].run(
                kernel, _triple(grid), _triple(block), shared_bytes, next(self._orders), together,
                args)
        except BrokenPipeError:
            raise KernelError(self._workers.pop(family).report()) from None

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


class _Worker:
    """The process that runs one file's kernels; see ``worker.cpp`` for what is sent."""

    def __init__(self, family: str) -> None:
        environment = dict(os.environ)
        environment['ASAN_OPTIONS'] = 'detect_leaks=0:abort_on_error=0:allocator_may_return_null=0'
        environment['UBSAN_OPTIONS'] = 'print_stacktrace=1'
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [shim_build.build_worker(), shim_build.build_library(family, sanitize=True)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=environment)

    def run(
        self, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int],
        shared_bytes: int, order: int, together: bool, args: Sequence[Any]
    ) -> None:
        """Send one launch and read its outputs; raises BrokenPipeError when the worker ends."""
        self._write(struct.pack('=64s6IQ2IQ', kernel.encode(), *grid, *block, shared_bytes, order,
                                together, len(args)))
        outputs: list[np.ndarray] = []
        seen: dict[int, int] = {}
        for index, argument in enumerate(args):
            kind, alias_of, payload = _SCALAR, 0, argument
            if isinstance(argument, np.ndarray):
                alias_of = seen.setdefault(id(argument), index)
                kind = _OUTPUT if argument.flags.writeable else _INPUT
                if alias_of != index:
                    kind = _ALIAS
                elif kind == _OUTPUT:
                    outputs.append(argument)
            data = b'' if kind == _ALIAS else memoryview(np.atleast_1d(payload)).cast('B')
            self._write(struct.pack('=2IQ', kind, alias_of, len(data)))
            self._write(data)
        self._process.stdin.flush()
        if struct.unpack('=i', self._read(4))[0] != 0:
            message = self._read(_ERROR_BYTES).split(b'\0')[0].decode()
            raise KernelError(f'{kernel}: {message}')
        for array in outputs:
            target = memoryview(array.reshape(-1)).cast('B')
            filled = 0
            while filled < len(target):
                count = self._process.stdout.readinto(target[filled:])
                if not count:
                    raise BrokenPipeError
                filled += count

    def report(self) -> str:
        """Wait for the end of a worker and return what it left on stderr."""
        self.close()
        self._stderr.seek(0)
        return self._stderr.read().decode(errors='replace')

    def close(self) -> None:
        """End the process."""
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.stdout.close()
        self._process.wait()

    def _write(self, data: Any) -> None:
        self._process.stdin.write(data)

    def _read(self, count: int) -> bytes:
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise BrokenPipeError
        return data


class PlainShim:
    """Run kernels in this process, on arrays where they lie."""

    name = 'plain shim'

    def __init__(self, seed: int | None = None) -> None:
        self._orders = _orders(seed)
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._defines: dict[str, tuple[tuple[str, int | str], ...]] = {}

    def define(self, family: str, defines: Mapping[str, int | str]) -> None:
        """Compile a kernel file with these macros from now on."""
        self._defines[family] = tuple(defines.items())
        self._libraries.pop(family, None)

    def run(
        self, family: str, kernel: str, grid: Any, block: Any, args: Sequence[Any],
        shared_bytes: int = 0, together: bool = False
    ) -> None:
        """Launch a kernel; raises KernelError when the shim objects."""
        if family not in self._libraries:
            self._libraries[family] = ctypes.CDLL(
                str(shim_build.build_library(
                    family, sanitize=False, defines=self._defines.get(family, ()))))
        values = []
        for argument in args:
            _check(argument)
            values.append(np.array(
                argument.ctypes.data if isinstance(argument, np.ndarray) else argument,
                np.uint64 if isinstance(argument, np.ndarray) else argument.dtype))
        pointers = (ctypes.c_void_p * len(args))(*(value.ctypes.data for value in values))
        sizes = (ctypes.c_size_t * len(args))(*(value.nbytes for value in values))
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = self._libraries[family].shim_launch(
            kernel.encode(), (ctypes.c_uint * 3)(*_triple(grid)),
            (ctypes.c_uint * 3)(*_triple(block)), ctypes.c_size_t(shared_bytes),
            ctypes.c_uint(next(self._orders)), int(together), len(args), pointers, sizes, error,
            ctypes.c_size_t(_ERROR_BYTES))
        if status != 0:
            raise KernelError(f'{kernel}: {error.value.decode()}')

    def close(self) -> None:
        """Keep the libraries: a process cannot unload them safely while arrays live."""


class GpuDevice:
    """Run kernels with CuPy."""

    name = 'gpu'

    def __init__(self) -> None:
        import cupy
        self._cupy = cupy
        self._modules: dict[str, Any] = {}

    def run(
        self, family: str, kernel: str, grid: Any, block: Any, args: Sequence[Any],
        shared_bytes: int = 0
    ) -> None:
        """Launch a kernel and wait for it."""
        if family not in self._modules:
            self._modules[family] = self._cupy.RawModule(
                code=shim_build.kernel_file(family).read_text(),
                options=(*COMPILE_OPTIONS, f'-I{shim_build.KERNEL_FOLDER}'))
        buffers: dict[int, Any] = {}
        values = []
        for argument in args:
            _check(argument)
            if isinstance(argument, np.ndarray):
                argument = buffers.setdefault(id(argument), self._cupy.asarray(argument))
            values.append(argument)
        function = self._modules[family].get_function(kernel)
        function(_triple(grid), _triple(block), tuple(values), shared_mem=shared_bytes)
        self._cupy.cuda.Device().synchronize()
        for argument in args:
            if isinstance(argument, np.ndarray) and argument.flags.writeable:
                argument[...] = self._cupy.asnumpy(buffers[id(argument)])

    def close(self) -> None:
        """Free the memory that CuPy keeps for reuse."""
        self._cupy.get_default_memory_pool().free_all_blocks()
