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
Decode speed of a Q8_0 model in planes on a GPU, for each kind of activations, in one run.

``python benchmarks/q8_decode.py MODEL.gguf``: tokens a second of 128 greedy tokens from an empty
cache, the median of several runs; then what was measured to be the fastest variants and how long
that took, and a decode step's time by variant and chunks of K, on the device alone.
"""

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from statistics import median
import time
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda import q8_choice
from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
from reflex_llm_ros.engine.backends.cuda.buffers import allocate_cache, Batch
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher
from reflex_llm_ros.engine.backends.cuda.opening import open_device
from reflex_llm_ros.engine.backends.cuda.q8_activations import KINDS
from reflex_llm_ros.engine.backends.cuda.q8_choice import Choice, FORCED
from reflex_llm_ros.engine.backends.cuda.q8_steps import Q8Steps
from reflex_llm_ros.engine.backends.cuda.q8_variants import measure_variants
from reflex_llm_ros.engine.config import EngineConfig, FastPaths
from reflex_llm_ros.engine.gguf_model import GgufModel, ModelConfig
from reflex_llm_ros.engine.models import dense

TOKENS = 128
REPEATS = 5
STEPS = 20
CONTEXT = 512
VARIANTS = ('u1', 'u2', 'u4', 'r2')
WARPS = (0, 32, 48, 64, 96)


def never(logits: np.ndarray) -> int:
    """Stand in for a sampler that is not called."""
    raise AssertionError('a greedy stream chooses on the device')


def tokens_per_second(backend: CudaBackend) -> float:
    """Decode as a generation does."""
    stream = backend.stream(1, 0, True, never)
    next(stream)
    start = time.monotonic()
    for _ in range(TOKENS):
        next(stream)
    seconds = time.monotonic() - start
    stream.close()
    return TOKENS / seconds


class Recorder:
    """A device that keeps launches in place of making them."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.launches: dict[str, list[Callable[[], None]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def function(self, file: str, kernel: str) -> tuple[str, Any]:
        """Return a kernel with its name."""
        return kernel, self._device.function(file, kernel)

    def launch(self, function: tuple[str, Any], *arguments: Any) -> None:
        """Keep a launch."""
        name, kernel = function
        self.launches.setdefault(name, []).append(
            lambda: self._device.launch(kernel, *arguments))


def print_kernels(backend: CudaBackend, sizes: ModelConfig, choice: Choice) -> None:
    """Print each kernel's time in a decode step, all its launches one after the other."""
    loaded, recorder = backend.loaded(), Recorder(backend.device)
    cache: list[Any] = allocate_cache(recorder, sizes, 'f16', CONTEXT)
    steps = Q8Steps(
        recorder, sizes, loaded.buffers, cache, FastPaths(), Dispatcher(), choice, loaded.weights)
    recorder.write(loaded.buffers.positions[:1], np.full(1, TOKENS // 2, np.int32))
    dense.forward(steps, loaded.weights, Batch(
        1, loaded.buffers.tokens[:1], loaded.buffers.positions[:1], True))
    for name, launches in recorder.launches.items():
        def run(launches: list[Callable[[], None]] = launches) -> None:
            for launch in launches:
                launch()

        run()
        replay = recorder.capture(run)
        replay()
        seconds = median(recorder.elapsed(replay) for _ in range(REPEATS))
        print(f'  {name}: {len(launches)} launches, {seconds / len(launches) * 1e6:.1f} us each, '
              f'{seconds * 1e6:.0f} us a step', flush=True)


def step_seconds(backend: CudaBackend, sizes: ModelConfig, choice: Choice) -> float:
    """Return a decode step's time on the device with other kernels, without argmax."""
    loaded, device = backend.loaded(), backend.device
    cache: list[Any] = allocate_cache(device, sizes, 'f16', CONTEXT)
    steps = Q8Steps(
        device, sizes, loaded.buffers, cache, FastPaths(), Dispatcher(), choice, loaded.weights)
    device.write(loaded.buffers.positions[:1], np.full(1, TOKENS // 2, np.int32))
    batch = Batch(1, loaded.buffers.tokens[:1], loaded.buffers.positions[:1], True)

    def step() -> None:
        dense.forward(steps, loaded.weights, batch)

    step()
    replay = device.capture(step)

    def replays() -> None:
        for _ in range(STEPS):
            replay()

    replays()
    return median(device.elapsed(replays) for _ in range(REPEATS)) / STEPS


def main() -> None:
    """Measure a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('model')
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    for kind in options.kinds:
        with closing(GgufModel.open(options.model)) as model:
            sizes = model.config
            start = time.monotonic()
            backend = CudaBackend(
                open_device(0), model,
                EngineConfig(
                    options.model, context_length=CONTEXT, weights='planes', q8_activations=kind),
                FastPaths())
        with closing(backend):
            print(f'{kind}: loaded in {time.monotonic() - start:.1f} s', flush=True)
            tokens_per_second(backend)
            speed = median(tokens_per_second(backend) for _ in range(REPEATS))
            weight = backend.memory().weights
            print(f'{kind}: {speed:.1f} tokens/s, weights read at {weight * speed / 1e9:.0f} GB/s')
            tokens = list(range(1, 257))
            seconds = []
            for _ in range(REPEATS):
                start = time.monotonic()
                backend.forward(tokens, 0)
                seconds.append(time.monotonic() - start)
            print(f'{kind}: prefill {len(tokens) / median(seconds):.0f} tokens/s', flush=True)
            choice = Choice(KINDS[kind], backend.device.info.multiprocessors)
            steps = backend.loaded().steps
            if isinstance(steps, Q8Steps) and KINDS[kind].words:
                batch = Batch(
                    1, backend.loaded().buffers.tokens[:1], backend.loaded().buffers.positions[:1],
                    True)
                start = time.monotonic()
                measured = measure_variants(
                    backend.device, choice.kind,
                    steps.products(backend.loaded().weights, batch))
                print(f'{kind} measured in {time.monotonic() - start:.3f} s: {measured}')
                choice = replace(choice, measured=measured)
            print_kernels(backend, sizes, choice)
            usual = q8_choice.WARPS
            for variant in ('auto', *VARIANTS) if KINDS[kind].words else ():
                seconds_a_step = step_seconds(
                    backend, sizes, replace(choice, forced=FORCED[variant]))
                print(f'{kind} {variant}: {seconds_a_step * 1e6:.0f} us a step', flush=True)
            for warps in WARPS if KINDS[kind].words else ():
                q8_choice.WARPS = warps
                chunks = choice.chunks(sizes.embedding_length, sizes.feed_forward_length)
                seconds_a_step = step_seconds(backend, sizes, choice)
                print(f'{kind} {warps} warps, down in {chunks} chunks: '
                      f'{seconds_a_step * 1e6:.0f} us a step', flush=True)
            q8_choice.WARPS = usual


if __name__ == '__main__':
    main()
