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
Each operation of the CUDA backend on the host, in NumPy: slow, simple and right.

What an operation runs when its fast path is off or its kernels have failed. Inputs come from
the device and results go back, so that the operations around it stay on their kernels.
"""

from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends import reference_ops as ops
from reflex_llm_ros.engine.backends.cuda.buffers import LayerCache
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor

HALF_MAX = float(np.finfo(np.float16).max)
ROWS_AT_ONCE = 1024


class HostReference:
    """The reference operations between arrays of one device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def embed(self, out: Any, table: DeviceTensor, tokens: Any) -> None:
        """Rows of ``table`` at ``tokens`` (N,) into ``out`` (N, E) float32."""
        ids = self._device.download(tokens)
        rows = [table.host.dequantize(slice(token, token + 1))[0] for token in ids]
        self._device.write(out, np.stack(rows))

    def rmsnorm(self, out: Any, x: Any, weight: DeviceTensor, eps: float) -> None:
        """Norm of the last axis of ``x`` (float32 or float16) into ``out`` (float16)."""
        values = self._floats(x)
        self._write(out, ops.rmsnorm(values, weight.host.dequantize(), np.float32(eps)))

    def linear(
        self, out: Any, x: Any, weight: DeviceTensor, residual: Any | None = None
    ) -> None:
        """Product of ``x`` (N, K) float16 and the matrix, plus ``residual``, into ``out``."""
        values = self._floats(x)
        product = np.empty((len(values), weight.rows), np.float32)
        for row in range(0, weight.rows, ROWS_AT_ONCE):
            rows = slice(row, row + ROWS_AT_ONCE)
            product[:, rows] = ops.linear(values, weight.host.dequantize(rows))
        if residual is not None:
            product += self._device.download(residual)
        self._write(out, product)

    def rope(self, x: Any, positions: Any, frequencies: np.ndarray, pairing: str) -> None:
        """Rotate ``x`` (N, heads, D) float16 in place by ``positions`` (N,)."""
        cosine, sine = ops.rope_angles(
            self._device.download(positions), frequencies, np.float32)
        self._write(x, ops.rope(self._floats(x), cosine, sine, pairing))

    def store(self, cache: LayerCache, k: Any, v: Any, positions: Any) -> None:
        """Keys and values (N, G, D) float16 into the cache at ``positions`` (N,)."""
        where = self._device.download(positions)
        span = slice(int(where[0]), int(where[-1]) + 1)
        for rows, target, scales in (
                (k, cache.keys, cache.key_scales), (v, cache.values, cache.value_scales)):
            if scales is None:
                self._device.write(target[span], self._device.download(rows))
                continue
            quantized, scale = ops.quantize_kv_int8(self._floats(rows))
            self._device.write(target[span], quantized)
            self._device.write(scales[span], scale)

    def attention(
        self, out: Any, q: Any, cache: LayerCache, positions: Any, scale: float
    ) -> None:
        """Attention of ``q`` (N, H, D) at ``positions`` (N,) into ``out``, scores * scale."""
        length = int(self._device.download(positions)[-1]) + 1
        scales = [
            None if array is None else self._device.download(array[:length])
            for array in (cache.key_scales, cache.value_scales)]
        queries = self._floats(q) * np.float32(scale * np.sqrt(q.shape[-1]))
        self._write(out, ops.attention(
            queries, self._device.download(cache.keys[:length]),
            self._device.download(cache.values[:length]), *scales))

    def swiglu(self, out: Any, gate: Any, up: Any) -> None:
        """``silu(gate) * up``, float16."""
        self._write(out, ops.swiglu(self._floats(gate), self._floats(up)))

    def _floats(self, x: Any) -> np.ndarray:
        return self._device.download(x).astype(np.float32)

    def _write(self, out: Any, values: np.ndarray) -> None:
        if out.dtype == np.float16:
            values = np.clip(values, -HALF_MAX, HALF_MAX)
        self._device.write(out, values.reshape(out.shape).astype(out.dtype))
