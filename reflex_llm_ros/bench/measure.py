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

"""Speed of a backend as its users see it: decode, prefill, time to first token."""

from contextlib import closing
from itertools import islice
from statistics import median
import time

import numpy as np
from reflex_llm_ros.bench.result import Decode, Prefill
from reflex_llm_ros.engine.backends.base import Backend

REPEATS = 3


def measure_decode(backend: Backend, position: int, tokens: int) -> Decode:
    """Decode ``tokens`` greedily from ``position`` on, the cache behind filled before."""
    fill(backend, position)
    rates = []
    for _ in range(REPEATS):
        with closing(backend.stream(1, position, True, _choose)) as stream:
            next(stream)
            start = time.monotonic()
            for _ in islice(stream, tokens - 1):
                pass
            rates.append((tokens - 1) / (time.monotonic() - start))
    return Decode(position, median(rates))


def measure_prefill(backend: Backend, tokens: int) -> Prefill:
    """Prefill ``tokens`` from an empty cache, then take one token."""
    prompt = _prompt(tokens)
    rates, firsts = [], []
    for _ in range(REPEATS):
        start = time.monotonic()
        token = int(np.argmax(backend.forward(prompt, 0)))
        rates.append(tokens / (time.monotonic() - start))
        with closing(backend.stream(token, tokens, True, _choose)) as stream:
            next(stream)
        firsts.append(1000 * (time.monotonic() - start))
    return Prefill(tokens, median(rates), median(firsts))


def fill(backend: Backend, positions: int) -> None:
    """Fill the cache up to ``positions``."""
    if positions:
        backend.forward(_prompt(positions), 0)


def _prompt(tokens: int) -> list[int]:
    """Token ids that every vocabulary has, in no order that a cache could profit from."""
    return [int(token) for token in np.random.default_rng(tokens).integers(2, 250, tokens)]


def _choose(logits: np.ndarray) -> int:
    return int(np.argmax(logits))
