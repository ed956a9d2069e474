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

"""Sampling: the sets that filters keep are exact, draws follow the distribution."""

from dataclasses import replace
import math
import random
import warnings

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from reflex_llm_ros.engine.config import SamplingParams
from reflex_llm_ros.engine.errors import BadRequestError, EngineError
from reflex_llm_ros.engine.sampler import keep, likeliest, penalize, Sampler

ALL = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0)
V = 151_936


@pytest.fixture
def rng():
    seed = random.randrange(2**63)
    print('seed', seed)
    return np.random.default_rng(seed)


def kept_by_definition(logits, top_k, top_p, min_p):
    """Walk down the sorted vocabulary in plain Python."""
    order = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
    order = order[:top_k or None]
    weights = [math.exp(logits[index] - logits[order[0]]) for index in order]
    total = math.fsum(weights)
    kept, reached = [], 0.0
    for index, weight in zip(order, weights, strict=True):
        if kept and reached >= top_p * total and top_p < 1 or weight < min_p:
            break
        kept.append(index)
        reached += weight
    return kept


@pytest.mark.parametrize('size', [1, 2, 50, 5000])
@pytest.mark.parametrize('top_k, top_p, min_p', [
    (0, 1.0, 0.0), (1, 1.0, 0.0), (7, 1.0, 0.0), (10**6, 1.0, 0.0),
    (0, 0.9, 0.0), (0, 0.999, 0.0), (0, 0.0, 0.0), (40, 0.8, 0.0),
    (0, 1.0, 0.1), (0, 1.0, 1.0), (0, 1.0, 1e-9), (20, 0.95, 0.05), (0, 0.99, 1e-4),
])
def test_filters_keep_exactly_their_set(rng, size, top_k, top_p, min_p):
    for scale in (0.01, 1, 5):
        logits = (rng.standard_normal(size) * scale).astype(np.float32)
        ids = keep(logits, top_k, top_p, min_p)
        # Rounding may move a token over the border of top-p that lies within 1e-6 of it.
        fewest, most = (
            kept_by_definition(logits.tolist(), top_k, top_p + slack, min_p)
            for slack in ((-1e-6, 1e-6) if 0 < top_p < 1 else (0, 0)))
        assert len(fewest) <= len(ids) <= len(most)
        assert sorted(ids.tolist()) == sorted(most[:len(ids)])


def test_filters_on_probabilities_one_can_check_by_eye():
    logits = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], dtype=np.float32))
    assert keep(logits, 2, 1.0, 0.0).tolist() == [1, 3]
    assert keep(logits, 0, 0.6, 0.0).tolist() == [1, 3]
    assert keep(logits, 0, 0.7, 0.0).tolist() == [1, 3, 4]
    assert keep(logits, 0, 1.0, 0.3).tolist() == [1, 3, 4]
    # Of the two that top-k leaves the first has 0.4 / 0.65 of the probability.
    assert keep(logits, 2, 0.61, 0.0).tolist() == [1]
    assert keep(logits, 2, 0.62, 0.0).tolist() == [1, 3]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 50))
def test_likeliest_takes_lower_ids_of_equals(values, count):
    logits = np.array(values, dtype=np.float32)
    count = min(count, len(values))
    expected = sorted(range(len(values)), key=lambda index: (-values[index], index))[:count]
    assert likeliest(logits, count).tolist() == expected


def test_whole_vocabulary(rng):
    logits = rng.standard_normal(V).astype(np.float32)
    order = np.lexsort((np.arange(V), -logits))
    assert keep(logits, 40, 1.0, 0.0).tolist() == order[:40].tolist()
    weights = np.exp(logits[order].astype(np.float64))
    count = int(np.argmax(np.cumsum(weights) / weights.sum() >= 0.5)) + 1
    # The float32 sum over the vocabulary may shift the border by a token or two.
    kept = keep(logits, 0, 0.5, 0.0)
    assert abs(len(kept) - count) <= 2 and count > 10_000
    assert kept.tolist() == order[:len(kept)].tolist()
    assert len(keep(np.zeros(V, np.float32), 0, 1.0, 0.5)) == V


def test_greedy_takes_the_likeliest_and_the_lowest_of_equals(rng):
    greedy = Sampler(replace(ALL, temperature=0.0, top_k=3, min_p=0.5))
    assert greedy(np.array([1, 5, 2, 5, 5], np.float32), [], 0) == 1
    logits = rng.standard_normal(V).astype(np.float32)
    place = int(rng.integers(V))
    logits[place] = logits.max() + 1
    assert greedy(logits, [], 0) == place


