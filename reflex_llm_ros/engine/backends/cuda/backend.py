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

"""A model on a CUDA device: prefill in batches, decode step by step on the device."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.base import MakePlan, NextToken, no_plan, Progress
from reflex_llm_ros.engine.backends.cuda.buffers import (
    allocate_cache,
    Batch,
    BATCH_ROWS,
    Buffers,
)
from reflex_llm_ros.engine.backends.cuda.decode import DecodeStep
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher
from reflex_llm_ros.engine.backends.cuda.kernel_files import kernel_files
from reflex_llm_ros.engine.backends.cuda.load_plan import (
    DEVICE,
    LoadPlan,
    make_plan,
    MAPPED,
    PACKED,
)
from reflex_llm_ros.engine.backends.cuda.packed import PackedPlacement
from reflex_llm_ros.engine.backends.cuda.persistent import DECODE, PersistentDecode
from reflex_llm_ros.engine.backends.cuda.q8_activations import KINDS
from reflex_llm_ros.engine.backends.cuda.q8_choice import Choice, FORCED
from reflex_llm_ros.engine.backends.cuda.q8_steps import Q8Steps
from reflex_llm_ros.engine.backends.cuda.q8_variants import fastest_variants
from reflex_llm_ros.engine.backends.cuda.q8_weights import PlanesPlacement
from reflex_llm_ros.engine.backends.cuda.sampling import (
    DeviceSampling,
    MOST_CANDIDATES,
    SAMPLE,
)
from reflex_llm_ros.engine.backends.cuda.sources import Defines
from reflex_llm_ros.engine.backends.cuda.staging import piece_bytes, Staging
from reflex_llm_ros.engine.backends.cuda.steps import CudaSteps
from reflex_llm_ros.engine.backends.cuda.weight_memory import WeightMemory
from reflex_llm_ros.engine.backends.cuda.weights import (
    DeviceTensor,
    is_read_as_stored,
    memory_bytes,
    WeightPlacement,
)
from reflex_llm_ros.engine.config import EngineConfig, FastPaths
from reflex_llm_ros.engine.errors import DeviceError, EngineError
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.memory import MemoryReport
from reflex_llm_ros.engine.models import dense

STEPS_AHEAD = 2
"""Decode steps launched before the oldest one's token is read."""


