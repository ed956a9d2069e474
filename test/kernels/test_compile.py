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

"""Every kernel compiles for the devices we name, spills nothing and keeps to its registers."""

from dataclasses import replace
import json
import re

import pytest
from reflex_llm_ros.engine.backends.cuda.device_info import DeviceInfo
from reflex_llm_ros.engine.backends.cuda.persistent import defines as decode_defines
from reflex_llm_ros.engine.backends.cuda.sources import kernel_source
from reflex_llm_ros.synthetic.model_shape import ModelShape, PRESETS
import registers
import shim_build

SHAPES = {
    **PRESETS, '14b': ModelShape(40, 5120, 17408, 40, 8),
    '32b': ModelShape(64, 5120, 25600, 64, 8)}
K_QUANTS = ('q4k', 'q6k')
DEVICES = {
    'sm_87': DeviceInfo('Orin Nano', (8, 7), 8, True, 8 << 30, 163 << 10),
    'sm_90': DeviceInfo('H200', (9, 0), 132, False, 139 << 30, 227 << 10)}

every_architecture = pytest.mark.parametrize('architecture', registers.ARCHITECTURES)


@every_architecture
@pytest.mark.parametrize('version', [registers.PINNED, registers.NEWEST])
@pytest.mark.parametrize('family, defines', registers.units())
def test_no_kernel_spills(
    family: str, defines: shim_build.Defines, version: str, architecture: str
) -> None:
    usages = registers.compile_family(family, version, architecture, defines)
    assert sorted(usages) == sorted(shim_build.kernel_names(family, defines))
    spilled = {name: usage.spilled_bytes for name, usage in usages.items()}
    assert spilled == dict.fromkeys(usages, 0)


@every_architecture
@pytest.mark.parametrize('version', [registers.PINNED, registers.NEWEST])
@pytest.mark.parametrize('size, types, kv_cache', [
    ('0.6b', K_QUANTS, 'f16'), ('4b', K_QUANTS, 'int8'), ('8b', K_QUANTS, 'f16'),
    ('14b', K_QUANTS, 'f16'), ('32b', K_QUANTS, 'f16'), ('32b', K_QUANTS, 'int8'),
    ('32b', ('q8_0',), 'f16')])
def test_the_decode_kernel_fits_every_model(
    size: str, types: tuple[str, ...], kv_cache: str, version: str, architecture: str
) -> None:
    """No registers are spilled, and a block finds room for its ring."""
    macros = decode_defines(SHAPES[size], types, 'a8x2', kv_cache, DEVICES[architecture])
    source = kernel_source('decode', macros)
    source = replace(source, code=source.code + (
        'static_assert(RING_BYTES + sizeof(Shared) <= DECODE_SHARED_BYTES, "too large");'))
    usages, _ = registers.compile_source(source, version, architecture)
    assert usages['decode_step'].spilled_bytes == 0


@every_architecture
@pytest.mark.parametrize('version', [registers.PINNED, registers.NEWEST])
def test_a_decode_kernel_that_counts_its_cycles_spills_nothing(
    version: str, architecture: str
) -> None:
    usages, _ = registers.compile_source(
        kernel_source('decode', {'DECODE_CLOCKS': 1}), version, architecture)
    assert usages['decode_step'].spilled_bytes == 0


@every_architecture
def test_counting_leaves_nothing_where_it_is_off(architecture: str) -> None:
    source = kernel_source('decode')
    call = re.compile(r'^  +(lap|clock_\w+|end_clock)\(.*\);\n', re.MULTILINE)
    calls = 0

    def without(text: str) -> str:
        nonlocal calls
        text, found = call.subn('', text)
        calls += found
        return text

    bare = replace(source, code=without(source.code), headers={
        name: without(text) for name, text in source.headers.items()})
    assert calls >= 10
    compiled = [registers.compile_source(each, registers.PINNED, architecture)[1]
                for each in (source, bare)]
    assert compiled[0] == compiled[1]


def test_the_register_table_holds() -> None:
    """After a change that is meant, run ``python test/kernels/registers.py`` and commit."""
    assert json.loads(registers.TABLE.read_text()) == registers.table()


def test_a_block_of_every_kernel_fits() -> None:
    for architecture in registers.ARCHITECTURES:
        for name, usage in registers.compile_all(registers.PINNED, architecture).items():
            assert usage.shared_bytes <= 48 * 1024, name


def test_what_does_not_compile_is_reported(tmp_path, monkeypatch) -> None:
    (tmp_path / 'broken.cu').write_text('extern "C" __global__ void broken() { undeclared; }')
    monkeypatch.setattr(shim_build, 'KERNEL_FOLDER', tmp_path)
    with pytest.raises(RuntimeError, match=r'broken.cu.*\n*.*undeclared'):
        registers.compile_family('broken', registers.PINNED, 'sm_87')
