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

"""Sampling on the device chooses what the sampler on the host does."""

from dataclasses import dataclass
from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest
from reflex_llm_ros.engine.config import SamplingParams
from reflex_llm_ros.engine.sampler import Sampler

SLICE, RECENT, RING, DRAWS = 2048, 64, 8, 16


@dataclass
class Chosen:
    """What a choice leaves."""

    token: int
    recent: np.ndarray
    ring: np.ndarray
    damaged: int


def sample(
    device: Any, logits: np.ndarray, params: SamplingParams, draw: float, position: int,
    recent: np.ndarray | None = None
) -> Chosen:
    vocab = len(logits)
    k = min(params.top_k, vocab)
    slices = -(-vocab // SLICE)
    keys, candidates = poisoned(slices * k, np.uint32), poisoned(slices * k, np.int32)
    damaged, token = np.zeros(1, np.int32), poisoned(1, np.int32)
    ring = np.full(RING, -9, np.int32)
    recent = np.full(RECENT, -1, np.int32) if recent is None else recent.copy()
    draws = np.full(DRAWS, np.nan)
    draws[position % DRAWS] = draw
    device.run('sample', 'sample_slices', slices, 256, [
        keys, candidates, damaged, constant(logits), constant(recent),
        np.float32(params.repeat_penalty), np.int32(vocab), np.int32(k)])
    device.run('sample', 'sample_token', 1, 256, [
        token, recent, ring, damaged, constant(np.array([position], np.int32)), constant(keys),
        constant(candidates), constant(draws), np.int32(slices * k), np.int32(k),
        np.float64(params.temperature), np.float64(params.top_p), np.float64(params.min_p),
        np.int32(RING), np.int32(DRAWS)])
    return Chosen(int(token[0]), recent, ring, int(damaged[0]))


def expect(
    logits: np.ndarray, params: SamplingParams, draw: float, history: list[int]
) -> int:
    sampler = Sampler(params)
    sampler.draws = lambda first, count: np.array([draw])
    return sampler(logits, history, 0)


@pytest.mark.parametrize('vocab', [1, 40, 2048, 2049, 49152, 151936])
@pytest.mark.parametrize('params', [
    SamplingParams(),
    SamplingParams(temperature=1.0, top_k=256, top_p=1.0, min_p=0.0),
    SamplingParams(temperature=0.2, top_k=7, top_p=0.5, min_p=0.0),
    SamplingParams(temperature=3.0, top_k=100, top_p=1.0, min_p=0.3),
    SamplingParams(temperature=1e-310, top_k=3, top_p=0.0),
])
def test_the_hosts_choice(
    device: Any, rng: np.random.Generator, vocab: int, params: SamplingParams
) -> None:
    for spread in (0.01, 3.0):
        logits = (spread * rng.standard_normal(vocab)).astype(np.float32)
        draw = float(rng.random())
        position = int(rng.integers(1000))
        chosen = sample(device, logits, params, draw, position)
        assert chosen.token == expect(logits, params, draw, [])
        assert chosen.ring[position % RING] == chosen.token
        assert chosen.recent[position % RECENT] == chosen.token
        assert np.count_nonzero(chosen.ring == -9) == RING - 1
        assert chosen.damaged == 0


def test_every_kept_token_has_its_part_of_the_draws(
    device: Any, rng: np.random.Generator
) -> None:
    params = SamplingParams(temperature=1.0, top_k=5, top_p=1.0, min_p=0.0)
    logits = rng.standard_normal(5000).astype(np.float32)
    best = np.argsort(-logits)[:5]
    weights = np.exp(logits[best].astype(np.float64))
    borders = np.concatenate(([0], np.cumsum(weights) / weights.sum()))
    for place, token in enumerate(best):
        for part in (0.01, 0.99):
            draw = borders[place] + part * (borders[place + 1] - borders[place])
            assert sample(device, logits, params, draw, 3).token == token


@pytest.mark.parametrize('k', [1, 5, 256])
def test_of_equals_the_lowest_tokens_are_kept(
    device: Any, rng: np.random.Generator, k: int
) -> None:
    params = SamplingParams(temperature=1.0, top_k=k, top_p=1.0, min_p=0.0)
    for logits in (np.zeros(5000, np.float32), rng.integers(-2, 2, 5000).astype(np.float32)):
        draw = float(rng.random())
        order = np.lexsort((np.arange(5000), -logits))[:k]
        weights = np.cumsum(np.exp(logits[order] - logits[order[0]], dtype=np.float64))
        place = int(np.searchsorted(weights, draw * weights[-1], side='right'))
        assert sample(device, logits, params, draw, 0).token == order[place]


def test_repeat_penalty_counts_each_recent_token_once(
    device: Any, rng: np.random.Generator
) -> None:
    params = SamplingParams(temperature=1.0, top_k=50, top_p=1.0, min_p=0.0, repeat_penalty=1.7)
    logits = (2 * rng.standard_normal(4099)).astype(np.float32)
    history = [int(token) for token in np.argsort(-logits)[:40]] * 2 + [4098, 0, 2048, 2047]
    recent = np.full(RECENT, -1, np.int32)
    for place in range(len(history) - RECENT, len(history)):
        recent[place % RECENT] = history[place]
    for draw in rng.random(5):
        chosen = sample(device, logits, params, float(draw), len(history), recent)
        assert chosen.token == expect(logits, params, float(draw), history)
    changed = np.flatnonzero(chosen.recent != recent)
    assert set(changed) <= {len(history) % RECENT}


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('place', [0, 4999])
def test_logits_that_are_no_numbers_are_no_choice(
    device: Any, rng: np.random.Generator, bad: float, place: int
) -> None:
    logits = rng.standard_normal(5000).astype(np.float32)
    logits[place] = bad
    chosen = sample(device, logits, SamplingParams(), 0.5, 9)
    assert chosen.ring[9 % RING] == -1
    assert chosen.token == 0
    assert chosen.damaged == 0
