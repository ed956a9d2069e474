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

"""Each operation on Q8_0 planes on the host: what runs when its kernels are off or fail."""

from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends import reference_ops as ops
from reflex_llm_ros.engine.backends.cuda.buffers import Buffers, LayerCache
from reflex_llm_ros.engine.backends.cuda.host_reference import (
    HALF_MAX,
    HostReference,
    ROWS_AT_ONCE,
)
from reflex_llm_ros.engine.backends.cuda.q8_activations import Kind, Q8Buffers
from reflex_llm_ros.engine.backends.cuda.q8_weights import GROUP
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.gguf_model import ModelConfig
from reflex_llm_ros.engine.models.dense import DenseLayer


class Q8Reference:
    """The operations of ``Q8Steps`` between arrays of one device, in NumPy."""

    def __init__(
        self, device: Any, config: ModelConfig, kind: Kind, buffers: Q8Buffers
    ) -> None:
        self._device = device
        self._config = config
        self._kind = kind
        self._buffers = buffers
        self._host = HostReference(device)

    def embed(self, out: Any, table: DeviceTensor, tokens: Any) -> None:
        """Rows of the embedding. See ``HostReference.embed``."""
        self._host.embed(out, table, tokens)

    def norm(self, x: Any, y: Any | None, weight: DeviceTensor) -> None:
        """Add ``y`` to ``x`` (N, E) float32 in place, and leave the norm in the buffers."""
        values = self._device.download(x)
        if y is not None:
            values = values + self._device.download(y)
            self._device.write(x, values)
        rows, columns = values.shape
        squares = np.square(values.reshape(rows, columns // GROUP, GROUP)).sum(axis=2)
        mean = squares.sum(axis=1) / np.float32(columns)
        self._device.write(self._buffers.squares[:rows], squares)
        self._device.write(
            self._buffers.factors[:rows], 1 / np.sqrt(mean + np.float32(self._config.rms_eps)))
        self._write(self._buffers.normed, values * weight.host.dequantize())

    def quantize(self, out: Any, x: Any) -> None:
        """Activations of ``x`` (N, K) into ``out``."""
        self._write(out, self._device.download(x).reshape(len(x), -1))

    def product(
        self, y: Any, x: Any, factors: Any, weight: DeviceTensor, first: int = 0
    ) -> None:
        """Activations times a matrix into columns ``first`` on of ``y`` (N, ...) float32."""
        rows = len(y)
        packed = self._device.download(
            x[:rows * weight.columns // GROUP * self._kind.group_bytes])
        values = self._kind.unpack(packed, rows, weight.columns)
        values = values * self._device.download(factors)[:rows, None]
        result = self._device.download(y)
        for row in range(0, weight.rows, ROWS_AT_ONCE):
            part = weight.host.dequantize(slice(row, row + ROWS_AT_ONCE))
            result[:, first + row:first + row + len(part)] = ops.linear(values, part)
        self._device.write(y, result)

    def heads(
        self, y: Any, buffers: Buffers, cache: LayerCache, layer: DenseLayer[DeviceTensor],
        positions: Any
    ) -> None:
        """Split the fused projection ``y`` (N, rows): norms, rotary embedding, cache."""
        config, values = self._config, self._device.download(y)
        rows = len(values)
        ends = np.cumsum([config.head_count, config.head_count_kv]) * config.head_dim
        q, k, v = (
            part.reshape(rows, -1, config.head_dim) for part in np.split(values, ends, axis=1))
        if layer.attn_q_norm is not None and layer.attn_k_norm is not None:
            eps = np.float32(config.rms_eps)
            q = ops.rmsnorm(q, layer.attn_q_norm.host.dequantize(), eps)
            k = ops.rmsnorm(k, layer.attn_k_norm.host.dequantize(), eps)
        cosine, sine = ops.rope_angles(
            self._device.download(positions), config.rope.frequencies, np.float32)
        q = ops.rope(q, cosine, sine, config.rope.pairing)
        k = ops.rope(k, cosine, sine, config.rope.pairing)
        for array, part in ((buffers.q, q), (buffers.k, k), (buffers.v, v)):
            self._device.write(
                array[:rows], np.clip(part, -HALF_MAX, HALF_MAX).astype(np.float16))
        self._host.store(cache, buffers.k[:rows], buffers.v[:rows], positions)

    def swiglu(self, out: Any, gate: Any, up: Any) -> None:
        """Activations of ``silu(gate) * up``, (N, F) float32 both."""
        self._write(out, ops.swiglu(self._device.download(gate), self._device.download(up)))

    def _write(self, out: Any, values: np.ndarray) -> None:
        packed = self._kind.pack(values)
        self._device.write(out[:packed.nbytes], packed)
