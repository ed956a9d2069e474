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
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.buffers import Batch, Buffers, LayerCache
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher, REFERENCE, Variant
from reflex_llm_ros.engine.backends.cuda.packed import PackedTensor
from reflex_llm_ros.engine.backends.cuda.q8_activations import Q8Buffers, qkv_rows
from reflex_llm_ros.engine.backends.cuda.q8_choice import Choice
from reflex_llm_ros.engine.backends.cuda.q8_reference import Q8Reference
from reflex_llm_ros.engine.backends.cuda.q8_weights import planes
from reflex_llm_ros.engine.backends.cuda.steps import CudaSteps, turns
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.config import FastPaths
from reflex_llm_ros.engine.gguf_model import ModelConfig
from reflex_llm_ros.engine.models.dense import DenseLayer, DenseWeights

KERNEL_FILES = (
    'q8_embed', 'q8_gemv', 'q8_gemm', 'q8_norm', 'q8_quantize', 'q8_swiglu', 'q8_heads',
    'q8_layer')
PACKED_KERNEL_FILES = ('q8_packed', 'q8_norm', 'q8_quantize', 'q8_swiglu', 'q8_heads')
BLOCK = 128
WARPS = BLOCK // 32
NORM_BLOCK = 512


class Q8Steps:
    """
    Implements ``models.dense.DenseSteps`` for a model whose matrices are all Q8_0.

    They lie in planes, or packed for the persistent kernel: then only batches come here, and
    decode steps where that kernel has failed, and all take one launch an operation.

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
        self._device = device
        self._config = config
        self._buffers = buffers
        self._cache = cache
        self._fast = fast
        self._dispatcher = dispatcher
        self._choice = choice
        self._kind = choice.kind
        self._packed = isinstance(weights.output, PackedTensor)
        self._rows = WARPS * choice.rows_a_warp
        self._own = Q8Buffers(
            device, config, self._kind, choice.partial_rows(config))
        self._reference = Q8Reference(device, config, self._kind, self._own)
        self._attention = CudaSteps(device, config, buffers, cache, fast, dispatcher)
        self._turns = device.upload(turns(config.rope.frequencies))
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
        x = self._buffers.x[:batch.size]
        file, name = ('q8_packed', 'embed_q8_packed') if self._packed else (
            'q8_embed', 'embed_q8')
        self._run('embd', self._fast.embd, [Variant(name, lambda: self._launch(
            file, name, (-(-table.columns // BLOCK), batch.size), x, batch.tokens,
            *_matrix(table), np.int32(table.columns)))],
            lambda: self._reference.embed(x, table, batch.tokens))
        self._norm(x, None, self._first_norm)
        return x

    def norm_qkv(
        self, x: Any, layer: DenseLayer[DeviceTensor], batch: Batch
    ) -> tuple[Any, Any, Any]:
        """Return the fused projection q, k, v (N, rows) float32; fused, all up to the cache."""
        y = self._own.qkv[:batch.size]
        self._fused_or('q8_qkv', batch.size, lambda name: self._fused_qkv(name, layer, batch),
                       lambda: self._projections(y, layer, batch))
        return y, y, y

    def rope_store(
        self, q: Any, k: Any, v: Any, layer: DenseLayer[DeviceTensor], batch: Batch
    ) -> Any:
        """Return the queries (N, H, D) float16, which ``norm_qkv`` has finished."""
        return self._buffers.q[:batch.size]

    def attention(self, q: Any, layer: DenseLayer[DeviceTensor], batch: Batch) -> Any:
        """Causal attention against the cache, (N, H*D) float16."""
        return self._attention.attention(q, layer, batch)

    def linear_add(self, x: Any, weight: DeviceTensor, residual: Any, batch: Batch) -> Any:
        """Add ``x @ weight.T`` to the residual stream in place; then the norm that follows."""
        if x is not self._own.middle:
            x = self._quantized(x)
        norm = self._norm_after[weight.host.name]

        def separate() -> None:
            y = self._own.sums[:batch.size]
            self._product(
                y, x, self._own.ones, weight,
                chunk=self._choice.chunk(weight.rows, weight.columns))
            self._norm(residual, y, norm)

        self._fused_or(
            'q8_add_norm', batch.size,
            lambda name: self._fused_add_norm(name, x, weight, residual, norm), separate)
        return residual

    def norm_gate_up(self, x: Any, layer: DenseLayer[DeviceTensor], batch: Batch) -> Any:
        """Activations of ``silu(gate) * up``."""
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
                lambda: self._reference.swiglu(own.middle, gate, up))

        self._fused_or('q8_gate_up', size, lambda name: self._fused_gate_up(name, layer),
                       separate, self._choice.pair_suffix)
        return own.middle

    def norm_logits(
        self, x: Any, norm: DeviceTensor, output: DeviceTensor, batch: Batch
    ) -> Any:
        """Head of the last position, when wanted: logits (1, V) float32."""
        logits, own = self._buffers.logits, self._own
        if not batch.wants_logits:
            return logits
        if batch.size > 1:
            self._norm(x[batch.size - 1:], None, norm)
        self._fused_or('q8_head', 1, lambda name: self._launch(
            'q8_layer', name, (-(-output.rows // self._rows),), logits, own.normed, own.squares,
            *_matrix(output), np.int32(output.rows), np.int32(output.columns), self._eps),
            lambda: self._product(logits, own.normed, self._factors(1), output))
        return logits

    def _fused_qkv(self, name: str, layer: DenseLayer[DeviceTensor], batch: Batch) -> None:
        config, own = self._config, self._own
        rows, columns = qkv_rows(config), config.embedding_length
        chunk = self._choice.chunk(rows, columns)
        parts = [planes(weight) for weight in (layer.attn_q, layer.attn_k, layer.attn_v)]
        self._launch(
            'q8_layer', name, (rows // self._rows, self._choice.chunks(rows, columns)),
            *self._heads(layer, batch), own.partials, own.counters, own.normed, own.squares,
            *(array for part in parts for array in (part.data, part.scales)),
            np.int32(columns), np.int32(chunk))

    def _fused_add_norm(
        self, name: str, x: Any, weight: DeviceTensor, residual: Any, norm: DeviceTensor
    ) -> None:
        own, rows, columns = self._own, weight.rows, weight.columns
        self._launch(
            'q8_layer', name, (rows // self._rows, self._choice.chunks(rows, columns)), own.normed,
            own.squares, residual, own.partials, own.counters, x, weight.data,
            planes(weight).scales, norm.data, np.int32(rows), np.int32(columns),
            np.int32(self._choice.chunk(rows, columns)))
        self._has_factors = False

    def _fused_gate_up(self, name: str, layer: DenseLayer[DeviceTensor]) -> None:
        own, gate, up = self._own, planes(layer.ffn_gate), planes(layer.ffn_up)
        self._launch(
            'q8_layer', name, (gate.rows // WARPS,), own.middle, own.partials, own.counters,
            own.normed, own.squares, gate.data, gate.scales, up.data, up.scales,
            np.int32(gate.rows), np.int32(gate.columns), self._eps)

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
            lambda: self._reference.heads(
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

    def _norm(self, x: Any, y: Any | None, weight: DeviceTensor) -> None:
        """Add y to x in place where there is one; the norm of x to the buffers."""
        rows, columns = x.shape
        own = self._own
        name = f'{"add_" if y is not None else ""}rmsnorm_q8_{self._kind.name}'
        sources = (x,) if y is None else (x, y)
        self._run('norm', self._fast.norm, [Variant(name, lambda: self._launch(
            'q8_norm', name, (rows,), own.normed, own.factors, own.squares, *sources,
            weight.data, np.int32(rows), np.int32(columns), self._eps, block=NORM_BLOCK))],
            lambda: self._reference.norm(x, y, weight))
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
        """Activations of attention's output (N, H*D) float16."""
        out, name = self._own.heads, f'quantize_{self._kind.name}_half'
        self._run('quantize', True, [Variant(name, lambda: self._launch(
            'q8_quantize', name, (-(-x.size // BLOCK),), out, x, np.int32(len(x)),
            np.int32(x.shape[1])))],
            lambda: self._reference.quantize(out, x))
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
            self._launch(
                'q8_gemv', f'gemv_q8_{kind}{self._choice.suffix}', (-(-rows // self._rows),),
                out, x, factors, *matrix, *shape)

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
                  lambda: self._reference.product(y, x, factors, weight, first))

    def _fused_or(
        self, kernel: str, size: int, fused: Callable[[str], None],
        separate: Callable[[], None], suffix: str | None = None
    ) -> None:
        """Run a fused kernel where there is one token and no switch is off, else its parts."""
        name = f'{kernel}_{self._kind.name}' + (
            self._choice.suffix if suffix is None else suffix)
        variants = [Variant(f'{kernel} in parts', separate)]
        if size == 1 and self._fast.gemv and self._fast.norm and not self._packed:
            variants.insert(0, Variant(name, lambda: fused(name)))
        self._dispatcher.run(kernel, variants)

    def _run(
        self, operation: str, fast: bool, kernels: list[Variant], reference: Callable[[], None]
    ) -> None:
        self._dispatcher.run(
            operation, [*(kernels if fast else []), Variant(REFERENCE, reference)])

    def _launch(
        self, file: str, kernel: str, grid: tuple[int, ...], *arguments: Any, block: int = BLOCK
    ) -> None:
        self._device.launch(self._device.function(file, kernel), grid, block, arguments)


def _matrix(weight: DeviceTensor) -> tuple[Any, ...]:
    """Return what kernels are given of a matrix: two planes, or packed bytes and a place."""
    if isinstance(weight, PackedTensor):
        return (weight.data, *weight.place)
    return (weight.data, planes(weight).scales)
