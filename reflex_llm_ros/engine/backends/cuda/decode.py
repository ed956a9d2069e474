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

"""The decode step: a forward pass of one token that feeds its own choice back."""

from collections.abc import Callable
import logging
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.buffers import Batch, Buffers
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher, REFERENCE, Variant
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.errors import DeviceError
from reflex_llm_ros.engine.models import dense

ARGMAX_BLOCK = 1024
RING_LENGTH = 8
GRAPH = 'cuda_graph'

log = logging.getLogger(__name__)


class DecodeStep:
    """
    One token on the device, as a graph where that is on and possible.

    A step reads the token and its position from the first row of ``buffers``, leaves the
    logits there, replaces the token by the likeliest next one and the position by the next,
    and puts the choice into a ring in host memory. So steps can be launched one after the
    other without the host; what was written to the first row before a launch is its input.
    """

    def __init__(
        self, device: Any, steps: dense.DenseSteps[Any, DeviceTensor, Batch],
        weights: dense.DenseWeights[DeviceTensor], buffers: Buffers, dispatcher: Dispatcher,
        graph: bool
    ) -> None:
        self._device = device
        self._steps = steps
        self._weights = weights
        self._buffers = buffers
        self._dispatcher = dispatcher
        self._batch = Batch(1, buffers.tokens[:1], buffers.positions[:1], True)
        self._count = device.upload(np.zeros(1, np.uint32))
        self._ring, self._device_ring = device.host_ring(RING_LENGTH)
        self._launched = 0
        self._replay: Callable[[], None] | None = None
        # Modules load and memory settles before anything is captured.
        self.launch()
        device.synchronize()
        if graph:
            self._replay = self._capture()

    def launch(self) -> int:
        """Launch a step and return its number, for ``chosen``."""
        variants = [Variant('eager decode', self._run)]
        if self._replay is not None:
            variants.insert(0, Variant(GRAPH, self._replay))
        self._dispatcher.run(GRAPH, variants)
        self._launched += 1
        return self._launched - 1

    def chosen(self, number: int) -> int:
        """
        Return the likeliest token of a step that has ended, -1 when no logit is a number.

        At most RING_LENGTH steps may have been launched since.
        """
        return int(self._ring[number % RING_LENGTH])

    def _run(self) -> None:
        logits = dense.forward(self._steps, self._weights, self._batch)
        token, position = self._batch.tokens, self._batch.positions
        self._dispatcher.run('argmax', [
            Variant('argmax', lambda: self._device.launch(
                self._device.function('argmax', 'argmax'), (1,), ARGMAX_BLOCK,
                (token, position, self._count, self._device_ring, logits,
                 np.int32(logits.size), np.int32(RING_LENGTH)))),
            Variant(REFERENCE, lambda: self._choose_on_host(logits))])

    def _choose_on_host(self, logits: Any) -> None:
        values = self._device.download(logits)[0]
        position = self._device.download(self._batch.positions)
        count = self._device.download(self._count)
        best = -1 if np.isnan(values).all() else int(np.nanargmax(values))
        self._ring[int(count[0]) % RING_LENGTH] = best
        self._device.write(self._batch.tokens, np.array([max(best, 0)], np.int32))
        self._device.write(self._batch.positions, position + 1)
        self._device.write(self._count, count + 1)

    def _capture(self) -> Callable[[], None] | None:
        """Record a step as a graph; None where an operation runs on the host."""
        if self._dispatcher.used_reference:
            log.warning('no CUDA graph: %s on the host',
                        ', '.join(sorted(self._dispatcher.used_reference)))
            return None
        try:
            return self._device.capture(self._run)
        except DeviceError as error:
            self._dispatcher.give_up(GRAPH, GRAPH, error)
            return None
