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
Compile kernels for GPUs with NVRTC, which needs none, and read what ptxas says of them.

Run as a program it rewrites ``registers.json``, the table that ``test_compile.py`` holds the
kernels to.
"""

from concurrent.futures import ThreadPoolExecutor
import ctypes
from dataclasses import asdict, dataclass
import functools
import hashlib
from importlib import metadata
import json
import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile
import uuid

from reflex_llm_ros.engine.backends.cuda.sources import COMPILE_OPTIONS, KernelSource
import shim_build

PACKAGE = 'nvidia-cuda-nvrtc-cu12'
PINNED, NEWEST = '12.6.*', '12.*'
ARCHITECTURES = ('sm_87', 'sm_90')
TABLE = shim_build.TEST_FOLDER / 'registers.json'
HEAD_DIMS = (64, 128, 256)
"""One for each way through attention, which is compiled for a model's."""
SPECIFIED = {'gemm_q4k': 56, 'gemm_q5k': 64, 'gemm_q6k': 64}
"""Registers that the specification reports of the kernels it describes."""


@dataclass(frozen=True)
class Usage:
    """What a kernel needs of a multiprocessor; shared memory without what a launch adds."""

    registers: int
    shared_bytes: int
    spilled_bytes: int


@functools.cache
def nvrtc_folder(version: str) -> Path:
    """Folder of libnvrtc in a version such as ``12.6.*``: installed, or put into ``build``."""
    wanted = re.compile(re.escape(version).replace(r'\*', '.*'))
    try:
        installed = metadata.distribution(PACKAGE)
        if version == PINNED and wanted.fullmatch(installed.version):
            return Path(str(installed.locate_file('nvidia/cuda_nvrtc/lib')))
    except metadata.PackageNotFoundError:
        pass
    folder = shim_build.BUILD_FOLDER / f'nvrtc-{version.rstrip(".*")}'
    if not folder.exists():
        unfinished = shim_build.BUILD_FOLDER / f'unfinished-{uuid.uuid4().hex}'
        subprocess.run([
            sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps',
            '--disable-pip-version-check', '--target', str(unfinished), f'{PACKAGE}=={version}',
        ], check=True)
        try:
            os.rename(unfinished, folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
    return folder / 'nvidia/cuda_nvrtc/lib'


def units() -> list[tuple[str, shim_build.Defines]]:
    """Return every kernel file of the project with the macros that it is compiled with."""
    return [
        (family, defines) for family in shim_build.families()
        for defines in ([(('HEAD_DIM', dim),) for dim in HEAD_DIMS] if family == 'attention'
                        else [()])]


def compile_family(
    family: str, version: str, architecture: str, defines: shim_build.Defines = ()
) -> dict[str, Usage]:
    """
    Compile a kernel file and return each kernel's usage.

    Raises
    ------
    RuntimeError
        The compiler refused the file; the message is its log.

    """
    folder = nvrtc_folder(version)
    source = shim_build.kernel_file(family)
    options = [
        *COMPILE_OPTIONS, f'--gpu-architecture={architecture}', '--ptxas-options=-v',
        *(f'-D{macro}={value}' for macro, value in defines)]
    digest = hashlib.sha256(str([family, options, sorted(os.listdir(folder))]).encode())
    library = next(folder.glob('libnvrtc.so.*'))
    digest.update(str(library.stat().st_size).encode())
    for path in [source, *sorted(shim_build.KERNEL_FOLDER.glob('*.cuh'))]:
        digest.update(path.read_bytes())
    known = shim_build.BUILD_FOLDER / f'{family}-{architecture}-{digest.hexdigest()[:16]}.json'
    known.parent.mkdir(parents=True, exist_ok=True)
    with shim_build.held(known.with_name(f'{known.name}.lock')):
        if not known.exists():
            log, _ = _compile(library, source, [*options, f'-I{shim_build.KERNEL_FOLDER}'])
            unfinished = shim_build.BUILD_FOLDER / f'unfinished-{uuid.uuid4().hex}'
            unfinished.write_text(json.dumps(
                {name: asdict(usage) for name, usage in _usages(log).items()}))
            os.replace(unfinished, known)
    return {name: Usage(**usage) for name, usage in json.loads(known.read_text()).items()}


def compile_all(version: str, architecture: str) -> dict[str, Usage]:
    """Compile every kernel file of the project; usage by kernel and macros, if it has any."""
    usages: dict[str, Usage] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = pool.map(
            lambda unit: compile_family(unit[0], version, architecture, unit[1]), units())
        for (_, defines), kernels in zip(units(), compiled, strict=True):
            end = ''.join(f' {macro}={value}' for macro, value in defines)
            usages.update({kernel + end: usage for kernel, usage in kernels.items()})
    return usages


def table() -> dict[str, dict]:
    """Return what ``registers.json`` should hold."""
    usages = {name: compile_all(PINNED, name) for name in ARCHITECTURES}
    rows: dict[str, dict] = {}
    for kernel in sorted(usages[ARCHITECTURES[0]]):
        rows[kernel] = {
            'registers': {name: usages[name][kernel].registers for name in ARCHITECTURES},
            'shared_bytes': {name: usages[name][kernel].shared_bytes for name in ARCHITECTURES},
        }
        if kernel in SPECIFIED:
            rows[kernel]['specified_registers'] = SPECIFIED[kernel]
    return rows


def _usages(log: str) -> dict[str, Usage]:
    """Read the log of ``ptxas -v``."""
    usages = {}
    for part in re.split(r"Compiling entry function '", log)[1:]:
        shared = re.search(r'(\d+) bytes smem', part)
        spills = re.search(r'(\d+) bytes spill stores, (\d+) bytes spill loads', part)
        usages[part.split("'")[0]] = Usage(
            int(re.search(r'Used (\d+) registers', part)[1]), int(shared[1]) if shared else 0,
            int(spills[1]) + int(spills[2]))
    return usages


def compile_source(
    source: KernelSource, version: str, architecture: str
) -> tuple[dict[str, Usage], bytes]:
    """Compile a source with its headers and return each kernel's usage and the cubin."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in source.headers.items():
            Path(folder, name).write_text(text)
        path = Path(folder, f'{source.name}.cu')
        path.write_text(source.code)
        library = next(nvrtc_folder(version).glob('libnvrtc.so.*'))
        log, cubin = _compile(library, path, [
            *COMPILE_OPTIONS, f'--gpu-architecture={architecture}', '--ptxas-options=-v',
            f'-I{folder}'])
        return _usages(log), cubin


def _compile(library: Path, source: Path, options: list[str]) -> tuple[str, bytes]:
    """Compile a file and return the compiler's log and the cubin."""
    nvrtc = ctypes.CDLL(str(library))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    encoded = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(
        program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    cubin = b''
    if status == 0:
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        cubin = code.raw
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if status != 0:
        raise RuntimeError(f'{source.name}: {log.value.decode()}')
    return log.value.decode(), cubin


def main() -> None:
    """Rewrite the table, a kernel a line."""
    rows = [f'  {json.dumps(name)}: {json.dumps(row)}' for name, row in table().items()]
    TABLE.write_text('{\n' + ',\n'.join(rows) + '\n}\n')


if __name__ == '__main__':
    main()
