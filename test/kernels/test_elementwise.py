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

"""SwiGLU, residual add and conversions."""

from typing import Any

from devices import constant, poisoned
from numerics import assert_rounded
import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops

COUNTS = [1, 127, 128, 1536 * 3 + 5]


def blocks(count: int) -> int:
    return -(-count // 128)


@pytest.mark.parametrize('count', COUNTS)
def test_swiglu(device: Any, rng: np.random.Generator, count: int) -> None:
    gate = constant((8 * rng.standard_normal(count)).astype(np.float16))
    up = constant((8 * rng.standard_normal(count)).astype(np.float16))
    out = poisoned(count)
    device.run('elementwise', 'swiglu', blocks(count), 128, [out, gate, up, np.int32(count)])
    assert_rounded(out, reference_ops.swiglu(gate.astype(np.float64), up.astype(np.float64)))


def test_swiglu_of_extremes_in_place(device: Any) -> None:
    gate = np.array([0, -65504, 65504, 65504, -100, np.nan], np.float16)
    up = constant(np.array([65504, 65504, 65504, -65504, 1, 1], np.float16))
    device.run('elementwise', 'swiglu', 1, 128, [gate, gate, up, np.int32(6)])
    np.testing.assert_array_equal(gate, np.float16([0, 0, 65504, -65504, 0, np.nan]))


@pytest.mark.parametrize('count', COUNTS)
def test_residual_add(device: Any, rng: np.random.Generator, count: int) -> None:
    x = (1e3 * rng.standard_normal(count)).astype(np.float32)
    y = constant(rng.standard_normal(count).astype(np.float16))
    expected = x + y.astype(np.float32)
    device.run('elementwise', 'residual_add', blocks(count), 128, [x, y, np.int32(count)])
    np.testing.assert_array_equal(x, expected)


def test_every_half_becomes_its_float(device: Any) -> None:
    x = constant(np.arange(65536, dtype=np.uint16).view(np.float16))
    out = poisoned(65536, np.float32)
    device.run('elementwise', 'halves_to_floats', 512, 128, [out, x, np.int32(65536)])
    np.testing.assert_array_equal(out, x.astype(np.float32))


def test_floats_round_to_halves_and_saturate(device: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal(1000) * 10.0 ** rng.uniform(-9, 8, 1000)
    x = constant(np.concatenate([x, [np.nan, np.inf, -np.inf, 65519, 65520]]).astype(np.float32))
    out = poisoned(1005)
    device.run('elementwise', 'floats_to_halves', blocks(1005), 128, [out, x, np.int32(1005)])
    np.testing.assert_array_equal(out, np.clip(x, -65504, 65504).astype(np.float16))
