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

"""What only the CUDA backend can be asked: bandwidth, where a step goes, the host's share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from statistics import median
import time
from typing import Any

import numpy as np
from reflex_llm_ros.bench.measure import fill
from reflex_llm_ros.bench.orin import STAGES
from reflex_llm_ros.bench.result import ClockedStep, Decode, Kernel, Phases
from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
from reflex_llm_ros.engine.backends.cuda.buffers import Batch
from reflex_llm_ros.engine.backends.cuda.persistent import CLOCKED, PersistentDecode, PHASES
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.models import dense
from reflex_llm_ros.engine.models.dense import DenseWeights

BANDWIDTH = 'bandwidth'
READ_BYTES = 1 << 30
READ_BLOCKS = (8, 16, 32)
CLOCK_NANOSECONDS = 5_000_000
REPEATS = 5
STEPS = 40


def read_bandwidth(device: Any, size: int = READ_BYTES) -> float:
    """Measure the bytes a second of a kernel that only reads, the best of several."""
    device.load({BANDWIDTH: {}})
    data, out = device.empty((size,), np.uint8), device.upload(np.zeros(1, np.uint32))
    function, best = device.function(BANDWIDTH, 'read_bytes'), 0.0
    for blocks in READ_BLOCKS:
        def read(grid: int = blocks * device.info.multiprocessors) -> None:
            device.launch(function, (grid,), 256, (data, out, np.int64(size // 16)))

        read()
        best = max(best, *(size / device.elapsed(read) for _ in range(REPEATS)))
    return best


def clock_ghz(device: Any, nanoseconds: int = CLOCK_NANOSECONDS) -> float:
    """Measure the clock of the multiprocessors, by counting its cycles."""
    device.load({BANDWIDTH: {}})
    elapsed = device.upload(np.zeros(2, np.uint64))
    device.launch(
        device.function(BANDWIDTH, 'clock_rate'), (1,), 1, (elapsed, np.int64(nanoseconds)))
    cycles, taken = device.download(elapsed)
    return float(cycles) / float(taken)


def set_input(backend: CudaBackend, token: int, position: int) -> None:
    """Say what the next decode step is to read."""
    buffers = backend.loaded().buffers
    backend.device.write(buffers.tokens[:1], np.array([token], np.int32))
    backend.device.write(buffers.positions[:1], np.array([position], np.int32))


def logits_of(backend: CudaBackend, token: int, position: int) -> np.ndarray:
    """Run a decode step; logits (V,) float32."""
    set_input(backend, token, position)
    backend.loaded().decode.launch()
    return backend.device.download(backend.loaded().buffers.logits)[0]


def greedy_ids(backend: CudaBackend, token: int, position: int, count: int) -> list[int]:
    """Decode without the backend's loop."""
    decode, ids = backend.loaded().decode, []
    set_input(backend, token, position)
    for _ in range(count):
        number = decode.launch()
        backend.device.synchronize()
        ids.append(decode.chosen(number))
    return ids


def measure_step(backend: CudaBackend, position: int, steps: int = STEPS) -> Decode:
    """Time decode steps on the device, ``steps`` positions around the one given."""
    seconds = step_seconds(backend, position, steps)
    return Decode(position, 1 / seconds, seconds * 1e3)


def step_seconds(backend: CudaBackend, position: int, steps: int = STEPS) -> float:
    """Return a step's time when nothing waits for the host, the middle of several runs."""
    return median(_run_seconds(backend, position, steps) for _ in range(REPEATS))


