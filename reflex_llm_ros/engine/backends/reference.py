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

"""
The NumPy backend: a model on a machine without a GPU, and the oracle for every other one.

With float32 it is built for speed: weights are dequantized once and all products are BLAS
calls. With float64 it is exact to about twelve digits and is what other backends are
compared with. Both run the same code.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from reflex_llm_ros.engine.backends import reference_ops as ops
from reflex_llm_ros.engine.backends.base import MakePlan, NextToken, no_plan, Progress
from reflex_llm_ros.engine.backends.reference_cache import KvCache
from reflex_llm_ros.engine.backends.reference_weights import ReferenceWeights, weight_bytes
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.errors import EngineError
from reflex_llm_ros.engine.gguf_config import expected_shapes
from reflex_llm_ros.engine.gguf_model import GgufModel, ModelConfig
from reflex_llm_ros.engine.memory import (
    host_free_bytes,
    kv_bytes_per_position,
    MemoryReport,
    plan,
)
from reflex_llm_ros.engine.models import dense


@dataclass(frozen=True)
class Batch:
    """
    N consecutive tokens of one sequence.

    ``tokens`` (N,) int64 from position ``start``; ``cosine`` and ``sine`` (N, D/2) are their
    rotary angles; ``every_position`` asks for the logits of all N, not of the last alone.
    """

    tokens: np.ndarray
    start: int
    cosine: np.ndarray
    sine: np.ndarray
    every_position: bool


class ReferenceSteps:
    """The steps of a dense forward pass (``models.dense.DenseSteps``) in NumPy."""

    def __init__(self, config: ModelConfig, weights: ReferenceWeights, cache: KvCache) -> None:
        self._config = config
        self._weights = weights
        self._cache = cache

    def embed(self, table: np.ndarray, batch: Batch) -> np.ndarray:
        return ops.embed(table, batch.tokens)

    def norm_qkv(
        self, x: np.ndarray, layer: dense.DenseLayer[np.ndarray], batch: Batch
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        config = self._config
        normed = ops.rmsnorm(x, layer.attn_norm, config.rms_eps)
        qkv = ops.linear(normed, self._weights.qkv[layer.index])
        heads = qkv.reshape(len(qkv), -1, config.head_dim)
        k_at, v_at = config.head_count, config.head_count + config.head_count_kv
        return heads[:, :k_at], heads[:, k_at:v_at], heads[:, v_at:]

    def rope_store(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        layer: dense.DenseLayer[np.ndarray],
        batch: Batch,
    ) -> np.ndarray:
        config = self._config
        if layer.attn_q_norm is not None and layer.attn_k_norm is not None:
            q = ops.rmsnorm(q, layer.attn_q_norm, config.rms_eps)
            k = ops.rmsnorm(k, layer.attn_k_norm, config.rms_eps)
        k = ops.rope(k, batch.cosine, batch.sine, config.rope.pairing)
        self._cache.write(layer.index, batch.start, k, v)
        return ops.rope(q, batch.cosine, batch.sine, config.rope.pairing)

    def attention(
        self, q: np.ndarray, layer: dense.DenseLayer[np.ndarray], batch: Batch
    ) -> np.ndarray:
        cached = self._cache.read(layer.index, batch.start + len(q))
        return ops.attention(q, *cached).reshape(len(q), -1)

    def linear_add(
        self, x: np.ndarray, weight: np.ndarray, residual: np.ndarray, batch: Batch
    ) -> np.ndarray:
        return residual + ops.linear(x, weight)

    def norm_gate_up(
        self, x: np.ndarray, layer: dense.DenseLayer[np.ndarray], batch: Batch
    ) -> np.ndarray:
        normed = ops.rmsnorm(x, layer.ffn_norm, self._config.rms_eps)
        both = ops.linear(normed, self._weights.gate_up[layer.index])
        middle = both.shape[1] // 2
        return ops.swiglu(both[:, :middle], both[:, middle:])

    def norm_logits(
        self, x: np.ndarray, norm: np.ndarray, output: np.ndarray, batch: Batch
    ) -> np.ndarray:
        if not batch.every_position:
            x = x[-1:]
        logits = ops.linear(ops.rmsnorm(x, norm, self._config.rms_eps), output)
        return logits if batch.every_position else logits[0]


class ReferenceBackend:
    """
    A ``backends.base.Backend`` in NumPy.

    BLAS takes as many threads as there are cores. They wait for each other by spinning, so
    that where other programs keep all cores busy ``OPENBLAS_NUM_THREADS=1`` is faster.

    Parameters
    ----------
    model
        The open file; it may be closed once this returns.
    config
        ``context_length``, ``kv_cache``, ``memory_limit_mb`` and ``prefill_chunk`` are read.
    on_progress
        Told how far loading is.
    dtype
        ``np.float32`` to run a model, ``np.float64`` for the oracle.

    Raises
    ------
    OutOfMemoryError
        The model does not fit. Nothing has been allocated then.

    """

    name = 'cpu'

    def __init__(
        self,
        model: GgufModel,
        config: EngineConfig,
        on_progress: Progress = lambda fraction, phrase: None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self._sizes = sizes = model.config
        self._dtype = np.dtype(dtype)
        int8 = config.kv_cache == 'int8'
        batch_bytes, position_bytes = _scratch(sizes, config.prefill_chunk, self._dtype.itemsize)
        self.context_length = plan(
            sizes,
            weights=weight_bytes(expected_shapes(sizes), dtype),
            position_bytes=position_bytes + kv_bytes_per_position(
                sizes, 'int8' if int8 else self._dtype.name),
            scratch=batch_bytes,
            free=host_free_bytes(),
            context_length=config.context_length,
            limit_mb=config.memory_limit_mb,
        )
        cache = KvCache(sizes, self.context_length, self._dtype, int8)
        weights = ReferenceWeights(
            model, self._dtype, lambda fraction: on_progress(fraction, 'dequantizing weights'))
        self._scratch_bytes = batch_bytes + self.context_length * position_bytes
        self._loaded: _Loaded | None = _Loaded(
            weights, cache, ReferenceSteps(sizes, weights, cache))

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """Run tokens; logits (V,) float32 of the last. See ``Backend.forward``."""
        return self._run(tokens, start, False).astype(np.float32, copy=False)

    def forward_every(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """Run tokens (N,) as ``forward`` does; logits (N, V) of all, in the compute dtype."""
        return self._run(tokens, start, True)

    def stream(
        self, token: int, position: int, greedy: bool, choose: NextToken,
        plan: MakePlan = no_plan
    ) -> Generator[int, None, None]:
        """Decode token by token. See ``Backend.stream``."""
        while True:
            token = choose(self.forward((token,), position))
            yield token
            position += 1

    def memory(self) -> MemoryReport:
        """Say what is held, and what the machine has free. See ``Backend.memory``."""
        if self._loaded is None:
            return MemoryReport(0, 0, 0, host_free_bytes())
        return MemoryReport(
            self._loaded.weights.nbytes, self._loaded.cache.nbytes, self._scratch_bytes,
            host_free_bytes())

    def counters(self) -> dict[str, int]:
        """Return nothing: there is no faster path to fall back from."""
        return {}

    def close(self) -> None:
        """Give weights and cache back to the system. See ``Backend.close``."""
        self._loaded = None

    def _run(self, tokens: Sequence[int], start: int, every_position: bool) -> np.ndarray:
        if self._loaded is None:
            raise EngineError('The model is closed: load it again.')
        ids = np.asarray(tokens, np.int64)
        rope = self._sizes.rope
        cosine, sine = (turned * rope.magnitude for turned in ops.rope_angles(
            np.arange(start, start + len(ids)), rope.frequencies, self._dtype))
        batch = Batch(ids, start, cosine, sine, every_position)
        return dense.forward(self._loaded.steps, self._loaded.weights.dense, batch)


@dataclass(frozen=True)
class _Loaded:
    weights: ReferenceWeights
    cache: KvCache
    steps: ReferenceSteps


def _scratch(sizes: ModelConfig, tokens: int, itemsize: int) -> tuple[int, int]:
    """
    Bound the temporaries of a forward pass of some tokens.

    Returns
    -------
    tuple of int
        Bytes in all, and bytes for every position of the context.

    """
    heads = sizes.head_count + 2 * sizes.head_count_kv
    a_token = (
        4 * sizes.embedding_length + 3 * heads * sizes.head_dim + 4 * sizes.feed_forward_length)
    # Scores and their exponentials, of one layer; one layer's int8 cache turned to floats.
    a_position = 2 * tokens * sizes.head_count + 2 * sizes.head_count_kv * sizes.head_dim
    return (tokens * a_token + 2 * sizes.vocab_size) * itemsize, a_position * itemsize
