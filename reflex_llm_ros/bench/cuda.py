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

"""What only the CUDA backend can be asked: bandwidth by kernel, the host's share of a token."""

from collections.abc import Callable
from statistics import median
import time
from typing import Any

import numpy as np
from reflex_llm_ros.bench.measure import fill
from reflex_llm_ros.bench.result import Kernel
from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher
from reflex_llm_ros.engine.backends.cuda.host_reference import HostReference
from reflex_llm_ros.engine.backends.cuda.matvec import Matvec
from reflex_llm_ros.engine.backends.cuda.q8_weights import PlanesTensor
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.config import FastPaths

REPEATS = 5
STEPS = 64
ADDING = ('attn_output', 'ffn_down', 'output')


def host_share(backend: CudaBackend, position: int) -> float:
    """
    Return the share of a token's time in which the device waits for the host.

    Steps launched one after the other without reading anything are the device's own time; a
    stream that yields every token is the time with the host.
    """
    fill(backend, position)
    backend.forward([1], position)
    loaded = backend.loaded()
    device = backend.device

    def steps() -> None:
        for _ in range(STEPS):
            loaded.decode.launch()

    on_device = device.elapsed(steps) / STEPS
    stream = backend.stream(1, position, True, lambda logits: int(np.argmax(logits)))
    next(stream)
    start = time.monotonic()
    for _ in range(STEPS):
        next(stream)
    with_host = (time.monotonic() - start) / STEPS
    stream.close()
    return max(0.0, 1 - on_device / with_host)


def measure_kernels(backend: CudaBackend, copy_bytes_per_s: float) -> tuple[Kernel, ...]:
    """
    Time every matrix product of a decode step, over all layers so that no cache helps.

    None of a model in Q8_0 planes, whose products are parts of larger kernels:
    ``benchmarks/q8_decode.py`` times those.
    """
    weights, device = backend.loaded().weights, backend.device
    if isinstance(weights.output, PlanesTensor):
        return ()
    matvec = Matvec(device, FastPaths(), Dispatcher(), HostReference(device))
    groups: dict[tuple[str, str], list[tuple[DeviceTensor, ...]]] = {}

    def add(role: str, *tensors: DeviceTensor) -> None:
        kinds = '+'.join(dict.fromkeys(tensor.kernel_type for tensor in tensors))
        groups.setdefault((role, kinds), []).append(tensors)

    for layer in weights.layers:
        add('qkv', layer.attn_q, layer.attn_k, layer.attn_v)
        add('attn_output', layer.attn_output)
        add('gate_up', layer.ffn_gate, layer.ffn_up)
        add('ffn_down', layer.ffn_down)
    add('output', weights.output)

    def vector(size: int, dtype: Any) -> Any:
        values = np.random.default_rng(size).standard_normal((1, size))
        return device.upload(values.astype(dtype))

    def measure(role: str, kinds: str, members: list[tuple[DeviceTensor, ...]]) -> Kernel:
        first = members[0]
        x = vector(first[0].columns, np.float16)
        outputs = tuple(
            vector(tensor.rows, np.float32 if role in ADDING else np.float16)
            for tensor in first)
        launch = _launcher(matvec, role, outputs, x, vector(first[0].rows, np.float16))

        def all_layers() -> None:
            for tensors in members:
                launch(tensors)

        all_layers()
        replay = device.capture(all_layers)
        replay()
        seconds = median(device.elapsed(replay) for _ in range(REPEATS)) / len(members)
        size = sum(tensor.data.nbytes for tensors in members for tensor in tensors) / len(members)
        return Kernel(
            f'gemv {kinds}', role, seconds * 1e6, size / seconds / 1e9,
            size / seconds / copy_bytes_per_s, len(members))

    return tuple(measure(*key, members) for key, members in groups.items())


def _launcher(
    matvec: Matvec, role: str, outputs: tuple[Any, ...], x: Any, spare: Any
) -> Callable[[tuple[DeviceTensor, ...]], None]:
    """Return what runs the product of a role as a decode step does."""
    if role == 'qkv':
        q, k, v = outputs
        return lambda tensors: matvec.triple((q, k, v), x, (tensors[0], tensors[1], tensors[2]))
    if role == 'gate_up':
        gate, up = outputs
        return lambda tensors: matvec.pair((gate, up), x, (tensors[0], tensors[1]))
    if role == 'output':
        return lambda tensors: matvec.logits(outputs[0], x, tensors[0], spare)
    return lambda tensors: matvec.add(outputs[0], x, tensors[0], spare)