def _run_seconds(backend: CudaBackend, position: int, steps: int) -> float:
    """Run steps once; the time of one."""
    decode = backend.loaded().decode

    def run() -> None:
        for _ in range(steps):
            decode.launch()

    set_input(backend, 1, max(0, position - steps // 2))
    seconds: float = backend.device.elapsed(run)
    return seconds / steps


def host_share(backend: CudaBackend, position: int, steps: int = STEPS) -> float:
    """
    Return the share of a token's time in which the device waits for the host.

    Steps launched one after the other without reading anything are the device's own time; a
    stream that yields every token is the time with the host.
    """
    fill(backend, position)
    on_device = step_seconds(backend, position, steps)
    times = []
    for _ in range(REPEATS):
        stream = backend.stream(
            1, max(0, position - steps // 2), True, lambda logits: int(np.argmax(logits)))
        next(stream)
        start = time.monotonic()
        for _ in range(steps):
            next(stream)
        times.append((time.monotonic() - start) / steps)
        stream.close()
    return max(0.0, 1 - on_device / median(times))


def measure_clocked(
    backend: CudaBackend, position: int, position_bytes: int, steps: int = STEPS
) -> ClockedStep:
    """
    Let a persistent kernel's blocks count where their cycles go.

    ``steps`` positions around the one given are averaged, and all blocks. ``position_bytes`` are
    those of a position's keys and values.
    """
    decode, device = backend.loaded().decode, backend.device
    assert isinstance(decode, PersistentDecode)
    plain = step_seconds(backend, position, steps)
    with decode.clocked() as counts:
        _run_seconds(backend, position, steps)
        device.write(counts, np.zeros(counts.shape, np.uint64))
        seconds = _run_seconds(backend, position, steps)
        counted = device.download(counts).astype(np.float64)
    ghz = counted[:, :-1].sum() / counted[:, -1].sum()
    microseconds = (counted[:, :-1].mean(axis=0) / steps / ghz / 1e3).reshape(
        len(CLOCKED), len(PHASES))
    sizes = {**_part_bytes(backend.loaded().weights), 'attention': position * position_bytes}
    return ClockedStep(position, plain * 1e6, seconds * 1e6, clock_ghz=float(ghz), parts=tuple(
        Phases(name, **dict(zip(PHASES, row, strict=True)), read_bytes=sizes[name])
        for name, row in zip(CLOCKED, microseconds.tolist(), strict=True)))


def _part_bytes(weights: DenseWeights[DeviceTensor]) -> dict[str, int]:
    """Return the bytes of the matrices that each part of the persistent kernel multiplies with."""
    matrices = {name: [getattr(layer, part) for layer in weights.layers for part in parts]
                for name, parts in STAGES.items()}
    matrices['head'] = [weights.output]
    return {name: sum(tensor.host.data.nbytes for tensor in tensors)
            for name, tensors in matrices.items()}


def measure_kernels(backend: CudaBackend, position: int) -> tuple[Kernel, ...]:
    """
    Time every kernel of a decode step of launches: all its launches, one after the other.

    Each reads all layers' weights, so that no cache helps.
    """
    loaded, device = backend.loaded(), backend.device
    set_input(backend, 1, position)
    launches: dict[str, list[_Launch]] = {}
    with _recorded(device, launches):
        dense.forward(loaded.steps, loaded.weights, Batch(
            1, loaded.buffers.tokens[:1], loaded.buffers.positions[:1], True))

    def time_of(work: list[_Launch]) -> float:
        def run() -> None:
            for launch in work:
                launch.again()

        run()
        replay = device.capture(run)
        replay()
        return median(device.elapsed(replay) for _ in range(REPEATS))

    held = _weight_bytes(loaded.weights)

    def read_by(name: str, work: list[_Launch]) -> int:
        if name.startswith('embed'):  # one row
            return 0
        return sum(held.get(id(argument), 0) for launch in work for argument in launch.arguments)

    return tuple(
        Kernel(name, len(work), time_of(work) * 1e6, read_by(name, work))
        for name, work in launches.items())


def _weight_bytes(weights: DenseWeights[DeviceTensor]) -> dict[int, int]:
    """Return the bytes of the arrays that hold matrices, by identity."""
    tensors = [weights.output, *(
        getattr(layer, field.name) for layer in weights.layers for field in fields(layer))]
    arrays = [array for tensor in tensors
              if isinstance(tensor, DeviceTensor) and len(tensor.host.shape) == 2
              for array in (tensor.data, getattr(tensor, 'scales', None)) if array is not None]
    return {id(array): array.nbytes for array in arrays}


@dataclass(frozen=True)
class _Launch:
    """A launch that can be made again, and what the kernel is told."""

    again: Callable[[], None]
    arguments: Sequence[Any]


@contextmanager
def _recorded(device: Any, launches: dict[str, list[_Launch]]) -> Iterator[None]:
    """Keep launches by kernel in place of making them."""
    function, launch = device.function, device.launch

    def named(file: str, kernel: str) -> tuple[str, Any]:
        return kernel, function(file, kernel)

    def keep(
        kernel: tuple[str, Any], grid: tuple[int, ...], block: int, arguments: Sequence[Any],
        shared_bytes: int = 0
    ) -> None:
        launches.setdefault(kernel[0], []).append(_Launch(
            lambda: launch(kernel[1], grid, block, arguments, shared_bytes), arguments))

    device.function, device.launch = named, keep
    try:
        yield
    finally:
        del device.function, device.launch