class CudaBackend:
    """
    A ``backends.base.Backend`` on a device.

    Parameters
    ----------
    device
        A ``device.CudaDevice``; the backend closes it.
    model
        The open file; it may be closed once this returns.
    config
        ``context_length``, ``kv_cache``, ``memory_limit_mb``, ``weights``,
        ``q8_activations`` and ``gemv_activations`` are read.
    fast
        The switches, environment overrides applied.
    on_progress
        Told how far loading is.

    Raises
    ------
    OutOfMemoryError
        The model does not fit. Nothing has been allocated then.

    """

    name = 'cuda'

    def __init__(
        self, device: Any, model: GgufModel, config: EngineConfig, fast: FastPaths,
        on_progress: Progress = lambda fraction, phrase: None
    ) -> None:
        self.device = device
        sizes = model.config
        plan = make_plan(device, model, config, fast)
        self.context_length = plan.context_length
        self._cache_bytes, self._scratch_bytes = plan.cache, plan.scratch
        on_progress(0.0, (
            f'on {device.info.name}: weights {plan.weights >> 20} MiB, cache '
            f'{plan.cache >> 20} MiB for {plan.context_length} tokens, scratch '
            f'{plan.scratch >> 20} MiB, of {device.free_bytes() >> 20} MiB free'))

        files = kernel_files(plan, sizes, config, device.info)
        _compile(device, files, on_progress)
        weights, self._weight_bytes = _load(device, model, plan, on_progress)

        on_progress(0.95, 'warming up')
        self._dispatcher = Dispatcher()
        buffers = Buffers(device, sizes, self.context_length)
        cache = allocate_cache(device, sizes, config.kv_cache, self.context_length)
        common = (device, sizes, buffers, cache, fast, self._dispatcher)
        device.write(buffers.tokens[:1], np.zeros(1, np.int32))
        device.write(buffers.positions[:1], np.zeros(1, np.int32))
        steps = CudaSteps(*common)
        if plan.q8:
            choice = Choice(
                KINDS[config.q8_activations], device.info.multiprocessors,
                FORCED[config.q8_variant])
            steps = q8_steps = Q8Steps(*common, choice, weights)
            if choice.forced is None and fast.gemv and fast.norm:
                q8_steps.choose(fastest_variants(device, choice.kind, q8_steps.products(
                    weights, Batch(1, buffers.tokens[:1], buffers.positions[:1], True))))
        launches = DecodeStep(
            device, steps, weights, buffers, self._dispatcher, fast.cuda_graph)
        decode: DecodeStep | PersistentDecode = launches
        if plan.placement == PACKED:
            decode = PersistentDecode(
                device, sizes, weights, buffers, cache, plan.types, files[DECODE], launches,
                self._dispatcher)
        sampling = DeviceSampling(
            device, buffers.tokens[:1], buffers.positions[:1], buffers.logits)
        self._loaded: Loaded | None = Loaded(weights, buffers, steps, decode, sampling)

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """Run tokens; logits (V,) float32 of the last. See ``Backend.forward``."""
        loaded = self.loaded()
        for first in range(0, len(tokens), BATCH_ROWS):
            rows = tokens[first:first + BATCH_ROWS]
            self._write_input(rows, start + first)
            if len(rows) == 1:
                loaded.decode.launch()
                continue
            dense.forward(loaded.steps, loaded.weights, Batch(
                len(rows), loaded.buffers.tokens[:len(rows)],
                loaded.buffers.positions[:len(rows)], first + len(rows) == len(tokens)))
        return self.device.download(loaded.buffers.logits)[0]

    def stream(
        self, token: int, position: int, greedy: bool, choose: NextToken,
        plan: MakePlan = no_plan
    ) -> Generator[int, None, None]:
        """Decode token by token. See ``Backend.stream``."""
        loaded = self.loaded()
        sampling = None
        if not greedy:
            followed = plan(MOST_CANDIDATES) if not self._dispatcher.is_broken(SAMPLE) else None
            if followed is None:
                yield from self._stream_by_host(token, position, choose)
                return
            sampling = loaded.sampling
            sampling.begin(followed)
        self._write_input((token,), position)
        ahead: deque[tuple[Callable[[], int], Callable[[], None]]] = deque()
        by_host = False
        while True:
            while not by_host and len(ahead) < STEPS_AHEAD and position < self.context_length:
                number = loaded.decode.launch()
                position += 1
                choice: Callable[[], int] = partial(loaded.decode.chosen, number)
                if sampling is not None:
                    try:
                        sampling.launch(position)
                    except DeviceError as error:
                        self._dispatcher.give_up(SAMPLE, SAMPLE, error)
                        by_host = True
                        break
                    choice = partial(sampling.chosen, position)
                ahead.append((choice, self.device.record()))
            if not ahead:
                break
            choice, wait = ahead.popleft()
            wait()
            chosen = choice()
            if chosen < 0:
                raise EngineError(
                    'logits are NaN or infinite; the model file is damaged or a fast path fails: '
                    'try the cpu backend')
            yield chosen
        if not by_host:
            return
        # The last step launched is the one whose token could not be chosen.
        token = choose(self.device.download(loaded.buffers.logits)[0])
        yield token
        yield from self._stream_by_host(token, position, choose)

    def _stream_by_host(
        self, token: int, position: int, choose: NextToken
    ) -> Generator[int, None, None]:
        while True:
            token = choose(self.forward((token,), position))
            yield token
            position += 1

    def memory(self) -> MemoryReport:
        """Say what is held, and what the device has free. See ``Backend.memory``."""
        if self._loaded is None:
            return MemoryReport(0, 0, 0, 0)
        return MemoryReport(
            self._weight_bytes, self._cache_bytes, self._scratch_bytes,
            self.device.free_bytes())

    def counters(self) -> dict[str, int]:
        """Count the operations that took a simpler path after a failure, by name."""
        return {f'fallback {name}': count
                for name, count in sorted(self._dispatcher.fallbacks.items())}

    def variants(self) -> dict[str, str]:
        """Say which kernel does each product that has several of equal results."""
        return self.loaded().steps.variants()

    def close(self) -> None:
        """Free all memory. See ``Backend.close``."""
        if self._loaded is not None:
            self._loaded = None
            self.device.close()

    def loaded(self) -> 'Loaded':
        """Return what is on the device; raises EngineError once closed."""
        if self._loaded is None:
            raise EngineError('the backend is closed')
        return self._loaded

    def _write_input(self, tokens: Sequence[int], position: int) -> None:
        buffers, size = self.loaded().buffers, len(tokens)
        self.device.write(buffers.tokens[:size], np.asarray(tokens, np.int32))
        self.device.write(
            buffers.positions[:size], np.arange(position, position + size, dtype=np.int32))


class Loaded:
    """What holds device memory: gone, all of it, when the backend closes."""

    def __init__(
        self, weights: dense.DenseWeights[DeviceTensor], buffers: Buffers,
        steps: CudaSteps | Q8Steps, decode: DecodeStep | PersistentDecode,
        sampling: DeviceSampling
    ) -> None:
        self.weights = weights
        self.buffers = buffers
        self.steps = steps
        self.decode = decode
        self.sampling = sampling


def _compile(device: Any, files: Mapping[str, Defines], on_progress: Progress) -> None:
    """Load kernel files, saying how many are done."""
    on_progress(0.0, f'compiling kernels, {len(files)} files')
    loaded = 0

    def report(file: str) -> None:
        nonlocal loaded
        loaded += 1
        on_progress(0.15 * loaded / len(files), (
            f'compiling kernels, {loaded} of {len(files)} done: {file}.cu'))

    device.load(files, report)


def _load(
    device: Any, model: GgufModel, plan: LoadPlan, on_progress: Progress
) -> tuple[dense.DenseWeights[DeviceTensor], int]:
    """Place a model's weights; returns them and the bytes of device memory they take."""
    total = sum(tensor.data.nbytes for tensor in model.tensors.values())
    phrase = f'{"mapping" if plan.placement == MAPPED else "copying"} {total >> 20} MiB of weights'

    def report(placed: int) -> None:
        on_progress(0.15 + 0.8 * placed / total, phrase)

    report(0)
    mapped = plan.placement == MAPPED
    memory = WeightMemory(device, memory_bytes(model, mapped))
    matrices = () if mapped else (
        model.tensors[name].data for name in dense.weight_names(model.config)
        if is_read_as_stored(model.tensors[name]))
    with closing(Staging(device, piece_bytes(model), matrices)) as staging:
        if plan.placement in (DEVICE, MAPPED):
            place = WeightPlacement(device, model, mapped, memory, staging, report).place
        else:
            kind = PackedPlacement if plan.placement == PACKED else PlanesPlacement
            place = kind(device, model, memory, staging, report).place
        weights = dense.load_weights(model.config, place)
    return weights, memory.size
