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

"""What writes activations for Q8_0 products: quantizers, norms, SwiGLU."""

from typing import Any

from devices import constant, poisoned
from numerics import assert_near
import numpy as np
import pytest
from q8_planes import (
    A8,
    A8X2,
    activation_bytes,
    F32,
    GROUP,
    Kind,
    KINDS,
    values_of,
    words_of,
)
from reflex_llm_ros.engine.backends import reference_ops

EPS = np.float32(1e-6)
SHAPES = [(1, 32), (1, 96), (3, 576), (32, 160)]

every_kind = pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.name)
quantized_kinds = pytest.mark.parametrize('kind', [A8, A8X2], ids=lambda kind: kind.name)


def wild(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return numbers whose groups of 32 differ by orders of magnitude."""
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, (*shape[:-1], shape[-1] // GROUP)
                                                          ).repeat(GROUP, axis=-1)
    return constant(x.astype(np.float32))


def assert_quantized(
    buffer: np.ndarray, kind: Kind, expected: np.ndarray, slack: float = 1e-5
) -> None:
    """Check activations against float64, by the bound of their kind, group by group."""
    values = values_of(buffer, kind, *expected.shape)
    largest = np.abs(expected).reshape(*expected.shape[:-1], -1, GROUP).max(axis=-1)
    step = {'a8': 0.5 / 127, 'a8x2': 0.5 / 127 ** 2, 'f32': 0.0}[kind.name] + slack
    assert np.all(np.abs(values - expected) <= step * largest.repeat(GROUP, axis=-1))


def quantize(device: Any, kind: Kind, x: np.ndarray) -> np.ndarray:
    name = f'quantize_{kind.name}' + ('_half' if x.dtype == np.float16 else '')
    buffer = activation_bytes(kind, *x.shape)
    device.run('q8_quantize', name, -(-x.size // 128), 128, [
        buffer, constant(x), np.int32(x.shape[0]), np.int32(x.shape[1])])
    return buffer


@quantized_kinds
@pytest.mark.parametrize('shape', SHAPES)
def test_quantize(device: Any, rng: np.random.Generator, kind: Kind, shape: tuple) -> None:
    x = wild(rng, *shape)
    assert_quantized(quantize(device, kind, x), kind, x.astype(np.float64), 1e-6)


@every_kind
def test_quantize_halves(device: Any, rng: np.random.Generator, kind: Kind) -> None:
    x = rng.standard_normal((2, 96)).astype(np.float16)
    expected = values_of(quantize(device, kind, x), kind, 2, 96)
    if kind is F32:
        np.testing.assert_array_equal(expected, x)
    else:
        np.testing.assert_array_equal(
            expected, values_of(quantize(device, kind, x.astype(np.float32)), kind, 2, 96))


def test_high_words_are_those_of_one_word(device: Any, rng: np.random.Generator) -> None:
    x = wild(rng, 4, 576)
    one, two = quantize(device, A8, x), quantize(device, A8X2, x)
    words, scales = words_of(one, A8, 4, 576)
    high, _, scales_of_two = words_of(two, A8X2, 4, 576)
    np.testing.assert_array_equal(words, high)
    np.testing.assert_array_equal(scales, scales_of_two)


@quantized_kinds
def test_zeros_and_what_is_no_number(device: Any, kind: Kind) -> None:
    x = np.zeros((3, GROUP), np.float32)
    x[1, 5], x[2, 7] = np.nan, 1e-38
    values = values_of(quantize(device, kind, x), kind, 3, GROUP)
    assert not values[0].any()
    assert np.isnan(values[1]).any()
    assert np.all(np.abs(values[2]) <= 1e-37)


def rmsnorm(
    device: Any, kind: Kind, x: np.ndarray, weight: np.ndarray, y: np.ndarray | None = None,
    copy: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run a norm; x is changed where y is added. Returns activations, factors and the copy."""
    tokens, width = x.shape
    buffer = activation_bytes(kind, tokens, width)
    factors, whole = poisoned(tokens, np.float32), poisoned((tokens, width), np.float32)
    squares = poisoned((tokens, width // GROUP), np.float32)
    name = ('add_' if y is not None else '') + f'rmsnorm_q8_{kind.name}' + '_copy' * copy
    device.run('q8_norm', name, tokens, 128, [
        buffer, factors, squares, *([whole] if copy else []), x,
        *([y] if y is not None else []), weight, np.int32(tokens), np.int32(width), EPS])
    again = poisoned(tokens, np.float32)
    device.run('q8_norm', 'norm_factors', tokens, 32, [
        again, constant(squares), np.int32(width), EPS])
    np.testing.assert_array_equal(again, factors)
    return buffer, factors, whole


@every_kind
@pytest.mark.parametrize('copy', [False, True])
@pytest.mark.parametrize('add', [False, True])
@pytest.mark.parametrize('tokens, width', [(1, 32), (2, 576), (1, 4224)])
def test_norm(
        device: Any, rng: np.random.Generator, kind: Kind, add: bool, copy: bool, tokens: int,
        width: int) -> None:
    x = rng.standard_normal((tokens, width), np.float32) * np.float32(rng.uniform(0.1, 100))
    y = constant(rng.standard_normal((tokens, width), np.float32)) if add else None
    weight = constant(rng.standard_normal(width, np.float32))
    total = x + y if add else x.copy()
    buffer, factors, whole = rmsnorm(device, kind, x, weight, y, copy)
    np.testing.assert_array_equal(x, total)
    expected = reference_ops.rmsnorm(total.astype(np.float64), weight.astype(np.float64), EPS)
    factor = factors.astype(np.float64)[:, None]
    assert_quantized(buffer, kind, expected / factor)
    mean_square = np.mean(total.astype(np.float64) ** 2, axis=-1)
    np.testing.assert_allclose(factors, 1 / np.sqrt(mean_square + EPS), rtol=1e-6)
    if copy:
        assert_near(whole, expected, 1e-6)


@pytest.mark.parametrize('add', [False, True])
def test_norm_has_the_high_words_of_one_word(
        device: Any, rng: np.random.Generator, add: bool) -> None:
    x = rng.standard_normal((2, 576), np.float32)
    y = constant(rng.standard_normal((2, 576), np.float32)) if add else None
    weight = constant(rng.standard_normal(576, np.float32))
    words, scales = words_of(rmsnorm(device, A8, x.copy(), weight, y)[0], A8, 2, 576)
    high, _, scales_of_two = words_of(
        rmsnorm(device, A8X2, x.copy(), weight, y)[0], A8X2, 2, 576)
    np.testing.assert_array_equal(words, high)
    np.testing.assert_array_equal(scales, scales_of_two)


@every_kind
@pytest.mark.parametrize('shape', SHAPES)
def test_swiglu(device: Any, rng: np.random.Generator, kind: Kind, shape: tuple) -> None:
    gate = constant(4 * rng.standard_normal(shape, np.float32))
    up = constant(rng.standard_normal(shape, np.float32))
    buffer = activation_bytes(kind, *shape)
    name = 'swiglu_f32' if kind is F32 else f'swiglu_q8_{kind.name}'
    device.run('q8_swiglu', name, -(-gate.size // 128), 128, [
        buffer, gate, up, np.int32(shape[0]), np.int32(shape[1])])
    assert_quantized(
        buffer, kind, reference_ops.swiglu(gate.astype(np.float64), up.astype(np.float64)))


def test_swiglu_of_a_huge_gate(device: Any) -> None:
    gate = constant(np.full((1, GROUP), -200.0, np.float32))
    buffer = activation_bytes(F32, 1, GROUP)
    device.run('q8_swiglu', 'swiglu_f32', 1, 128, [
        buffer, gate, constant(np.ones((1, GROUP), np.float32)), np.int32(1), np.int32(GROUP)])
    assert not values_of(buffer, F32, 1, GROUP).any()
