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

"""The decode step with each kind of activations: speed, divergence, and on few multiprocessors."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from reflex_llm_ros.bench.cuda import greedy_ids, logits_of, measure_step, step_seconds, STEPS
from reflex_llm_ros.bench.result import Lane
from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
from reflex_llm_ros.engine.config import EngineConfig, FastPaths
from reflex_llm_ros.engine.errors import BadRequestError
from reflex_llm_ros.engine.gguf_model import GgufModel

FULL_PRECISION = 'fp16'
"""Of Q8_0 matrices, which have no such kernels, fp32."""
COMPARED = 128
REPEATED = 64
FEW_BLOCKS = 8


def measure_lanes(
    config: EngineConfig, kinds: Sequence[str], positions: Sequence[int],
    make_device: Callable[[], Any], few_blocks: int = FEW_BLOCKS, compared: int = COMPARED
) -> tuple[Lane, ...]:
    """
    Open the model once for each kind, and again for each on few multiprocessors.

    ``kinds`` begins with fp16, which the others are compared with. Positions may lie in a part of
    the cache that nothing was written to: what it holds takes no time. Raises BadRequestError
    where the cache has too few.
    """
    expected: list[np.ndarray] = []
    lanes = []
    for kind in kinds:
        with closing(_open(config, kind, make_device())) as backend:
            needed = max(compared, max(positions) + STEPS)
            if backend.context_length < needed:
                raise BadRequestError(
                    f'{backend.context_length} positions are too few to compare kinds of '
                    f'activations: give --context at least {needed}')
            vocabulary = backend.loaded().buffers.logits.shape[-1]
            tokens = np.random.default_rng(1).integers(0, vocabulary, compared).tolist()
            logits = [logits_of(backend, *at[::-1]) for at in enumerate(tokens)]
            expected = expected or logits
            divergences = list(map(divergence, expected, logits))
            repeated = min(REPEATED, backend.context_length)
            lane = Lane(
                kind, type(backend.loaded().decode).__name__, float(np.mean(divergences)),
                float(np.max(divergences)),
                greedy_ids(backend, 1, 0, repeated) == greedy_ids(backend, 1, 0, repeated),
                tuple(measure_step(backend, position) for position in positions))
        if kind != FULL_PRECISION and lane.route == 'PersistentDecode':
            device = make_device()
            device.info = replace(device.info, multiprocessors=few_blocks)
            with closing(_open(config, kind, device)) as backend:
                lane = replace(lane, few_blocks=few_blocks, few_blocks_ms=1e3 * step_seconds(
                    backend, positions[0]))
        lanes.append(lane)
    return tuple(lanes)


def divergence(logits: np.ndarray, other: np.ndarray) -> float:
    """Return KL(logits || other) in nats."""
    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64) - x.max()
        return x - np.log(np.exp(x).sum())

    p, q = log_softmax(logits), log_softmax(other)
    return float(np.sum(np.exp(p) * (p - q)))


def _open(config: EngineConfig, kind: str, device: Any) -> CudaBackend:
    config = replace(
        config, gemv_activations=kind, q8_activations='f32' if kind == FULL_PRECISION else kind)
    with closing(GgufModel.open(config.model_path)) as model:
        return CudaBackend(device, model, config, FastPaths())
