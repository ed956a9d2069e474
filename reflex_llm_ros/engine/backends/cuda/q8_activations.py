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

"""Kinds of activations for Q8_0 products, the memory they take, and their host form."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.buffers import BATCH_ROWS
from reflex_llm_ros.engine.backends.cuda.q8_weights import GROUP
from reflex_llm_ros.engine.gguf_model import ModelConfig

WORD_MAX = np.float32(127)


@dataclass(frozen=True)
class Kind:
    """
    How activations are held: ``words`` int8 planes and a scale for each 32, or fp32.

    Their layout on the device is described in ``kernels/q8.cuh``.
    """

    name: str
    words: int

    @property
    def group_bytes(self) -> int:
        """Bytes of 32 activations."""
        return self.words * GROUP + 4 if self.words else 4 * GROUP

    def pack(self, values: np.ndarray) -> np.ndarray:
        """Bytes of activations (N, K) float32, as the kernels' quantizers write them."""
        values = np.ascontiguousarray(values, np.float32)
        if not self.words:
            return values.reshape(-1).view(np.uint8)
        groups = values.reshape(-1, GROUP)
        largest = np.abs(groups).max(axis=1, keepdims=True)
        with np.errstate(divide='ignore', over='ignore'):
            inverse = np.where(largest > 1e-30, WORD_MAX / largest, np.float32(0))
        scaled = groups * inverse
        high = np.rint(np.nan_to_num(scaled))
        planes = [high, np.rint((np.nan_to_num(scaled) - high) * WORD_MAX)][:self.words]
        parts = [plane.astype(np.int8).reshape(-1).view(np.uint8) for plane in planes]
        return np.concatenate([*parts, (largest / WORD_MAX).reshape(-1).view(np.uint8)])

    def unpack(self, packed: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """Activations (N, K) float32 that bytes of ``pack`` or of a kernel stand for."""
        if not self.words:
            return packed.view(np.float32).reshape(rows, columns)
        count = rows * columns
        values = packed[:count].view(np.int8).astype(np.float32)
        if self.words == 2:
            values += packed[count:2 * count].view(np.int8) / WORD_MAX
        scales = packed[self.words * count:].view(np.float32)
        return (values * scales.repeat(GROUP)).reshape(rows, columns)


KINDS = {kind.name: kind for kind in (Kind('a8', 1), Kind('a8x2', 2), Kind('f32', 0))}


class Q8Buffers:
    """
    What the steps on planes need besides ``buffers.Buffers``.

    ``normed``, ``heads`` and ``middle`` hold activations of up to BATCH_ROWS tokens; a norm
    leaves its factors to the products: ``factors`` (N,), or sums of ``squares`` by groups.
    """

    def __init__(self, device: Any, config: ModelConfig, kind: Kind, partial_rows: int) -> None:
        def activations(columns: int) -> Any:
            return device.empty((BATCH_ROWS * columns // GROUP * kind.group_bytes,), np.uint8)

        def floats(*shape: int) -> Any:
            return device.empty(shape, np.float32)

        width, middle = config.embedding_length, config.feed_forward_length
        self.normed = activations(width)
        self.heads = activations(config.head_count * config.head_dim)
        self.middle = activations(middle)
        self.factors = floats(BATCH_ROWS)
        self.squares = floats(BATCH_ROWS, width // GROUP)
        self.qkv = floats(BATCH_ROWS, qkv_rows(config))
        self.gate = floats(BATCH_ROWS, middle)
        self.up = floats(BATCH_ROWS, middle)
        self.sums = floats(BATCH_ROWS, width)
        self.partials = floats(partial_rows)
        self.ones = device.upload(np.ones(BATCH_ROWS, np.float32))
        self.counters = device.upload(np.zeros(
            max(width, middle, qkv_rows(config)) // GROUP, np.uint32))


def qkv_rows(config: ModelConfig) -> int:
    """Rows of q, k and v together."""
    return (config.head_count + 2 * config.head_count_kv) * config.head_dim


def q8_buffer_bytes(config: ModelConfig, kind: Kind, partial_rows: int) -> int:
    """Bytes that Q8Buffers allocates."""
    width, middle = config.embedding_length, config.feed_forward_length
    rows = config.head_count * config.head_dim + width + middle
    floats = qkv_rows(config) + 2 * middle + width + width // GROUP + 2
    return (
        BATCH_ROWS * (rows // GROUP * kind.group_bytes + 4 * floats) + 4 * partial_rows
        + 4 * (max(width, middle, qkv_rows(config)) // GROUP))
