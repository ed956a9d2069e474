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

"""Device memory that a forward pass works in: one batch of activations, the KV cache."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from reflex_llm_ros.engine.gguf_model import ModelConfig

BATCH_ROWS = 32
"""Tokens that the batched kernels take at once."""
ATTENTION_CHUNK = 128
"""Positions that one block attends to at a time."""


@dataclass(frozen=True)
class Batch:
    """N consecutive tokens: ids (N,) and positions (N,), int32 on the device."""

    size: int
    tokens: Any
    positions: Any
    wants_logits: bool


class Buffers:
    """
    Activations of up to BATCH_ROWS tokens; a step uses the first N rows.

    The residual stream and the logits are float32, all else is float16. ``chunk_sums`` (C, H, D)
    and ``chunk_tops`` (C, H, 2), float32, hold what a decode step's attention finds in each
    chunk of the ``positions`` that the cache has; ``chunk_counters`` (G,) are 0 between launches.
    """

    def __init__(self, device: Any, config: ModelConfig, positions: int) -> None:
        def rows(*shape: int, dtype: Any = np.float16) -> Any:
            return device.empty((BATCH_ROWS, *shape), dtype)

        dim = config.head_dim
        self.tokens = rows(dtype=np.int32)
        self.positions = rows(dtype=np.int32)
        self.x = rows(config.embedding_length, dtype=np.float32)
        self.normed = rows(config.embedding_length)
        self.q = rows(config.head_count, dim)
        self.k = rows(config.head_count_kv, dim)
        self.v = rows(config.head_count_kv, dim)
        self.heads = rows(config.head_count, dim)
        self.gate = rows(config.feed_forward_length)
        self.up = rows(config.feed_forward_length)
        self.logits = device.empty((1, config.vocab_size), np.float32)
        self.half_logits = device.empty((1, config.vocab_size), np.float16)
        heads = (chunks(positions), config.head_count)
        self.chunk_sums = device.empty((*heads, dim), np.float32)
        self.chunk_tops = device.empty((*heads, 2), np.float32)
        self.chunk_counters = device.upload(np.zeros(config.head_count_kv, np.uint32))


def chunks(positions: int) -> int:
    """Chunks that positions are attended to in."""
    return -(-positions // ATTENTION_CHUNK)


def buffer_bytes(config: ModelConfig, positions: int) -> int:
    """Bytes that Buffers allocates for a cache of so many positions."""
    halves = (
        config.embedding_length
        + 2 * (config.head_count + config.head_count_kv) * config.head_dim
        + 2 * config.feed_forward_length)
    words = config.embedding_length + 2
    partials = 4 * chunks(positions) * config.head_count * (config.head_dim + 2)
    return (
        BATCH_ROWS * (2 * halves + 4 * words) + 6 * config.vocab_size + partials
        + 4 * config.head_count_kv)


@dataclass(frozen=True)
class LayerCache:
    """One layer's keys and values (T, G, D); int8 caches have scales (T, G)."""

    keys: Any
    values: Any
    key_scales: Any | None
    value_scales: Any | None


def allocate_cache(
    device: Any, config: ModelConfig, kv_cache: str, length: int
) -> list[LayerCache]:
    """Allocate ``length`` positions in every layer, ``kv_cache`` being f16 or int8."""
    shape = (length, config.head_count_kv, config.head_dim)
    layers = []
    for _ in range(config.block_count):
        if kv_cache == 'int8':
            layers.append(LayerCache(
                device.empty(shape, np.int8), device.empty(shape, np.int8),
                device.empty(shape[:2], np.float32), device.empty(shape[:2], np.float32)))
        else:
            layers.append(LayerCache(
                device.empty(shape, np.float16), device.empty(shape, np.float16), None, None))
    return layers
