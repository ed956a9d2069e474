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

"""Rotary position embedding, at any position a model can have."""

from typing import Any

from devices import constant
from numerics import assert_rounded
import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops

LAST_POSITION = 131071


def turns_per_position(frequencies: np.ndarray) -> np.ndarray:
    """Return what the kernel takes for frequencies (radians a position): 2^-64 turns, uint64."""
    return np.rint(frequencies / (2 * np.pi) * 2.0 ** 64).astype(np.uint64)


@pytest.mark.parametrize('pairing', ['half', 'adjacent'])
@pytest.mark.parametrize('tokens, heads, groups, dim, base', [
    (1, 16, 8, 128, 1e6), (32, 9, 3, 64, 1e4), (3, 1, 1, 96, 1e5), (2, 8, 1, 256, 1e7),
])
def test_rope(
        device: Any, rng: np.random.Generator, pairing: str,
        tokens: int, heads: int, groups: int, dim: int, base: float) -> None:
    positions = rng.integers(0, LAST_POSITION + 1, tokens).astype(np.int32)
    positions[-1] = rng.choice([0, 1, LAST_POSITION])
    q = rng.standard_normal((tokens, heads, dim)).astype(np.float16)
    k = rng.standard_normal((tokens, groups, dim)).astype(np.float16)
    frequencies = base ** (-2 * np.arange(dim // 2) / dim)
    cosine, sine = reference_ops.rope_angles(positions, frequencies, np.float64)
    expected = [reference_ops.rope(x.astype(np.float64), cosine, sine, pairing) for x in (q, k)]
    slack = [np.full(x.shape, 1e-6 * np.abs(x).max()) for x in (q, k)]
    pairs = (heads + groups) * dim // 2
    device.run('rope', 'rope', (-(-pairs // 128), tokens), 128, [
        q, k, constant(positions), constant(turns_per_position(frequencies)), np.int32(heads),
        np.int32(groups), np.int32(dim), np.int32(pairing == 'adjacent')])
    assert_rounded(q, expected[0], slack[0])
    assert_rounded(k, expected[1], slack[1])


def test_every_position_is_accurate(device: Any, rng: np.random.Generator) -> None:
    """The fastest and the slowest pair: their angles alone, seen through the pair (1, 0)."""
    positions = np.unique(np.concatenate([
        np.arange(64), 2 ** np.arange(17), 2 ** np.arange(1, 18) - 1,
        rng.integers(0, LAST_POSITION + 1, 300)])).astype(np.int32)
    frequencies = np.array([1.0, 1e-6 ** (63 / 64)])
    q = np.zeros((len(positions), 1, 4), np.float16)
    q[..., :2] = 1
    device.run('rope', 'rope', (1, len(positions)), 128, [
        q, q.copy(), constant(positions), constant(turns_per_position(frequencies)),
        np.int32(1), np.int32(0), np.int32(4), np.int32(0)])
    angles = np.multiply.outer(positions.astype(np.float64), frequencies)
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)[:, None, :]
    assert_rounded(q, expected, np.full(q.shape, 1e-6))
