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

"""What the engine's tests share: requests, and answers that are put into a model's mouth."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from reflex_llm_ros.engine import (
    Done,
    Engine,
    EngineConfig,
    Event,
    GenerateRequest,
    Message,
    SamplingParams,
    Started,
)
from reflex_llm_ros.engine import engine as engine_module

GREEDY = SamplingParams(temperature=0)


def load(path: Path, **config: Any) -> Engine:
    return Engine(EngineConfig(str(path), backend='cpu', **{'context_length': 256, **config}))


def ask(prompt: str, max_tokens: int = 24, **fields: Any) -> GenerateRequest:
    sampling = replace(fields.pop('sampling', GREEDY), max_tokens=max_tokens)
    return GenerateRequest((Message('user', prompt),), sampling=sampling, **fields)


def answer(
    engine: Engine, request: GenerateRequest, cancelled: Callable[[], bool] = lambda: False
) -> tuple[Started, list[Event], Done]:
    """Read an answer to its end: what it began with, what came between, what it ended with."""
    first, *between, last = engine.generate(request, cancelled)
    assert isinstance(first, Started) and isinstance(last, Done)
    assert not any(isinstance(event, (Started, Done)) for event in between)
    return first, between, last


def text(engine: Engine, request: GenerateRequest) -> str:
    return answer(engine, request)[2].text


class FakeSampler:
    """Says what ``choose`` makes of the text so far."""

    greedy = False

    def __init__(self, choose: Callable[[Sequence[int]], int]) -> None:
        self._choose = choose

    def __call__(self, logits: np.ndarray, history: Sequence[int], number: int) -> int:
        return self._choose(history)

    def plan(self, history: Sequence[int], number: int, most: int) -> None:
        return None


def put_into_mouth(monkeypatch: Any, ids: Iterable[int]) -> None:
    """Make the next answers consist of these tokens, through the real model and cache."""
    mouth = iter(ids)
    monkeypatch.setattr(
        engine_module, 'Sampler', lambda params: FakeSampler(lambda history: next(mouth)))