def test_repeat_penalty():
    logits = np.array([4.0, -4.0, 0.0, 1.0], np.float32)
    before = logits.copy()
    # An id that comes twice is penalized once.
    assert penalize(logits, [0, 1, 2, 0], 2.0).tolist() == [2.0, -8.0, 0.0, 1.0]
    assert penalize(logits, [], 2.0).tolist() == before.tolist()
    greedy = Sampler(replace(ALL, temperature=0.0, repeat_penalty=10.0))
    assert greedy(logits, [], 0) == 0
    assert greedy(logits, [0], 0) == 3
    # The last 64 tokens count, the one before them does not.
    assert greedy(logits, [0] + [1] * 63, 0) == 3
    assert greedy(logits, [0] + [1] * 64, 0) == 0
    assert logits.tolist() == before.tolist()


def frequencies(sampler, logits, draws):
    chosen = [sampler(logits, (), number) for number in range(draws)]
    counts = np.bincount(chosen, minlength=len(logits))
    return counts / draws


@pytest.mark.parametrize('params, expected', [
    (ALL, lambda p: p),
    (replace(ALL, temperature=0.5), lambda p: p**2),
    (replace(ALL, temperature=2.0), lambda p: p**0.5),
    (replace(ALL, top_k=3), lambda p: np.where(p >= np.sort(p)[-3], p, 0)),
    # The set is chosen at temperature 1, then spread: the order of the steps shows.
    (replace(ALL, top_p=0.5, temperature=4.0),
     lambda p: p**0.25 * (p >= 0.2)),
    (replace(ALL, min_p=0.45, temperature=4.0), lambda p: p**0.25 * (p >= 0.2)),
])
def test_draws_follow_the_distribution(params, expected):
    seed = random.randrange(2**63)
    probabilities = np.array([0.05, 0.4, 0.15, 0.1, 0.03, 0.07, 0.2])
    logits = np.log(probabilities).astype(np.float32) + 3
    wanted = expected(probabilities)
    wanted = wanted / wanted.sum()
    draws = 8000
    seen = frequencies(Sampler(replace(params, seed=seed)), logits, draws)
    # Hoeffding: each of the 7 frequencies is off by more than this once in 10^10.
    bound = math.sqrt(math.log(2e10) / (2 * draws))
    assert np.abs(seen - wanted).max() < bound, f'seed {seed}: {seen} {wanted}'
    assert (seen[wanted == 0] == 0).all()


def test_same_seed_same_tokens():
    seed = random.randrange(2**63)
    logits = np.zeros(1000, np.float32)

    def draw(seed):
        sampler = Sampler(replace(ALL, seed=seed))
        return [sampler(logits, (), number) for number in range(20)]

    assert draw(seed) == draw(seed)
    # Chance of an accidental match: 10^-60.
    assert draw(seed) != draw(seed + 1)
    assert draw(None) != draw(None)


def test_a_plan_has_the_draws_that_the_host_would_take():
    sampler, other = (Sampler(replace(ALL, top_k=9, seed=12)) for _ in range(2))
    plan = sampler.plan([5, 6], 3, 9)
    assert (plan.top_k, plan.temperature, plan.history) == (9, ALL.temperature, [5, 6])
    drawn = [plan.draws(0, 2), plan.draws(2, 300)]
    assert np.concatenate(drawn).tolist() == other.draws(0, 400)[3:305].tolist()
    assert len(np.unique(drawn[1])) == 300


def test_a_plan_is_made_only_for_few_candidates():
    assert Sampler(replace(ALL, top_k=10)).plan([], 0, 9) is None
    assert Sampler(replace(ALL, top_k=0)).plan([], 0, 9) is None
    likeliest = Sampler(replace(ALL, top_k=0, temperature=0.0, repeat_penalty=2.0)).plan([], 0, 9)
    assert (likeliest.top_k, likeliest.temperature, likeliest.repeat_penalty) == (1, 1.0, 2.0)


def test_tiny_temperature_is_greedy_without_warnings():
    logits = np.array([0.0, 1.0, 0.999], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        sampler = Sampler(replace(ALL, temperature=1e-310))
        assert {sampler(logits, (), number) for number in range(20)} == {1}


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_logits_that_are_no_numbers(rng, bad, temperature):
    logits = rng.standard_normal(1000).astype(np.float32)
    logits[int(rng.integers(1000))] = bad
    with pytest.raises(EngineError, match='^1 of 1000 logits are NaN or infinite'):
        Sampler(replace(ALL, temperature=temperature))(logits, (), 0)


@pytest.mark.parametrize('name, value', [
    ('temperature', -0.1), ('temperature', math.nan), ('temperature', math.inf),
    ('top_k', -1), ('top_p', 1.01), ('top_p', -0.1), ('min_p', 2.0), ('repeat_penalty', 0.0),
    ('seed', -1),
])
def test_parameters_out_of_range_are_named(name, value):
    with pytest.raises(BadRequestError, match=f'^{name} must be .* not {value}$'):
        Sampler(replace(ALL, **{name: value}))
