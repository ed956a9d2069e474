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

"""The steps of a dense forward pass as kernel launches."""

from collections.abc import Callable
import math
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.buffers import (
    ATTENTION_CHUNK,
    Batch,
    Buffers,
    chunks,
    LayerCache,
)
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher, REFERENCE, Variant
from reflex_llm_ros.engine.backends.cuda.host_reference import HostReference
from reflex_llm_ros.engine.backends.cuda.matvec import Matvec
from reflex_llm_ros.engine.backends.cuda.packed import PackedTensor
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.config import FastPaths
from reflex_llm_ros.engine.gguf_model import ModelConfig
from reflex_llm_ros.engine.models.dense import DenseLayer

BLOCK = 128
WARPS = BLOCK // 32
SPLIT_HEADS = 4
SPLIT_BLOCKS = 4
"""Blocks of split attention that a multiprocessor holds."""
NORM_BLOCK = 256
EMBED_COLUMNS = 512
"""Columns of the embedding a block; rows of a file's table take any number."""


class CudaSteps:
    """
    Implements ``models.dense.DenseSteps`` on a device.

    Every array that a step takes or returns is a view of the first N rows of ``buffers``.
    Every step goes through the dispatcher, kernels first, the host reference last.
    """

    def __init__(
        self, device: Any, config: ModelConfig, buffers: Buffers, cache: list[LayerCache],
        fast: FastPaths, dispatcher: Dispatcher
    ) -> None:
        self._device = device
        self._config = config
        self._buffers = buffers
        self._cache = cache
        self._fast = fast
        self._dispatcher = dispatcher
        self._reference = HostReference(device)
        self._matvec = Matvec(device, fast, dispatcher, self._reference)
        self._turns = device.upload(turns(config.rope.frequencies))
        # Sine and cosine of q and of k are both multiplied by the magnitude: so are scores.
        self._score_scale = config.rope.magnitude ** 2 / math.sqrt(config.head_dim)

    def embed(self, table: DeviceTensor, batch: Batch) -> Any:
        """Rows of the embedding, x (N, E) float32."""
        x = self._buffers.x[:batch.size]
        file, kernel = ('packed_embed', 'packed_embed') if isinstance(table, PackedTensor) else (
            'embed', 'embed_row')
        name = f'{kernel}_{table.kernel_type}'
        self._run('embd', self._fast.embd, [Variant(name, lambda: self._launch(
            file, name, (-(-table.columns // EMBED_COLUMNS), batch.size),
            x, batch.tokens, table.data, np.int32(table.columns)))],
            lambda: self._reference.embed(x, table, batch.tokens))
        return x

    def norm_qkv(
        self, x: Any, layer: DenseLayer[DeviceTensor], batch: Batch
    ) -> tuple[Any, Any, Any]:
        """RMSNorm, then the three projections: q (N, H, D), k and v (N, G, D) float16."""
        normed = self._norm(x, layer.attn_norm)
        buffers, size = self._buffers, batch.size
        q, k, v = buffers.q[:size], buffers.k[:size], buffers.v[:size]
        self._matvec.triple(
            (q, k, v), normed, (layer.attn_q, layer.attn_k, layer.attn_v))
        return q, k, v

    def rope_store(
        self, q: Any, k: Any, v: Any, layer: DenseLayer[DeviceTensor], batch: Batch
    ) -> Any:
        """Head norms where the layer has them, rotary embedding, k and v to the cache: q."""
        if layer.attn_q_norm is not None and layer.attn_k_norm is not None:
            self._head_norms(q, k, layer.attn_q_norm, layer.attn_k_norm)
        self._rope(q, k, batch)
        self._store(k, v, self._cache[layer.index], batch)
        return q

    def attention(self, q: Any, layer: DenseLayer[DeviceTensor], batch: Batch) -> Any:
        """Causal attention against the cache, (N, H*D) float16."""
        heads = self._buffers.heads[:batch.size]
        cache = self._cache[layer.index]
        arrays: tuple[Any, ...] = (cache.keys, cache.values)
        suffix = ''
        if cache.key_scales is not None:
            arrays, suffix = (*arrays, cache.key_scales, cache.value_scales), '_int8'
        shape = (*self._heads_shape(), np.float32(self._score_scale))
        shared_bytes = 4 * (ATTENTION_CHUNK + WARPS * self._config.head_dim + 2)

        def launch(kind: str, first: int, count: int) -> None:
            rows = slice(first, first + count)
            self._launch(
                'attention', f'attention_{kind}{suffix}', (self._config.head_count, count),
                heads[rows], q[rows], *arrays, batch.positions[rows], *shape,
                shared_bytes=shared_bytes)

        def one_by_one() -> None:
            for token in range(batch.size):
                launch('decode', token, 1)

        def split() -> None:
            buffers = self._buffers
            self._launch(
                'attention', f'attention_split{suffix}',
                (self._config.head_count_kv, self._splits(len(cache.keys))), heads, q, *arrays,
                batch.positions, buffers.chunk_sums, buffers.chunk_tops, buffers.chunk_counters,
                *shape, shared_bytes=SPLIT_HEADS * shared_bytes)

        fastest = Variant(f'attention_split{suffix}', split) if batch.size == 1 else Variant(
            f'attention_prefill{suffix}', lambda: launch('prefill', 0, batch.size))
        variants = [fastest, Variant(f'attention_decode{suffix}', one_by_one)]
        self._run('attn', self._fast.attn, variants, lambda: self._reference.attention(
            heads, q, cache, batch.positions, self._score_scale))
        return heads.reshape(batch.size, -1)

    def linear_add(self, x: Any, weight: DeviceTensor, residual: Any, batch: Batch) -> Any:
        """Add ``x @ weight.T`` to the residual stream (N, E) float32, in place."""
        self._matvec.add(residual, x, weight, self._buffers.normed[:batch.size])
        return residual

    def norm_gate_up(self, x: Any, layer: DenseLayer[DeviceTensor], batch: Batch) -> Any:
        """RMSNorm, then ``silu(gate) * up``, (N, F) float16."""
        normed = self._norm(x, layer.ffn_norm)
        gate, up = self._buffers.gate[:batch.size], self._buffers.up[:batch.size]
        self._matvec.pair((gate, up), normed, (layer.ffn_gate, layer.ffn_up))
        self._run('swiglu', True, [Variant(
            'swiglu', lambda: self._launch(
                'elementwise', 'swiglu', (-(-gate.size // BLOCK),),
                gate, gate, up, np.int32(gate.size)))],
            lambda: self._reference.swiglu(gate, gate, up))
        return gate

    def norm_logits(
        self, x: Any, norm: DeviceTensor, output: DeviceTensor, batch: Batch
    ) -> Any:
        """Norm and head of the last position, when wanted: logits (1, V) float32."""
        if not batch.wants_logits:
            return self._buffers.logits
        normed = self._norm(x[batch.size - 1:], norm)
        self._matvec.logits(self._buffers.logits, normed, output, self._buffers.half_logits)
        return self._buffers.logits

    def variants(self) -> dict[str, str]:
        """Say which kernel does each product that has several of equal results."""
        return {}

    def _norm(self, x: Any, weight: DeviceTensor) -> Any:
        rows, columns = x.shape
        out = self._buffers.normed[:rows]
        eps = self._config.rms_eps
        self._run('norm', self._fast.norm, [Variant(
            'rmsnorm', lambda: self._launch(
                'norm', 'rmsnorm', (rows,), out, x, weight.data, np.int32(columns),
                np.float32(eps), block=NORM_BLOCK))],
            lambda: self._reference.rmsnorm(out, x, weight, eps))
        return out

    def _head_norms(
        self, q: Any, k: Any, q_weight: DeviceTensor, k_weight: DeviceTensor
    ) -> None:
        rows = len(q)
        warps = rows * (self._config.head_count + self._config.head_count_kv)
        eps = self._config.rms_eps

        def reference() -> None:
            self._reference.rmsnorm(q, q, q_weight, eps)
            self._reference.rmsnorm(k, k, k_weight, eps)

        self._run('norm', self._fast.norm, [Variant(
            'rmsnorm_heads', lambda: self._launch(
                'norm', 'rmsnorm_heads', (-(-warps // WARPS),), q, k, q_weight.data,
                k_weight.data, np.int32(rows), *self._heads_shape(), np.float32(eps)))],
            reference)

    def _rope(self, q: Any, k: Any, batch: Batch) -> None:
        config = self._config
        pairs = (config.head_count + config.head_count_kv) * config.head_dim // 2
        rope = config.rope

        def reference() -> None:
            for x in (q, k):
                self._reference.rope(x, batch.positions, rope.frequencies, rope.pairing)

        self._run('rope', True, [Variant(
            'rope', lambda: self._launch(
                'rope', 'rope', (-(-pairs // BLOCK), batch.size), q, k, batch.positions,
                self._turns, *self._heads_shape(), np.int32(rope.pairing == 'adjacent')))],
            reference)

    def _store(self, k: Any, v: Any, cache: LayerCache, batch: Batch) -> None:
        shape = self._heads_shape()[1:]
        rows, words = batch.size, self._config.head_count_kv * self._config.head_dim // 8
        if cache.key_scales is None:
            name = 'kv_store'

            def launch() -> None:
                self._launch(
                    'kv_cache', name, (-(-words // BLOCK), rows), cache.keys, cache.values,
                    k, v, batch.positions, *shape)
        else:
            name = 'quantize_kv_int8'

            def launch() -> None:
                self._launch(
                    'kv_cache', name, (-(-rows * self._config.head_count_kv // WARPS), 2),
                    cache.keys, cache.values, cache.key_scales, cache.value_scales, k, v,
                    batch.positions, np.int32(rows), *shape)

        self._run('kv_store', True, [Variant(name, launch)], lambda: self._reference.store(
            cache, k, v, batch.positions))

    def _splits(self, positions: int) -> int:
        """Blocks a key/value head: one for each chunk, or as many as the device holds."""
        resident = SPLIT_BLOCKS * self._device.info.multiprocessors
        return min(chunks(positions), -(-resident // self._config.head_count_kv))

    def _heads_shape(self) -> tuple[np.int32, np.int32, np.int32]:
        config = self._config
        return (
            np.int32(config.head_count), np.int32(config.head_count_kv),
            np.int32(config.head_dim))

    def _run(
        self, operation: str, fast: bool, kernels: list[Variant],
        reference: Callable[[], None]
    ) -> None:
        self._dispatcher.run(
            operation, [*(kernels if fast else []), Variant(REFERENCE, reference)])

    def _launch(
        self, file: str, kernel: str, grid: tuple[int, ...], *arguments: Any,
        block: int = BLOCK, shared_bytes: int = 0
    ) -> None:
        function = self._device.function(file, kernel)
        self._device.launch(function, grid, block, arguments, shared_bytes)


def turns(frequencies: np.ndarray) -> np.ndarray:
    """
    Rotary frequencies (D/2,) in radians a position as turns in units of 2^-64, uint64.

    A position times that, modulo 2^64, is the angle without its whole turns.
    """
    fractions = np.asarray(frequencies, np.float64) / (2 * math.pi)
    return np.array(
        [round(fraction * 2**64) % 2**64 for fraction in fractions.tolist()], np.uint64)
