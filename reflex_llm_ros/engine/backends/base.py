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

"""What the engine asks of a backend."""

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import numpy as np
from reflex_llm_ros.engine.memory import MemoryReport
from reflex_llm_ros.engine.sampler import SamplingPlan

NextToken = Callable[[np.ndarray], int]
"""Chooses the next token id from logits (V,) float32."""

MakePlan = Callable[[int], SamplingPlan | None]
"""
Says how a device chooses the following tokens, given the most candidates that it can look at;
None where those are too few.
"""

Progress = Callable[[float, str], None]
"""Told the fraction of loading that is done, 0 to 1, and what is being done."""


def no_plan(most: int) -> SamplingPlan | None:
    """Leave every choice to the host."""
    return None


class Backend(Protocol):
    """
    A loaded model on a device, with one KV cache of ``context_length`` positions.

    Positions are the caller's: writing at a position forgets what stood there and after.
    That is all that reuse of a prefix needs: prefill from where the prompts part.
    One thread creates, uses and closes a backend.
    """

    name: str
    context_length: int

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """
        Run tokens (N,) at positions start to start+N-1 and write their keys and values.

        Returns
        -------
        np.ndarray
            Logits (V,) float32 of the last position, on the host.

        """

    def stream(
        self, token: int, position: int, greedy: bool, choose: NextToken,
        plan: MakePlan = no_plan
    ) -> Generator[int, None, None]:
        """
        Decode from ``token`` at ``position``: yield the next id, feed it back, and so on.

        With ``greedy`` the backend may take the argmax on the device in place of calling
        ``choose``, and without it follow ``plan``; the ids are the same. The caller ends it by
        closing the generator, and closes it before position ``context_length`` would be written.
        """

    def memory(self) -> MemoryReport:
        """Say what weights, cache and scratch hold and what the device has free."""

    def counters(self) -> dict[str, int]:
        """Count what diagnostics show, such as fallbacks taken, by name."""

    def close(self) -> None:
        """Free all memory; the backend is unusable afterwards. May be called twice."""
