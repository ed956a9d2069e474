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

"""The greedy choice and its feedback into the next decode step."""

from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest

RING = 4


def choose(device: Any, logits: np.ndarray) -> int:
    token = poisoned(1, np.int32)
    device.run('argmax', 'argmax_only', 1, 1024, [
        token, constant(logits.astype(np.float32)), np.int32(logits.size)])
    return int(token[0])


@pytest.mark.parametrize('size', [1, 31, 1023, 1024, 1025, 49152, 151936])
def test_the_largest(device: Any, rng: np.random.Generator, size: int) -> None:
    logits = rng.standard_normal(size, np.float32) - 100
    assert choose(device, logits) == np.argmax(logits)
    for index in (0, size - 1):
        logits[index] = np.max(logits) + 1
        assert choose(device, logits) == index


def test_the_lowest_index_wins_a_tie(device: Any, rng: np.random.Generator) -> None:
    logits = rng.integers(-3, 3, 5000).astype(np.float32)
    assert choose(device, logits) == np.flatnonzero(logits == logits.max())[0]
    assert choose(device, np.zeros(5000)) == 0
    logits[:] = -1
    last_two = rng.permutation(4999)[:2] + 1
    logits[last_two] = 7
    assert choose(device, logits) == last_two.min()


def test_what_is_not_a_number_never_wins(device: Any, rng: np.random.Generator) -> None:
    logits = rng.standard_normal(3000, np.float32)
    logits[rng.permutation(3000)[:1000]] = np.nan
    logits[rng.permutation(3000)[:1000]] = -np.inf
    assert choose(device, logits) == np.nanargmax(logits)
    assert choose(device, np.full(3000, np.nan)) == 0
    assert choose(device, np.full(3000, -np.inf)) == 0
    logits[17] = np.inf
    assert choose(device, logits) == 17


def test_feedback_advances_and_the_ring_wraps(device: Any, rng: np.random.Generator) -> None:
    token, position = np.array([5], np.int32), np.array([100], np.int32)
    step, ring = np.zeros(1, np.uint32), np.full(RING, -2, np.int32)
    chosen: list[int] = []
    for count in range(1, 7):
        logits = rng.standard_normal(2000, np.float32)
        device.run('argmax', 'argmax', 1, 1024, [
            token, position, step, ring, constant(logits), np.int32(2000), np.int32(RING)])
        chosen.append(int(np.argmax(logits)))
        assert token[0] == chosen[-1]
        assert position[0] == 100 + count and step[0] == count
        expected = [-2] * RING
        for index, value in enumerate(chosen):
            expected[index % RING] = value
        np.testing.assert_array_equal(ring, expected)


def test_no_choice_reaches_the_host_and_not_the_embedding(device: Any) -> None:
    token, position = np.array([5], np.int32), np.array([0], np.int32)
    step, ring = np.zeros(1, np.uint32), np.full(RING, -2, np.int32)
    device.run('argmax', 'argmax', 1, 1024, [
        token, position, step, ring, constant(np.full(2000, np.nan, np.float32)),
        np.int32(2000), np.int32(RING)])
    assert token[0] == 0
    np.testing.assert_array_equal(ring, [-1, -2, -2, -2])
