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
Build a kernel file for the host, through the shim.

What is built lies in ``build/kernels`` under a name that holds a hash of everything that went
into it, so a build is found again, never stale, and safe to make from several processes.
"""

from collections.abc import Iterator, Sequence
import contextlib
import fcntl
import functools
import hashlib
import os
from pathlib import Path
import platform
import re
import subprocess
import uuid

TEST_FOLDER = Path(__file__).resolve().parent
SHIM_FOLDER = TEST_FOLDER / 'shim'
KERNEL_FOLDER = TEST_FOLDER.parents[1] / 'kernels'
BUILD_FOLDER = TEST_FOLDER.parents[1] / 'build' / 'kernels'

# Products and sums are fused where a kernel says fmaf and nowhere else, as on the device.
# Shared variables of templates must stay those of their own library.
FLAGS = (
    '-std=c++17', '-O2', '-g1', '-fPIC', '-ffp-contract=off', '-fno-strict-aliasing',
    '-fvisibility=hidden', '-fno-gnu-unique', '-Wall', '-Wno-unknown-pragmas',
    '-Wno-unused-function', '-Wno-unused-variable',
)
SANITIZE = (
    '-O1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all', '-fno-omit-frame-pointer',
)


def kernel_file(family: str) -> Path:
    """Path of a kernel file: the project's, or a test's own."""
    own = TEST_FOLDER / f'{family}.cu'
    return own if own.exists() else KERNEL_FOLDER / f'{family}.cu'


def families() -> list[str]:
    """Names of the project's kernel files."""
    return sorted(path.stem for path in KERNEL_FOLDER.glob('*.cu'))


Defines = tuple[tuple[str, int | str], ...]
"""Macros that a kernel file is compiled with."""


@functools.cache
def kernel_names(family: str, defines: Defines = ()) -> Sequence[str]:
    """Names of the kernels that a file defines, macros expanded."""
    text = _run([
        'g++', *_machine_flags(), '-std=c++17', '-E', '-P', '-DSHIM_LIST_KERNELS',
        f'-I{KERNEL_FOLDER}', '-include', str(SHIM_FOLDER / 'shim.h'),
        *(f'-D{macro}={value}' for macro, value in defines), '-x', 'c++',
        str(kernel_file(family)),
    ])
    return tuple(re.findall(r'extern "C"\s+__global__\s+void\s+(\w+)\s*\(', text))


@functools.cache
def build_library(family: str, sanitize: bool, defines: Defines = ()) -> Path:
    """Shared library with the kernels of one file and the function ``shim_launch``."""
    entries = ' '.join(f'SHIM_KERNEL({name})' for name in kernel_names(family, defines))
    macros = ''.join(f'#define {macro} {value}\n' for macro, value in defines)
    text = (f'{macros}#include "shim.h"\n#include "{kernel_file(family)}"\n'
            f'SHIM_EXPORT({entries})\n')
    flags = [
        *_machine_flags(), *FLAGS, *(SANITIZE if sanitize else ()), '-shared',
        f'-I{SHIM_FOLDER}', f'-I{KERNEL_FOLDER}', '-x', 'c++',
    ]
    return _build(f'{family}-', text, [kernel_file(family)], flags, '.so')


@functools.cache
def build_worker() -> Path:
    """Program that loads a sanitized library and runs kernels on request."""
    source = SHIM_FOLDER / 'worker.cpp'
    text = f'#include "{source}"\n'
    return _build('worker-', text, [source], [
        '-std=c++17', '-O1', '-g1', '-Wall', *SANITIZE, '-x', 'c++'], '', ['-ldl'])


def _build(
    prefix: str, text: str, sources: Sequence[Path], flags: Sequence[str], suffix: str,
    libraries: Sequence[str] = ()
) -> Path:
    """Compile ``text`` unless a build from the same input exists."""
    digest = hashlib.sha256(_compiler_version().encode())
    headers = sorted([*SHIM_FOLDER.glob('*.h'), *KERNEL_FOLDER.glob('*.cuh')])
    for part in [text, *flags, *libraries]:
        digest.update(part.encode() + b'\0')
    for path in [*sources, *headers]:
        digest.update(path.read_bytes() + b'\0')
    target = BUILD_FOLDER / f'{prefix}{digest.hexdigest()[:16]}{suffix}'
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    with held(target.with_name(f'{target.name}.lock')):
        if target.exists():
            return target
        unfinished = BUILD_FOLDER / f'unfinished-{uuid.uuid4().hex}'
        source = unfinished.with_suffix('.cpp')
        source.write_text(text)
        try:
            _run(['g++', *flags, str(source), '-o', str(unfinished), *libraries])
        finally:
            source.unlink()
        os.replace(unfinished, target)
    return target


@contextlib.contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold a lock file, so that two test processes do not make the same build at once."""
    with lock.open('w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _compiler_version() -> str:
    return _run(['g++', '--version'])


def _machine_flags() -> Sequence[str]:
    return ('-mfma', '-mf16c') if platform.machine() in ('x86_64', 'AMD64') else ()


def _run(command: list[str]) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f'{" ".join(command)}\n{result.stderr}')
    return result.stdout
