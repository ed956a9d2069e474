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

"""Kernel source to machine code with NVRTC, kept on disk by everything it depends on."""

from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed, ThreadPoolExecutor
import hashlib
import os
from pathlib import Path

from cupy.cuda import nvrtc
from reflex_llm_ros.engine.backends.cuda.disk_cache import cache_folder, store
from reflex_llm_ros.engine.backends.cuda.sources import COMPILE_OPTIONS, KernelSource
from reflex_llm_ros.engine.errors import EngineError

DIGEST_BYTES = hashlib.sha256().digest_size
MOST_AT_ONCE = 4
"""Compilations that may run at the same time; each takes up to 50 MiB."""


def compile_cubins(
    sources: Iterable[KernelSource], capability: tuple[int, int]
) -> Iterator[tuple[str, bytes]]:
    """
    Compile sources on all processors; name and cubin of each as soon as it is done.

    Raises
    ------
    EngineError
        As ``compile_cubin`` does, of the first that fails; those not begun by then are dropped.

    """
    workers = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        names = {
            pool.submit(compile_cubin, source, capability): source.name for source in sources}
        try:
            for compilation in as_completed(names):
                yield names[compilation], compilation.result()
        finally:
            pool.shutdown(cancel_futures=True)


def compile_cubin(source: KernelSource, capability: tuple[int, int]) -> bytes:
    """
    Compile one source for one compute capability, or take it from the cache.

    Raises
    ------
    EngineError
        There is no NVRTC, or it refused the source; the message holds its first error, which
        names file and line.

    """
    options = (f'--gpu-architecture=sm_{capability[0]}{capability[1]}', *COMPILE_OPTIONS)
    path = cache_folder() / f'{source.name}-{_key(source, options)}.cubin'
    cubin = _read(path)
    if cubin is None:
        cubin = _compile(source, options)
        store(path, hashlib.sha256(cubin).digest() + cubin)
    return cubin


def nvrtc_version() -> tuple[int, int]:
    """Return the compiler's version; raises EngineError where CuPy finds none."""
    try:
        major, minor = nvrtc.getVersion()
    except RuntimeError as error:
        raise EngineError(
            f'no CUDA compiler: {error}; install libnvrtc of the CUDA that CuPy is built for, '
            'such as the package cuda-nvrtc-12-6') from error
    return major, minor


def _key(source: KernelSource, options: tuple[str, ...]) -> str:
    parts = [source.code, *options, repr(nvrtc_version())]
    for name, text in sorted(source.headers.items()):
        parts += [name, text]
    return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:24]


def _compile(source: KernelSource, options: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(
        source.code, f'{source.name}.cu',
        [text.encode() for text in source.headers.values()],
        [name.encode() for name in source.headers])
    try:
        nvrtc.compileProgram(program, options)
        # CuPy drops the last byte, a zero, as if it ended a string. The driver does not miss it.
        return nvrtc.getCUBIN(program) + b'\0'
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        first = next((line for line in log.splitlines() if 'error' in line), str(error))
        raise EngineError(f'kernel does not compile: {first.strip()}') from error
    finally:
        nvrtc.destroyProgram(program)


def _read(path: Path) -> bytes | None:
    """Return a cached cubin; None when there is none or its digest does not match."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, cubin = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    return cubin if hashlib.sha256(cubin).digest() == digest else None
