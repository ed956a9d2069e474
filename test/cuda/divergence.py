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

"""How far logits are from the oracle's."""

from dataclasses import dataclass

import numpy as np

MARGIN = 0.05
"""Between the oracle's two largest logits: above it, greedy ids must be the oracle's."""


@dataclass(frozen=True)
class Divergence:
    """Mean KL(oracle || engine) in nats; greedy ids that differ where the margin is clear."""

    mean_kl: float
    wrong_ids: int
    clear_margins: int


def compare(oracle: np.ndarray, logits: np.ndarray) -> Divergence:
    """Compare logits (N, V) of N positions."""
    log_p, log_q = _log_softmax(oracle), _log_softmax(logits)
    kl = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
    top = np.sort(oracle, axis=-1)[:, -2:]
    clear = top[:, 1] - top[:, 0] > MARGIN
    wrong = oracle.argmax(axis=-1) != logits.argmax(axis=-1)
    return Divergence(float(kl.mean()), int(np.sum(wrong & clear)), int(np.sum(clear)))


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
