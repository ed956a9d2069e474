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

"""The compiled kernels' cache: found again, never trusted when damaged, never in the way."""

from pathlib import Path
import struct

import pytest
from reflex_llm_ros.engine.backends.cuda.kernel_files import WHOLE_FILES
from reflex_llm_ros.engine.backends.cuda.sources import kernel_source, KernelSource
from reflex_llm_ros.engine.errors import EngineError

compiler = pytest.importorskip(
    'reflex_llm_ros.engine.backends.cuda.compiler', reason='CuPy is not installed')

CODE = '#include "device.cuh"\nextern "C" __global__ void one(float *x) { *x = VALUE; }\n'
HEADERS = {'device.cuh': '#define VALUE 1.0f\n'}
SOURCE = KernelSource('one', CODE, HEADERS)
CAPABILITY = (8, 7)


@pytest.fixture(autouse=True)
def needs_nvrtc() -> None:
    """Skip where CuPy finds no NVRTC; version 13 does not look where pip puts it."""
    try:
        compiler.nvrtc_version()
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that compiled kernels go to, empty."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    return tmp_path / 'reflex_llm_ros'


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by a name at each real compilation."""
    names: list[str] = []
    compile_it = compiler._compile

    def counted(source: KernelSource, options: tuple[str, ...]) -> bytes:
        names.append(source.name)
        return compile_it(source, options)

    monkeypatch.setattr(compiler, '_compile', counted)
    return names


def test_second_compilation_comes_from_the_cache(compilations: list[str]) -> None:
    first = compiler.compile_cubin(SOURCE, CAPABILITY)
    assert first.startswith(b'\x7fELF')
    assert compiler.compile_cubin(SOURCE, CAPABILITY) == first
    assert compilations == ['one']


@pytest.mark.parametrize('source,capability', [
    (KernelSource('one', CODE + '\n', HEADERS), CAPABILITY),
    (KernelSource('one', CODE, {'device.cuh': '#define VALUE 2.0f\n'}), CAPABILITY),
    (SOURCE, (9, 0)),
])
def test_anything_that_changes_the_code_is_part_of_the_key(
    source: KernelSource, capability: tuple[int, int], compilations: list[str]
) -> None:
    compiler.compile_cubin(SOURCE, CAPABILITY)
    compiler.compile_cubin(source, capability)
    assert len(compilations) == 2


@pytest.mark.parametrize('damage', [
    lambda data: b'', lambda data: data[:-1], lambda data: data[:40],
    lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_damaged_entry_is_compiled_again(
    damage: 'object', cache: Path, compilations: list[str]
) -> None:
    good = compiler.compile_cubin(SOURCE, CAPABILITY)
    entry, = cache.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert compiler.compile_cubin(SOURCE, CAPABILITY) == good
    assert compiler.compile_cubin(SOURCE, CAPABILITY) == good
    assert len(compilations) == 2


def test_cache_that_cannot_be_written_costs_time_only(
    cache: Path, compilations: list[str]
) -> None:
    cache.write_text('a file where the folder should be')
    good = compiler.compile_cubin(SOURCE, CAPABILITY)
    assert compiler.compile_cubin(SOURCE, CAPABILITY) == good
    assert len(compilations) == 2


def test_a_cubin_is_whole() -> None:
    cubin = compiler.compile_cubin(SOURCE, CAPABILITY)
    # Where an ELF's tables of segments and sections begin, and their entries' sizes and numbers.
    segments, sections = struct.unpack_from('<QQ', cubin, 0x20)
    size, count, section_size, section_count = struct.unpack_from('<HHHH', cubin, 0x36)
    end = max(segments + size * count, sections + section_size * section_count)
    assert end == len(cubin)


def test_error_names_kernel_and_line() -> None:
    broken = KernelSource('wrong', 'extern "C" __global__ void f() {\n  nonsense;\n}\n', {})
    with pytest.raises(EngineError, match=r'wrong\.cu\(2\): .*nonsense'):
        compiler.compile_cubin(broken, CAPABILITY)


def test_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError('CuPy failed to load libnvrtc.so.12')

    monkeypatch.setattr(compiler.nvrtc, 'getVersion', missing)
    with pytest.raises(EngineError, match='no CUDA compiler: .*libnvrtc.so.12') as raised:
        compiler.compile_cubin(SOURCE, CAPABILITY)
    assert '\n' not in str(raised.value)


def test_the_macros_of_a_file_are_part_of_the_key(compilations: list[str]) -> None:
    for words in (1, 2, 1):
        compiler.compile_cubin(kernel_source('q8_swiglu', {'Q8_WORDS': words}), CAPABILITY)
    assert compilations == ['q8_swiglu', 'q8_swiglu']


def test_several_are_compiled_at_once_and_each_has_its_name(compilations: list[str]) -> None:
    sources = [kernel_source(name) for name in WHOLE_FILES]
    cubins = dict(compiler.compile_cubins(sources, CAPABILITY))
    assert sorted(compilations) == sorted(cubins) == sorted(WHOLE_FILES)
    for source in sources:
        assert cubins[source.name] == compiler.compile_cubin(source, CAPABILITY)


def test_what_fails_among_several_is_named(compilations: list[str]) -> None:
    broken = KernelSource('wrong', 'extern "C" __global__ void f() {\n  nonsense;\n}\n', {})
    with pytest.raises(EngineError, match=r'wrong\.cu\(2\): .*nonsense'):
        list(compiler.compile_cubins([SOURCE, broken], CAPABILITY))
