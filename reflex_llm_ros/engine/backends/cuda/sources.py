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

"""Where the kernel sources are, and what one translation unit consists of."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

Defines = Mapping[str, int | str]
"""Macros of a kernel file: name, with parameters where it has some, and value."""
COMPILE_OPTIONS = ('--std=c++17', '--fmad=false')
"""The compiler fuses nothing by itself: kernels that must agree to the bit do."""


@dataclass(frozen=True)
class KernelSource:
    """One .cu file with the headers that it may include, by name."""

    name: str
    code: str
    headers: dict[str, str]


def kernel_folder() -> Path:
    """Return the folder of the kernel sources, which the package carries as data."""
    return Path(str(files('reflex_llm_ros'))) / 'kernels'


def kernel_source(name: str, defines: Defines | None = None) -> KernelSource:
    """Read ``name``.cu, with macros before its first line, and the project's headers."""
    folder = kernel_folder()
    macros = ''.join(f'#define {macro} {value}\n' for macro, value in (defines or {}).items())
    if macros:
        macros += '#line 1\n'
    return KernelSource(
        name=name,
        code=macros + (folder / f'{name}.cu').read_text(encoding='utf-8'),
        headers={
            header.name: header.read_text(encoding='utf-8')
            for header in sorted(folder.glob('*.cuh'))},
    )
