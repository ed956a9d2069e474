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

"""Sampling on the device (kernels/sample.cu), so that steps can run ahead of the host."""

from typing import Any

import numpy as np
from reflex_llm_ros.engine.sampler import PENALTY_WINDOW, SamplingPlan

SAMPLE = 'sample'
BLOCK = 256
SLICE = 2048
MOST_CANDIDATES = 256
"""The largest top_k that the kernels take."""
DRAWS = 256
CHOSEN = 8


def sampling_bytes(vocab: int) -> int:
    """Bytes of device memory that DeviceSampling allocates."""
    return 8 * _slices(vocab) * MOST_CANDIDATES + 8 * DRAWS + 4 * PENALTY_WINDOW + 4


class DeviceSampling:
    """
    Chooses after each decode step, in place of the likeliest token that the step chose.

    Parameters
    ----------
    device
        The device; it has loaded ``SAMPLE``.
    token, position
        Where a decode step leaves the next one's input, int32 (1,).
    logits
        What a step leaves of logits, (1, V) float32.

    """

    def __init__(self, device: Any, token: Any, position: Any, logits: Any) -> None:
        self._device = device
        self._token = token
        self._position = position
        self._logits = logits
        slices = _slices(logits.size)
        self._keys = device.empty((slices * MOST_CANDIDATES,), np.uint32)
        self._candidates = device.empty((slices * MOST_CANDIDATES,), np.int32)
        self._damaged = device.upload(np.zeros(1, np.int32))
        self._recent = device.empty((PENALTY_WINDOW,), np.int32)
        self._draws = device.empty((DRAWS,), np.float64)
        self._chosen, self._device_chosen = device.host_ring(CHOSEN)

    def begin(self, plan: SamplingPlan) -> None:
        """Follow ``plan`` from the position after its history on."""
        self._plan = plan
        self._first = len(plan.history)
        recent = np.full(PENALTY_WINDOW, -1, np.int32)
        for place in range(max(0, self._first - PENALTY_WINDOW), self._first):
            recent[place % PENALTY_WINDOW] = plan.history[place]
        self._device.write(self._recent, recent)

    def launch(self, position: int) -> None:
        """Choose the token of ``position``, after the decode step of the one before."""
        plan = self._plan
        if position == self._first or position % DRAWS == 0:
            place = position % DRAWS
            self._device.write(
                self._draws[place:], plan.draws(position - self._first, DRAWS - place))
        vocab, slices = self._logits.size, _slices(self._logits.size)
        k = min(plan.top_k, vocab)
        function = self._device.function
        self._device.launch(
            function(SAMPLE, 'sample_slices'), (slices,), BLOCK,
            (self._keys, self._candidates, self._damaged, self._logits, self._recent,
             np.float32(plan.repeat_penalty), np.int32(vocab), np.int32(k)))
        self._device.launch(
            function(SAMPLE, 'sample_token'), (1,), BLOCK,
            (self._token, self._recent, self._device_chosen, self._damaged, self._position,
             self._keys, self._candidates, self._draws, np.int32(slices * k), np.int32(k),
             np.float64(plan.temperature), np.float64(plan.top_p), np.float64(plan.min_p),
             np.int32(CHOSEN), np.int32(DRAWS)))

    def chosen(self, position: int) -> int:
        """
        Return the token chosen for a position once that has been done.

        It is -1 where a logit was NaN or infinite. At most CHOSEN choices may have been
        launched since.
        """
        return int(self._chosen[position % CHOSEN])


def _slices(vocab: int) -> int:
    return -(-vocab // SLICE)
