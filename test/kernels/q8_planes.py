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

"""Q8_0 planes and activations for kernel tests: made, taken apart, and what they mean."""

from dataclasses import dataclass
from typing import Any

from devices import constant, poisoned
import numpy as np

GROUP = 32
BLOCK = 128
ONE = constant(np.ones(1, np.float32))


@dataclass(frozen=True)
class Kind:
    """A kind of activations: its name in kernels, bytes of 32, and how near products come."""

    name: str
    group_bytes: int
    tolerance: float


A8 = Kind('a8', 36, 1e-2)
A8X2 = Kind('a8x2', 68, 1e-4)
F32 = Kind('f32', 128, 1e-4)
KINDS = (A8, A8X2, F32)


@dataclass(frozen=True)
class Planes:
    """A matrix (M, K) as int8 words and fp16 scales (M, K/32); ``values`` is it in float64."""

    words: np.ndarray
    scales: np.ndarray

    @property
    def values(self) -> np.ndarray:
        return self.words * np.repeat(self.scales.astype(np.float64), GROUP, axis=1)


def random_planes(rng: np.random.Generator, rows: int, length: int) -> Planes:
    """Return words from -128 to 127 and scales of either sign."""
    words = rng.integers(-128, 128, (rows, length), np.int8)
    scales = (0.01 * rng.standard_normal((rows, length // GROUP))).astype(np.float16)
    return Planes(constant(words), constant(scales))


def activation_bytes(kind: Kind, tokens: int, length: int) -> np.ndarray:
    """Return a buffer to write activations to."""
    return poisoned(tokens * length // GROUP * kind.group_bytes, np.uint8)


def words_of(buffer: np.ndarray, kind: Kind, tokens: int, length: int) -> list[np.ndarray]:
    """Take quantized activations apart: words (N, K) of each plane, scales (N, K/32)."""
    count = tokens * length
    planes = 2 if kind is A8X2 else 1
    words = [
        buffer[plane * count:(plane + 1) * count].view(np.int8).reshape(tokens, length)
        for plane in range(planes)]
    scales = buffer[planes * count:].view(np.float32).reshape(tokens, length // GROUP)
    return [*words, scales]


def values_of(buffer: np.ndarray, kind: Kind, tokens: int, length: int) -> np.ndarray:
    """Return the activations (N, K) that a buffer stands for, in float64."""
    if kind is F32:
        return buffer.view(np.float32).reshape(tokens, length).astype(np.float64)
    *words, scales = words_of(buffer, kind, tokens, length)
    values = words[0].astype(np.float64)
    if kind is A8X2:
        values = values + words[1] / 127
    return values * np.repeat(scales.astype(np.float64), GROUP, axis=1)


def quantized(device: Any, kind: Kind, x: np.ndarray) -> np.ndarray:
    """Return the activations of x (N, K) float32, made by the kernel under test elsewhere."""
    tokens, length = x.shape
    if kind is F32:
        return constant(x.reshape(-1).view(np.uint8))
    buffer = activation_bytes(kind, tokens, length)
    device.run('q8_quantize', f'quantize_{kind.name}', -(-x.size // BLOCK), BLOCK, [
        buffer, constant(x), np.int32(tokens), np.int32(length)])
    return constant(buffer)


def norm_error(result: np.ndarray, x: np.ndarray, matrix: np.ndarray) -> float:
    """
    Return the error of x (..., K) times the transpose of a matrix (M, K), against float64.

    It is relative to the norm of the product, or to what that norm is on average for terms of
    this size and random signs: a single sum may by chance be next to nothing.
    """
    reference = x.astype(np.float64) @ matrix.T
    typical = np.sqrt((x.astype(np.float64) ** 2) @ (matrix * matrix).T)
    return float(np.linalg.norm(result - reference) / max(
        np.linalg.norm(reference), np.linalg.norm(typical)))
