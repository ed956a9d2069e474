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

"""Choose the next token from logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from reflex_llm_ros.engine.config import SamplingParams
from reflex_llm_ros.engine.errors import BadRequestError, EngineError

PENALTY_WINDOW = 64
"""Tokens at the end of the text that ``repeat_penalty`` looks at."""

DRAWN_AT_ONCE = 256

_RANGES = {
    'temperature': (0, 100),
    'top_k': (0, 2**31),
    'top_p': (0, 1),
    'min_p': (0, 1),
    'repeat_penalty': (0.01, 100),
}


@dataclass(frozen=True)
class SamplingPlan:
    """
    How a device chooses tokens in place of ``Sampler``, with the same choices.

    Attributes
    ----------
    temperature, top_k, top_p, min_p, repeat_penalty
        As in ``SamplingParams``; ``temperature`` is not 0 and ``top_k`` is at least 1.
    history
        The text so far; later tokens are the device's own.
    draws
        ``draws(first, count)`` gives random numbers (count,) float64 from 0 up to 1, number
        ``first`` being for the next token plus ``first``.

    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    history: Sequence[int]
    draws: Callable[[int, int], np.ndarray]


class Sampler:
    """
    Choose tokens for one answer.

    The steps, in the order of llama.cpp's defaults: repeat penalty, top-k, top-p, min-p,
    temperature. Top-p and min-p look at the model's own probabilities (temperature 1), so a
    high temperature spreads the choice among the tokens that they keep and brings none back.

    Draw n depends on the seed and on n alone (a counter-based generator, Philox), so that the
    same seed gives the same text wherever the logits are the same.

    Parameters
    ----------
    params
        How to choose.

    Raises
    ------
    BadRequestError
        A parameter is out of range; the message names it.

    """

    def __init__(self, params: SamplingParams) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(params, name)
            if not low <= value <= high:
                raise BadRequestError(f'{name} must be from {low} to {high}, not {value}')
        if params.seed is not None and params.seed < 0:
            raise BadRequestError(f'seed must be 0 or more, not {params.seed}')
        self._params = params
        self._random = np.random.Generator(np.random.Philox(params.seed))
        self._drawn = np.empty(0)

    @property
    def greedy(self) -> bool:
        """Whether the choice is always the likeliest token."""
        return self._params.temperature == 0 and self._params.repeat_penalty == 1

    def plan(self, history: Sequence[int], number: int, most: int) -> SamplingPlan | None:
        """
        Say how a device chooses token ``number`` of the answer and those that follow.

        None where more than ``most`` tokens would have to be looked at.
        """
        params = self._params
        likeliest_only = params.temperature == 0
        top_k = 1 if likeliest_only else params.top_k
        if not 0 < top_k <= most:
            return None
        return SamplingPlan(
            1.0 if likeliest_only else params.temperature, top_k, params.top_p, params.min_p,
            params.repeat_penalty, history,
            lambda first, count: self.draws(number + first, count))

    def draws(self, first: int, count: int) -> np.ndarray:
        """Random numbers (count,) float64 from 0 up to 1, that of token ``first`` first."""
        missing = first + count - len(self._drawn)
        if missing > 0:
            more = self._random.random(max(missing, DRAWN_AT_ONCE))
            self._drawn = np.concatenate((self._drawn, more))
        return self._drawn[first:first + count]

    def __call__(self, logits: np.ndarray, history: Sequence[int], number: int) -> int:
        """
        Return the id of the next token.

        Parameters
        ----------
        logits
            (V,) float32, as the model gave them; left as they are.
        history
            The text so far, of which the last ``PENALTY_WINDOW`` ids count.
        number
            Which token of the answer this is, from 0.

        Raises
        ------
        EngineError
            A logit is NaN or infinite: whatever the model computes, it is no text.

        """
        if not np.isfinite(logits).all():
            raise EngineError(
                f'{np.count_nonzero(~np.isfinite(logits))} of {len(logits)} logits are NaN or '
                'infinite; the model file is damaged or a fast path fails: try the cpu backend')
        params = self._params
        if params.repeat_penalty != 1:
            logits = penalize(logits, history[-PENALTY_WINDOW:], params.repeat_penalty)
        if params.temperature == 0:
            return int(np.argmax(logits))
        ids = keep(logits, params.top_k, params.top_p, params.min_p)
        kept = logits[ids].astype(np.float64)
        with np.errstate(over='ignore'):  # Far below the likeliest at a tiny temperature.
            scaled = (kept - kept.max()) / params.temperature
            # To 7 digits: several times faster where the whole vocabulary is kept.
            weights = np.exp(scaled.astype(np.float32))
        reached = np.cumsum(weights.astype(np.float64))
        draw = self.draws(number, 1)[0]
        drawn = np.searchsorted(reached, draw * reached[-1], side='right')
        return int(ids[min(int(drawn), len(ids) - 1)])


def penalize(logits: np.ndarray, recent: Sequence[int], penalty: float) -> np.ndarray:
    """
    Return logits (V,) with those of recent ids made less likely, each once.

    Positive ones are divided, negative ones multiplied by the penalty (Keskar et al. 2019,
    CTRL, section 4.1; the case of negative logits as in llama.cpp).
    """
    logits = logits.copy()
    ids = np.unique(np.asarray(recent, dtype=np.int64))
    found = logits[ids]
    logits[ids] = np.where(found > 0, found / penalty, found * penalty)
    return logits


def keep(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """
    Return the ids that top-k, top-p and min-p leave, never none.

    Parameters
    ----------
    logits
        (V,) finite.
    top_k
        Keep the k likeliest, the lower id where two are equal; 0 keeps all.
    top_p
        Of the tokens that top-k leaves, keep the fewest likeliest whose probability, which is
        1 for all of them together, reaches p (Holtzman et al. 2020); 1 keeps all.
    min_p
        Drop tokens less likely than min_p times the likeliest; 0 keeps all.

    """
    limit = min(top_k or len(logits), len(logits))
    if not top_k and top_p >= 1 and min_p <= 0:
        return np.arange(len(logits))
    highest = logits.max()
    width = limit
    if not top_k:
        # Sorting a whole vocabulary takes longer than to look at its likeliest part, and
        # at a larger one in the rare case that it was too small.
        width = min(1024, limit)
        total = float(np.exp(logits - highest).sum(dtype=np.float64))
    while True:
        ids = likeliest(logits, width)
        weights = np.exp(logits[ids].astype(np.float64) - float(highest))
        if width == limit:
            total = float(weights.sum())
        count = int(np.count_nonzero(weights >= min_p))
        if top_p < 1:
            count = min(count, 1 + int(np.searchsorted(np.cumsum(weights), top_p * total)))
        if count < width or width == limit:
            return ids[:count]
        width = min(16 * width, limit)


def likeliest(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the ids of the ``count`` highest logits (V,), highest first, lower ids first."""
    place = len(logits) - count
    threshold = np.partition(logits, place)[place]
    ids = np.flatnonzero(logits >= threshold)
    return ids[np.argsort(-logits[ids], kind='stable')][:count]
