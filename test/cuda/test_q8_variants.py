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

"""Which of the Q8_0 kernels of equal results is taken: measured, kept, never of consequence."""

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda import q8_variants
from reflex_llm_ros.engine.backends.cuda.q8_activations import KINDS
from reflex_llm_ros.engine.backends.cuda.q8_variants import fastest_variants
from reflex_llm_ros.engine.config import FastPaths
from shim_device import ShimDevice

PRODUCTS = ('q8_qkv', 'q8_add_norm', 'q8_gate_up', 'q8_head')
ENDS = {name: ('', '_u2', '_u4', '_r2') for name in PRODUCTS} | {'q8_gate_up': ('', '_u2', '_u4')}


class Timed(ShimDevice):
    """Times are 1, but for kernels whose names end in ``fastest``: as the test wants them."""

    def __init__(self, fastest: str) -> None:
        super().__init__()
        self.fastest = fastest
        self.timed = 0

    def elapsed(self, work: Callable[[], None]) -> float:
        before = dict(self.launches)
        work()
        self.timed += 1
        ran = [name for name in self.launches if self.launches[name] != before.get(name)]
        return 0.5 if all(name.endswith(self.fastest) for name in ran) else 1.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a cache of its own to a test."""
    monkeypatch.setattr(q8_variants, 'cache_folder', lambda: tmp_path / 'cache')
    return tmp_path / 'cache'


@pytest.fixture
def make_device() -> Any:
    return ShimDevice


def ids(backend: Any) -> list[int]:
    stream = backend.stream(3, 0, True, lambda logits: -1)
    return [next(stream) for _ in range(6)]


@pytest.mark.parametrize('kind', ['a8', 'a8x2'])
def test_the_fastest_is_taken_and_changes_no_id(
    small_q8_path: Path, kind: str, folder: Path, open_backend: Any
) -> None:
    streams = []
    for end in ('_u2', '_u4', '_r2'):
        for file in folder.glob('*'):
            file.unlink()
        backend = open_backend(small_q8_path, Timed(end), q8_activations=kind)
        chosen = backend.variants()
        assert {product.split()[0] for product in chosen} == set(PRODUCTS)
        for product, kernel in chosen.items():
            name = product.split()[0]
            assert kernel == f'{name}_{kind}' + (end if end in ENDS[name] else '')
        device = backend.device
        device.launches.clear()
        streams.append(ids(backend))
        assert set(chosen.values()) <= set(device.launches)
        streams.append(list(np.ravel(backend.forward([1], 6))))
    assert streams[0] == streams[2] == streams[4]
    assert streams[1] == streams[3] == streams[5]


def test_fp32_has_nothing_to_choose(small_q8_path: Path, folder: Path, open_backend: Any) -> None:
    backend = open_backend(small_q8_path, Timed('_u2'), q8_activations='f32')
    assert backend.variants() == {} and backend.device.timed == 0


def test_what_was_measured_is_kept_for_the_device(
    small_q8_path: Path, folder: Path, open_backend: Any
) -> None:
    first = open_backend(small_q8_path, Timed('_u4'))
    assert first.device.timed > 0
    second = open_backend(small_q8_path, Timed('_u2'))
    assert second.device.timed == 0 and second.variants() == first.variants()


@pytest.mark.parametrize('switch', ['gemv', 'norm'])
def test_nothing_is_measured_of_kernels_that_are_off(
    small_q8_path: Path, switch: str, folder: Path, open_backend: Any
) -> None:
    device = Timed('_u2')
    open_backend(small_q8_path, device, fast=FastPaths(**{switch: False}))
    assert device.timed == 0
    fused = tuple(f'{name}_a8x2' for name in PRODUCTS)
    assert not [name for name in device.launches if name.startswith(fused)]


def test_a_variant_that_is_asked_for_is_not_measured(
    small_q8_path: Path, folder: Path, open_backend: Any
) -> None:
    device = Timed('_u2')
    backend = open_backend(small_q8_path, device, q8_variant='u4')
    assert device.timed == 0 and not folder.exists()
    backend.forward([1], 0)
    assert {name for name in device.launches if name.startswith('q8_')} == {
        f'{name}_a8x2_u4' for name in PRODUCTS}


class Stub(Timed):
    """Of ``launches``, which no shim runs."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


def launches(device: Any) -> dict[str, list[Callable[[str], None]]]:
    def launch(end: str) -> None:
        device.launches['k' + end] = device.launches.get('k' + end, 0) + 1
        if 'k' + end in device.failing:
            device.launch(('q8_layer', 'k' + end), (1,), 1, ())

    return {'q8_head 8x8': [launch]}


@pytest.mark.parametrize('content', [
    b'', b'[1]', b'{"q8_head 8x8": "_u', b'{"q8_head 8x8": "_u9"}', b'\xff\xfe',
    b'{"q8_head 8x8": ["_u2"]}'])
def test_a_damaged_cache_is_measured_again(folder: Path, content: bytes) -> None:
    device = Stub('_u2')
    kind = KINDS['a8']
    fastest_variants(device, kind, launches(device))
    file, = folder.glob('*')
    file.write_bytes(content)
    device.fastest = '_u4'
    assert fastest_variants(device, kind, launches(device)) == {'q8_head 8x8': '_u4'}
    assert json.loads(file.read_text())['q8_head 8x8'] == '_u4'


def test_a_folder_that_cannot_be_written_costs_only_time(folder: Path) -> None:
    folder.write_text('a file where the folder should be')
    device = Stub('_u2')
    for _ in range(2):
        assert fastest_variants(device, KINDS['a8'], launches(device)) == {'q8_head 8x8': '_u2'}
    assert device.timed == 2 * 4 * q8_variants.REPEATS


def test_a_variant_that_fails_is_not_chosen(folder: Path) -> None:
    device = Stub('_u2')
    device.failing = {'k_u2'}
    assert fastest_variants(device, KINDS['a8'], launches(device)) == {'q8_head 8x8': ''}
