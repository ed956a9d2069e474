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

"""Device memory of a model's weights: one allocation, given out piece by piece."""

import math
from typing import Any

import numpy as np

ALIGNMENT = 256
MOST_PIECES = 2
"""Pieces that a tensor is stored in, at most: the two planes of Q8_0."""


def with_gaps(size: int) -> int:
    """Return the bytes that are enough for a tensor of ``size`` bytes, whatever its pieces."""
    return size + MOST_PIECES * ALIGNMENT


class WeightMemory:
    """
    All of a model's weights in one allocation.

    One for each tensor would take longer than to copy the tensors of a small model.

    Parameters
    ----------
    device
        Where to allocate.
    size
        Bytes: the sum of ``with_gaps`` of all tensors that will be stored.

    """

    def __init__(self, device: Any, size: int) -> None:
        self.size = size
        self._bytes = device.empty((size,), np.uint8)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: type[np.generic]) -> Any:
        """Return the next piece, as an array that keeps the whole allocation."""
        begin = self._used
        end = begin + math.prod(shape) * np.dtype(dtype).itemsize
        assert end <= self.size, 'more weights than planned'
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return self._bytes[begin:end].view(dtype).reshape(shape)
