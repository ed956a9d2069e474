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

"""The steps of a dense forward pass on Q8_0 planes and quantized activations."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.buffers import Batch, Buffers, LayerCache
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher, Variant
from reflex_llm_ros.engine.backends.cuda.packed import PackedTensor
from reflex_llm_ros.engine.backends.cuda.q8_activations import Q8Buffers, qkv_rows
from reflex_llm_ros.engine.backends.cuda.q8_choice import Choice, product_name, rows_a_warp
from reflex_llm_ros.engine.backends.cuda.q8_reference import Q8Reference
from reflex_llm_ros.engine.backends.cuda.q8_weights import planes, PlanesTensor
from reflex_llm_ros.engine.backends.cuda.steps import CudaSteps
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.config import FastPaths
from reflex_llm_ros.engine.gguf_model import ModelConfig
from reflex_llm_ros.engine.models.dense import DenseLayer, DenseWeights

KERNEL_FILES = (
    'q8_layer', 'q8_embed', 'q8_gemv', 'q8_gemm', 'q8_norm', 'q8_quantize', 'q8_swiglu',
    'q8_heads')
PACKED_KERNEL_FILES = ('q8_packed', 'q8_norm', 'q8_quantize', 'q8_swiglu', 'q8_heads')
BLOCK = 128
WARPS = BLOCK // 32
NORM_BLOCK = 512


class Q8Steps(CudaSteps):
    """
    Implements ``models.dense.DenseSteps`` for a model of Q8_0 matrices.

    They lie in planes, or packed for the persistent kernel: then only batches come here, and
    decode steps where that kernel has failed, and all take one launch an operation. A step whose
    matrices are blocks of the file, in a model of several types, is that of ``CudaSteps``.

    A decode step takes six launches a layer: projections with all up to the cache, attention,
    quantizing its output, the output projection with the feed-forward's norm, gate and up with
    SwiGLU, the down projection with the next layer's norm. Batches, and a decode step whose
    fused kernels are off or have failed, take one launch an operation, with the same results to
    the bit. A norm runs with what comes before it, so x is normed when a step gets it.
    """

    def __init__(
        self, device: Any, config: ModelConfig, buffers: Buffers, cache: list[LayerCache],
        fast: FastPaths, dispatcher: Dispatcher, choice: Choice,
        weights: DenseWeights[DeviceTensor]
    ) -> None:
        super().__init__(device, config, buffers, cache, fast, dispatcher)
        self._choice = choice
        self._kind = choice.kind
        self._packed = isinstance(weights.output, PackedTensor)
        self._own = Q8Buffers(
            device, config, self._kind, choice.partial_rows(config))
        self._host = Q8Reference(device, config, self._kind, self._own)
        self._eps = np.float32(config.rms_eps)
        self._has_factors = False
        self._first_norm = weights.layers[0].attn_norm
        self._norm_after: dict[str, DeviceTensor] = {}
        following = [*(layer.attn_norm for layer in weights.layers[1:]), weights.output_norm]
        for layer, norm in zip(weights.layers, following, strict=True):
            self._norm_after[layer.attn_output.host.name] = layer.ffn_norm
            self._norm_after[layer.ffn_down.host.name] = norm

    def embed(self, table: DeviceTensor, batch: Batch) -> Any:
        """Rows of the embedding, x (N, E) float32, and the first layer's norm of them."""
        if not _is_q8(table):
            x = super().embed(table, batch)
            self._norm_into_planes(x, None, self._first_norm)
            return x
        x = self._buffers.x[:batch.size]
        file, name = ('q8_packed', 'embed_q8_packed') if self._packed else (
            'q8_embed', 'embed_q8')
        self._run('embd', self._fast.embd, [Variant(name, lambda: self._launch(
            file, name, (-(-table.columns // BLOCK), batch.size), x, batch.tokens,
            *_matrix(table), np.int32(table.columns)))],
            lambda: self._host.embed(x, table, batch.tokens))
        self._norm_into_planes(x, None, self._first_norm)
        return x

    def norm_qkv(
        self, x: Any, layer: DenseLayer[DeviceTensor], batch: Batch
    ) -> tuple[Any, Any, Any]:
        """Return the fused projection q, k, v (N, rows) float32; fused, all up to the cache."""
        if not _is_q8(layer.attn_q):
            return super().norm_qkv(x, layer, batch)
        y = self._own.qkv[:batch.size]
        self._fused_or(
            'q8_qkv', y.shape[1], x.shape[1], batch.size,
            lambda end: self._fused_qkv(end, layer, batch),
            lambda: self._projections(y, layer, batch))
        return y, y, y

    def rope_store(
        self, q: Any, k: Any, v: Any, layer: DenseLayer[DeviceTensor], batch: Batch
    ) -> Any:
        """Return the queries (N, H, D) float16, which ``norm_qkv`` has finished."""
        if not _is_q8(layer.attn_q):
            return super().rope_store(q, k, v, layer, batch)
        return self._buffers.q[:batch.size]

    def linear_add(self, x: Any, weight: DeviceTensor, residual: Any, batch: Batch) -> Any:
        """Add ``x @ weight.T`` to the residual stream in place; then the norm that follows."""
        norm = self._norm_after[weight.host.name]
        if not _is_q8(weight):
            super().linear_add(x, weight, residual, batch)
            self._norm_into_planes(residual, None, norm)
            return residual
        if x is not self._own.middle:
            x = self._quantized(x)

        def separate() -> None:
            y = self._own.sums[:batch.size]
            self._product(
                y, x, self._own.ones, weight,
                chunk=self._choice.chunk(weight.rows, weight.columns))
            self._norm_into_planes(residual, y, norm)

        self._fused_or(
            'q8_add_norm', weight.rows, weight.columns, batch.size,
            lambda end: self._fused_add_norm(end, x, weight, residual, norm), separate)
        return residual

    def norm_gate_up(self, x: Any, layer: DenseLayer[DeviceTensor], batch: Batch) -> Any:
        """Activations of ``silu(gate) * up``."""
        if not _is_q8(layer.ffn_gate):
            return super().norm_gate_up(x, layer, batch)
        own, size = self._own, batch.size

        def separate() -> None:
            gate, up = own.gate[:size], own.up[:size]
            self._product(gate, own.normed, self._factors(size), layer.ffn_gate)
            self._product(up, own.normed, self._factors(size), layer.ffn_up)
            name = f'swiglu_{self._kind.name}' if not self._kind.words else (
                f'swiglu_q8_{self._kind.name}')
            self._run('swiglu', True, [Variant(name, lambda: self._launch(
                'q8_swiglu', name, (-(-gate.size // BLOCK),), own.middle, gate, up,
                np.int32(size), np.int32(gate.shape[1])))],
                lambda: self._host.swiglu(own.middle, gate, up))

        self._fused_or(
            'q8_gate_up', layer.ffn_gate.rows, layer.ffn_gate.columns, size,
            lambda end: self._fused_gate_up(end, layer), separate)
        return own.middle

    def norm_logits(
        self, x: Any, norm: DeviceTensor, output: DeviceTensor, batch: Batch
    ) -> Any:
        """Head of the last position, when wanted: logits (1, V) float32."""
        if not _is_q8(output):
            return super().norm_logits(x, norm, output, batch)
        logits, own = self._buffers.logits, self._own
        if not batch.wants_logits:
            return logits
        if batch.size > 1:
            self._norm_into_planes(x[batch.size - 1:], None, norm)
        self._fused_or(
            'q8_head', output.rows, output.columns, 1, lambda end: self._fused_head(end, output),
            lambda: self._product(logits, own.normed, self._factors(1), output))
        return logits

    def products(
        self, weights: DenseWeights[DeviceTensor], batch: Batch
    ) -> dict[str, list[Callable[[str], None]]]:
        """
        Return the fused launches of a decode step by kernel and shape, for measuring.

        Each is told the end of the kernel's name. ``batch`` is of one token.
        """
        residual, own = self._buffers.x[:1], self._own
        products: dict[str, list[Callable[[str], None]]] = {}

        def add(
            kernel: str, rows: int, weight: DeviceTensor, launch: Callable[[str], None]
        ) -> None:
            if isinstance(weight, PlanesTensor):
                products.setdefault(product_name(kernel, rows, weight.columns), []).append(launch)

        for layer in weights.layers:
            add('q8_qkv', qkv_rows(self._config), layer.attn_q,
                partial(self._fused_qkv, layer=layer, batch=batch))
            for x, weight in ((own.heads, layer.attn_output), (own.middle, layer.ffn_down)):
                norm = self._norm_after[weight.host.name]
                add('q8_add_norm', weight.rows, weight, partial(
                    self._fused_add_norm, x=x, weight=weight, residual=residual, norm=norm))
            add('q8_gate_up', layer.ffn_gate.rows, layer.ffn_gate,
                partial(self._fused_gate_up, layer=layer))
        add('q8_head', weights.output.rows, weights.output,
            partial(self._fused_head, output=weights.output))
        return products

    def variants(self) -> dict[str, str]:
        return {product: f'{product.split()[0]}_{self._kind.name}{self._choice.suffix(product)}'
                for product in self._choice.measured}

    def choose(self, measured: dict[str, str]) -> None:
        """Take these variants from now on."""
        self._choice = replace(self._choice, measured=measured)

    def _fused_qkv(self, end: str, layer: DenseLayer[DeviceTensor], batch: Batch) -> None:
        config, own = self._config, self._own
        rows, columns = qkv_rows(config), config.embedding_length
        chunk = self._choice.chunk(rows, columns)
        parts = [planes(weight) for weight in (layer.attn_q, layer.attn_k, layer.attn_v)]
        self._launch(
            'q8_layer', f'q8_qkv_{self._kind.name}{end}',
            (rows // _rows(end), self._choice.chunks(rows, columns)), *self._heads(layer, batch),
            own.partials, own.counters, own.normed, own.squares,
            *(array for part in parts for array in (part.data, part.scales)),
            np.int32(columns), np.int32(chunk))

    def _fused_add_norm(
        self, end: str, x: Any, weight: DeviceTensor, residual: Any, norm: DeviceTensor
    ) -> None:
        own, rows, columns = self._own, weight.rows, weight.columns
        self._launch(
            'q8_layer', f'q8_add_norm_{self._kind.name}{end}',
            (rows // _rows(end), self._choice.chunks(rows, columns)), own.normed, own.squares,
            residual, own.partials, own.counters, x, weight.data, planes(weight).scales,
            norm.data, np.int32(rows), np.int32(columns),
            np.int32(self._choice.chunk(rows, columns)))
        self._has_factors = False

    def _fused_gate_up(self, end: str, layer: DenseLayer[DeviceTensor]) -> None:
        own, gate, up = self._own, planes(layer.ffn_gate), planes(layer.ffn_up)
        self._launch(
            'q8_layer', f'q8_gate_up_{self._kind.name}{end}', (gate.rows // WARPS,), own.middle,
            own.partials, own.counters, own.normed, own.squares, gate.data, gate.scales,
            up.data, up.scales,
            np.int32(gate.rows), np.int32(gate.columns), self._eps)

    def _fused_head(self, end: str, output: DeviceTensor) -> None:
        own, head = self._own, planes(output)
        self._launch(
            'q8_layer', f'q8_head_{self._kind.name}{end}', (-(-head.rows // _rows(end)),),
            self._buffers.logits, own.normed, own.squares, head.data, head.scales,
            np.int32(head.rows), np.int32(head.columns), self._eps)

    def _projections(self, y: Any, layer: DenseLayer[DeviceTensor], batch: Batch) -> None:
        first = 0
        chunk = self._choice.chunk(y.shape[1], self._config.embedding_length)
        for weight in (layer.attn_q, layer.attn_k, layer.attn_v):
            self._product(
                y, self._own.normed, self._factors(batch.size), weight, first, chunk)
            first += weight.rows
        all_heads = y.shape[1] // self._config.head_dim
        fast = self._fast.norm or layer.attn_q_norm is None
        self._run('heads', fast, [Variant('q8_heads', lambda: self._launch(
            'q8_heads', 'q8_heads', (-(-all_heads // WARPS), batch.size),
            *self._heads(layer, batch), y))],
            lambda: self._host.heads(
                y, self._buffers, self._cache[layer.index], layer, batch.positions))

    def _heads(self, layer: DenseLayer[DeviceTensor], batch: Batch) -> tuple[Any, ...]:
        """Return the arguments that say where heads go."""
        config, cache = self._config, self._cache[layer.index]
        quantized = cache.key_scales is not None
        normed = layer.attn_q_norm is not None and layer.attn_k_norm is not None
        # What a kernel is told not to read is any array of the right type.
        unused = self._own.ones
        return (
            self._buffers.q, cache.keys, cache.values,
            cache.key_scales if quantized else unused,
            cache.value_scales if quantized else unused, np.int32(quantized),
            layer.attn_q_norm.data if layer.attn_q_norm is not None else unused,
            layer.attn_k_norm.data if layer.attn_k_norm is not None else unused,
            np.int32(normed), self._turns, batch.positions, np.int32(config.head_count),
            np.int32(config.head_count_kv), np.int32(config.head_dim),
            np.int32(config.rope.pairing == 'adjacent'), self._eps)

    def _norm_into_planes(self, x: Any, y: Any | None, weight: DeviceTensor) -> None:
        """Add y to x in place where there is one; the norm of x to the buffers."""
        rows, columns = x.shape
        own = self._own
        name = f'{"add_" if y is not None else ""}rmsnorm_q8_{self._kind.name}'
        sources = (x,) if y is None else (x, y)
        self._run('norm', self._fast.norm, [Variant(name, lambda: self._launch(
            'q8_norm', name, (rows,), own.normed, own.factors, own.squares, *sources,
            weight.data, np.int32(rows), np.int32(columns), self._eps, block=NORM_BLOCK))],
            lambda: self._host.norm(x, y, weight))
        self._has_factors = True

    def _factors(self, rows: int) -> Any:
        """Return the norm's factors, after making them of what a fused kernel left."""
        own = self._own
        if not self._has_factors:
            self._launch(
                'q8_norm', 'norm_factors', (rows,), own.factors, own.squares,
                np.int32(self._config.embedding_length), self._eps, block=32)
            self._has_factors = True
        return own.factors

    def _quantized(self, x: Any) -> Any:
        """Activations of attention's output (N, H*D) or of SwiGLU's (N, F), float16."""
        heads = self._config.head_count * self._config.head_dim
        out = self._own.heads if x.shape[1] == heads else self._own.middle
        name = f'quantize_{self._kind.name}_half'
        self._run('quantize', True, [Variant(name, lambda: self._launch(
            'q8_quantize', name, (-(-x.size // BLOCK),), out, x, np.int32(len(x)),
            np.int32(x.shape[1])))],
            lambda: self._host.quantize(out, x))
        return out

    def _product(
        self, y: Any, x: Any, factors: Any, weight: DeviceTensor, first: int = 0,
        chunk: int = 0
    ) -> None:
        """
        Multiply activations with a matrix, into columns ``first`` on of y (N, ...) float32.

        ``chunk`` is how much of a row is summed at a time, as the fused product does; 0 for all.
        """
        kind, size, rows, columns = self._kind.name, len(y), weight.rows, weight.columns
        chunk = chunk or columns
        chunks = -(-columns // chunk)
        blocks = -(-rows // WARPS)
        matrix = _matrix(weight)
        shape = (np.int32(rows), np.int32(columns))
        out = y[0, first:] if size == 1 else y.reshape(-1)[first:]

        def batched() -> None:
            file, name = ('q8_packed', 'gemm_q8_packed') if self._packed else (
                'q8_gemm', 'gemm_q8')
            self._launch(
                file, f'{name}_{kind}', (blocks,), out, x, factors, *matrix, np.int32(size),
                *shape, np.int32(y.shape[1]), np.int32(chunk))

        def single() -> None:
            end = self._choice.suffix(product_name('gemv_q8', rows, columns))
            self._launch(
                'q8_gemv', f'gemv_q8_{kind}{end}', (-(-rows // _rows(end)),), out, x, factors,
                *matrix, *shape)

        def split() -> None:
            self._launch(
                'q8_gemv', f'gemv_q8_{kind}_split', (blocks, chunks), self._own.partials, x,
                factors, *matrix, *shape, np.int32(chunk))
            self._launch(
                'q8_gemv', 'splitk_combine', (-(-rows // BLOCK),), out, self._own.partials,
                np.int32(rows), np.int32(chunks))

        if size == 1 and not self._packed:
            name, launch = ('gemv_q8_split', split) if chunks > 1 else ('gemv_q8', single)
        else:
            name, launch = 'gemm_q8', batched
        self._run('gemv', self._fast.gemv, [Variant(name, launch)],
                  lambda: self._host.product(y, x, factors, weight, first))

    def _fused_or(
        self, kernel: str, rows: int, columns: int, size: int, fused: Callable[[str], None],
        separate: Callable[[], None]
    ) -> None:
        """Run a fused kernel where there is one token and no switch is off, else its parts."""
        end = self._choice.suffix(product_name(kernel, rows, columns))
        variants = [Variant(f'{kernel} in parts', separate)]
        if size == 1 and self._fast.gemv and self._fast.norm and not self._packed:
            variants.insert(0, Variant(
                f'{kernel}_{self._kind.name}{end}', lambda: fused(end)))
        self._dispatcher.run(kernel, variants)


def _is_q8(weight: DeviceTensor) -> bool:
    return isinstance(weight, (PlanesTensor, PackedTensor))


def _rows(end: str) -> int:
    """Rows of a block of the kernel whose name ends so."""
    return WARPS * rows_a_warp(end)


def _matrix(weight: DeviceTensor) -> tuple[Any, ...]:
    """Return what kernels are given of a matrix: two planes, or packed bytes and a place."""
    if isinstance(weight, PackedTensor):
        return (weight.data, *weight.place)
    return (weight.data, planes(weight).scales)
