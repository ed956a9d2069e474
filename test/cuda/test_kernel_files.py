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

"""A model's kernels are compiled, and no others."""

from pathlib import Path
from typing import Any

import pytest
import shim_build
from shim_device import ShimDevice


def compiled(device: ShimDevice) -> dict[str, set[str]]:
    """Kernels that a device has, by file."""
    return {file: set(shim_build.kernel_names(file, tuple(defines.items())))
            for file, defines in device.loaded.items()}


def test_only_its_types_are_compiled(small_qwen3_path: Path, open_backend: Any) -> None:
    device = ShimDevice()
    open_backend(small_qwen3_path, device)
    kernels = compiled(device)
    assert kernels['gemm'] == {'gemm_q4k', 'gemm_q4k_uint32', 'gemm_q6k'}
    assert kernels['embed'] == {'embed_row_q4k', 'embed_row_q4k_uint32', 'embed_row_q6k'}
    assert 'gemv_triple_q4k_q4k_q6k_uint32' in kernels['gemv']


def test_what_takes_types_together_is_left_out_with_one_of_them(
    small_q8_path: Path, open_backend: Any
) -> None:
    device = ShimDevice()
    open_backend(small_q8_path, device, weights='device')
    assert compiled(device)['gemv'] == {
        f'{name}_q8_0' for name in ('gemv', 'gemv_logits', 'gemv_add', 'gemv_pair')}


@pytest.mark.parametrize('cache, end', [('f16', ''), ('int8', '_int8')])
def test_only_its_heads_and_cache_are_compiled(
    cache: str, end: str, small_qwen3_path: Path, open_backend: Any
) -> None:
    device = ShimDevice()
    open_backend(small_qwen3_path, device, kv_cache=cache)
    assert device.loaded['attention']['HEAD_DIM'] == 64
    assert compiled(device)['attention'] == {
        f'attention_{kind}{end}' for kind in ('split', 'decode', 'prefill')}


@pytest.mark.parametrize('kind', ['a8', 'a8x2', 'f32'])
def test_only_its_activations_are_compiled(
    kind: str, small_q8_path: Path, open_backend: Any
) -> None:
    device = ShimDevice()
    open_backend(small_q8_path, device, q8_activations=kind)
    kernels = compiled(device)
    assert kernels['q8_gemm'] == {f'gemm_q8_{kind}'}
    assert all(kind in name.split('_') for name in kernels['q8_layer'])
    assert not {'gemv', 'gemm', 'embed', 'decode'} & set(kernels)
