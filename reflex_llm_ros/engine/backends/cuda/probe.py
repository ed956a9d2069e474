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

"""A debug run: the residual stream after each layer on the device, beside the oracle's."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends import reference_ops as ops
from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
from reflex_llm_ros.engine.backends.cuda.buffers import Batch
from reflex_llm_ros.engine.backends.reference import Batch as OracleBatch
from reflex_llm_ros.engine.backends.reference import ReferenceSteps
from reflex_llm_ros.engine.backends.reference_cache import KvCache
from reflex_llm_ros.engine.gguf_model import GgufModel, ModelConfig, Tensor
from reflex_llm_ros.engine.models import dense

PROBE = 'vector_probe'
TOKENS = (1, 2, 3, 4)
"""The last one is probed; the others come before it as a prompt does."""
COMPARED = 32
SHOWN = 4
DEPARTS = 0.2
"""Relative difference that no rounding of activations explains."""
ROWS_AT_ONCE = 4096


def probe(backend: CudaBackend, model: GgufModel) -> Iterator[str]:
    """
    Compare a loaded model, layer by layer, with NumPy on the weights in its file.

    One token goes through the kernels that prefill takes, alone; then its logits as decoding
    makes them, by whatever kernel that is. The oracle holds one layer's weights at a time.

    Parameters
    ----------
    backend
        The backend; its cache is overwritten from position 0 on.
    model
        The file, still open.

    Yields
    ------
    str
        A line a layer and one for the logits: norm and first values of both, how far they are
        apart; at last which layer is the first that departs.

    """
    ours, oracles = device_states(backend), oracle_states(model)
    first = ''
    for index, (own, oracle) in enumerate(zip(ours, oracles, strict=True)):
        name = f'layer {index}' if index < model.config.block_count else 'logits'
        apart = _apart(own, oracle)
        # Not a number is never near.
        if not apart <= DEPARTS and not first:
            first = name
        yield f'probe {name}: {_shown(own)}, oracle {_shown(oracle)}, apart {apart:.1e}'
    yield f'probe: {first} departs first' if first else 'probe: no layer departs'


def device_states(backend: CudaBackend) -> np.ndarray:
    """Return norm and first values (L + 1, 1 + COMPARED) after each layer, and of the logits."""
    device, loaded = backend.device, backend.loaded()
    device.load({PROBE: {}})
    layers = len(loaded.weights.layers)
    last = len(TOKENS) - 1
    backend.forward(TOKENS[:-1], 0)
    out = device.upload(np.zeros((layers, 1 + COMPARED), np.float32))
    device.write(loaded.buffers.tokens[:1], np.array(TOKENS[-1:], np.int32))
    device.write(loaded.buffers.positions[:1], np.array([last], np.int32))
    steps: Any = _ProbedSteps(device, loaded.steps, out)
    dense.forward(steps, loaded.weights, Batch(
        1, loaded.buffers.tokens[:1], loaded.buffers.positions[:1], False))
    states = device.download(out)
    return np.concatenate([states, _state(backend.forward(TOKENS[-1:], last))[None]])


def oracle_states(model: GgufModel) -> np.ndarray:
    """Return what ``device_states`` does, by NumPy."""
    config = model.config
    tensors = dense.load_weights(config, model.tensors.__getitem__)
    steps = _OracleSteps(config)
    cosine, sine = (turned * config.rope.magnitude for turned in ops.rope_angles(
        np.arange(len(TOKENS)), config.rope.frequencies, np.dtype(np.float32)))
    weights: Any = dense.DenseWeights(
        tensors.token_embd, steps.layers(tensors.layers),  # type: ignore[arg-type]
        tensors.output_norm, tensors.output)
    logits = dense.forward(
        steps, weights, OracleBatch(np.array(TOKENS), 0, cosine, sine, False))
    return np.stack([*steps.states, _state(logits)])


class _ProbedSteps:
    """The steps of a backend, with a launch of ``l2_probe`` after each layer."""

    def __init__(self, device: Any, steps: Any, out: Any) -> None:
        self._device = device
        self._steps = steps
        self._out = out
        self._added = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)

    def linear_add(self, x: Any, weight: Any, residual: Any, batch: Batch) -> Any:
        residual = self._steps.linear_add(x, weight, residual, batch)
        self._added += 1
        if self._added % 2 == 0:
            self._device.launch(
                self._device.function(PROBE, 'l2_probe'), (1,), 256,
                (self._out[self._added // 2 - 1], residual[0], np.int32(residual.shape[1]),
                 np.int32(COMPARED)))
        return residual


class _OracleSteps(ReferenceSteps):
    """The oracle's steps on tensors of the file, which remember the last token's states."""

    def __init__(self, config: ModelConfig) -> None:
        self.qkv: dict[int, np.ndarray] = {}
        self.gate_up: dict[int, np.ndarray] = {}
        self.states: list[np.ndarray] = []
        self._added = 0
        own: Any = self
        super().__init__(config, own, KvCache(
            config, len(TOKENS), np.dtype(np.float32), False))

    def layers(
        self, layers: tuple[dense.DenseLayer[Tensor], ...]
    ) -> Iterator[dense.DenseLayer[np.ndarray]]:
        """Dequantize a layer when its turn comes."""
        for layer in layers:
            values: Any = {
                field.name: value.dequantize() if isinstance(value, Tensor) else value
                for field in fields(layer) for value in [getattr(layer, field.name)]}
            own = dense.DenseLayer[np.ndarray](**values)
            self.qkv = {own.index: np.concatenate([own.attn_q, own.attn_k, own.attn_v])}
            self.gate_up = {own.index: np.concatenate([own.ffn_gate, own.ffn_up])}
            yield own

    def embed(self, table: Any, batch: OracleBatch) -> np.ndarray:
        return np.concatenate([table.dequantize(slice(token, token + 1)) for token in TOKENS])

    def linear_add(
        self, x: np.ndarray, weight: np.ndarray, residual: np.ndarray, batch: OracleBatch
    ) -> np.ndarray:
        residual = super().linear_add(x, weight, residual, batch)
        self._added += 1
        if self._added % 2 == 0:
            self.states.append(_state(residual[-1]))
        return residual

    def norm_logits(
        self, x: np.ndarray, norm: Any, output: Any, batch: OracleBatch
    ) -> np.ndarray:
        normed = ops.rmsnorm(x[-1:], norm.dequantize(), self._config.rms_eps)
        return np.concatenate([
            ops.linear(normed, output.dequantize(slice(row, row + ROWS_AT_ONCE)))[0]
            for row in range(0, output.shape[0], ROWS_AT_ONCE)])


def _state(x: np.ndarray) -> np.ndarray:
    """Return norm and first values (1 + COMPARED,), as ``l2_probe`` does."""
    state = np.zeros(1 + COMPARED, np.float32)
    first = x[:COMPARED]
    state[0] = np.linalg.norm(x)
    state[1:1 + len(first)] = first
    return state


def _apart(own: np.ndarray, oracle: np.ndarray) -> float:
    """Return how far norm or first values are from the oracle's, relative to those."""
    norm = abs(own[0] - oracle[0]) / oracle[0]
    values = np.linalg.norm(own[1:] - oracle[1:]) / np.linalg.norm(oracle[1:])
    return float(np.maximum(norm, values))


def _shown(state: np.ndarray) -> str:
    values = ' '.join(f'{value:.3g}' for value in state[1:1 + SHOWN])
    return f'norm {state[0]:.4g} first {values}'
