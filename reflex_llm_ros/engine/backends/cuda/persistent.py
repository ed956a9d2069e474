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

"""The decode step as one persistent kernel (kernels/decode.cu) over packed weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import math
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.buffers import Buffers, LayerCache
from reflex_llm_ros.engine.backends.cuda.decode import DecodeStep, RING_LENGTH
from reflex_llm_ros.engine.backends.cuda.device_info import DeviceInfo
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher
from reflex_llm_ros.engine.backends.cuda.packed import (
    cannot_pack,
    FORMATS,
    PackedTensor,
    STEP_BYTES,
)
from reflex_llm_ros.engine.backends.cuda.sources import Defines
from reflex_llm_ros.engine.backends.cuda.steps import turns
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.errors import DeviceError
from reflex_llm_ros.engine.gguf_model import GgufModel, ModelConfig
from reflex_llm_ros.engine.models.dense import DenseLayer, DenseWeights

DECODE = 'decode'
THREADS = 384
HEAD_DIM = 128
MOST_SHARED_HEADS = 8
MOST_PARTS = 64
WORDS = {'a8': 1, 'a8x2': 2}
CACHES = {'f16': 'HalfKv', 'int8': 'Int8Kv'}
"""What the kernel calls the cache of a type."""

STAGE = np.dtype([('weights', np.uint64), ('format', np.int32), ('step_bytes', np.int32)])
SMALLEST_SHARED_BYTES = 128 << 10
"""A block with less holds no ring that hides the memory's latency."""

WORK_FIELDS = (
    'attended', 'x', 'qkv', 'heads', 'hidden', 'parts', 'weights', 'best', 'arrived')

CLOCKED = ('query, key, value', 'attention', 'attention output', 'gate, up', 'down', 'head')
PHASES = ('wait', 'quantize', 'multiply', 'finish')
"""What cycles are counted by, see kernels/decode_clocks.cuh."""


def refusal(info: DeviceInfo, model: GgufModel) -> str:
    """Say in a phrase why the persistent kernel cannot run a model; empty where it can."""
    config = model.config
    if info.shared_bytes < SMALLEST_SHARED_BYTES:
        return f'a block has only {info.shared_bytes >> 10} KiB of shared memory'
    if not config.qk_norm or config.rope.pairing != 'half':
        return 'it is no Qwen3'
    if config.head_dim != HEAD_DIM:
        return f'its heads have {config.head_dim} elements, not {HEAD_DIM}'
    if config.head_count > MOST_SHARED_HEADS * config.head_count_kv:
        return f'more than {MOST_SHARED_HEADS} query heads share keys'
    return cannot_pack(model)


def work_bytes(config: ModelConfig, multiprocessors: int) -> int:
    """Bytes of the buffers that blocks pass results through."""
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in
               _work_shapes(config, multiprocessors))


def defines(
    config: ModelConfig, types: Sequence[str], activations: str, kv_cache: str, info: DeviceInfo
) -> dict[str, int | str]:
    """Return what kernels/decode.cu is compiled for; stages number the types in this order."""
    return {
        'DECODE_LAYERS': config.block_count,
        'DECODE_EMBEDDING': config.embedding_length,
        'DECODE_FEED_FORWARD': config.feed_forward_length,
        'DECODE_HEADS': config.head_count,
        'DECODE_GROUPS': config.head_count_kv,
        'DECODE_VOCAB': config.vocab_size,
        'DECODE_WORDS': WORDS[activations],
        'DECODE_SHARED_BYTES': info.shared_bytes,
        'DECODE_BLOCKS': info.multiprocessors,
        'DECODE_PARTS': most_parts(config.head_count_kv, info.multiprocessors),
        'DECODE_FORMATS': ', '.join(FORMATS[kind] for kind in types),
        'DECODE_KV': CACHES[kv_cache],
    }


class PersistentDecode:
    """
    One token a launch, on the device alone; to callers the same as ``decode.DecodeStep``.

    All matrices are packed, of ``types``; the kernel has been loaded with ``macros``, which
    ``defines`` made of these. Where a launch fails, ``simpler`` takes over.
    """

    def __init__(
        self, device: Any, config: ModelConfig, weights: DenseWeights[DeviceTensor],
        buffers: Buffers, cache: list[LayerCache], types: Sequence[str], macros: Defines,
        simpler: DecodeStep, dispatcher: Dispatcher
    ) -> None:
        self._device = device
        self._simpler = simpler
        self._dispatcher = dispatcher
        self._taken_over: int | None = None
        self._blocks = device.info.multiprocessors
        matrices = _matrices(weights)
        self._macros = macros
        self.shared_bytes = self._needed_bytes()
        work = {name: device.upload(np.zeros(shape, dtype)) for name, shape, dtype in
                _work_shapes(config, self._blocks)}
        stages = device.upload(np.array(
            [_stage(matrix, types) for matrix in matrices], STAGE).view(np.uint8))
        table = device.upload(np.array(
            [_stage(weights.token_embd, types)], STAGE).view(np.uint8))
        layers = device.upload(np.array([
            _layer(layer, layer_cache) for layer, layer_cache in
            zip(weights.layers, cache, strict=True)], np.uint64).view(np.uint8))
        places = device.upload(np.array([_address(work[name]) for name in WORK_FIELDS], np.uint64))
        count = device.upload(np.zeros(1, np.uint32))
        self._ring, device_ring = device.host_ring(RING_LENGTH)
        scale = config.rope.magnitude ** 2 / math.sqrt(config.head_dim)
        self._arguments: tuple[Any, ...] = (
            buffers.tokens, buffers.positions, count, device_ring, buffers.logits, stages, layers,
            device.upload(turns(config.rope.frequencies)), weights.output_norm.data, table, places,
            np.int32(RING_LENGTH), np.float32(config.rms_eps), np.float32(scale))
        self._held = (weights, work)
        self._launched = 0
        self._numbers = [0] * RING_LENGTH

    def launch(self) -> int:
        """Launch a step and return its number, for ``chosen``."""
        if self._taken_over is None:
            try:
                self._device.launch_together(
                    self._device.function(DECODE, 'decode_step'), self._blocks, THREADS,
                    self._arguments, self.shared_bytes)
            except DeviceError as error:
                self._dispatcher.give_up('decode', 'persistent kernel', error)
                self._taken_over = self._launched
        if self._taken_over is not None:
            self._numbers[self._launched % RING_LENGTH] = self._simpler.launch()
        self._launched += 1
        return self._launched - 1

    def chosen(self, number: int) -> int:
        """Return the likeliest token of a step that has ended; see ``DecodeStep.chosen``."""
        if self._taken_over is not None and number >= self._taken_over:
            return self._simpler.chosen(self._numbers[number % RING_LENGTH])
        return int(self._ring[number % RING_LENGTH])

    @contextmanager
    def clocked(self) -> Iterator[Any]:
        """
        Put a kernel that counts cycles in place of the other, for steps of the same results.

        Yields a device array (blocks, len(CLOCKED) * len(PHASES) + 1) uint64 to which each step
        adds what each block's first thread saw: cycles by part and phase, then the nanoseconds
        that all of them took.
        """
        arguments = self._arguments
        counts = self._device.upload(
            np.zeros((self._blocks, len(CLOCKED) * len(PHASES) + 1), np.uint64))
        try:
            self._load({**self._macros, 'DECODE_CLOCKS': 1})
            self._arguments = (*arguments, counts)
            yield counts
        finally:
            self._arguments = arguments
            self._load(self._macros)

    def _load(self, macros: Defines) -> None:
        self._device.load({DECODE: macros})
        self.shared_bytes = self._needed_bytes()

    def _needed_bytes(self) -> int:
        """Ask for the shared memory of a block: it depends on the compiler's layout."""
        size = self._device.upload(np.zeros(1, np.int32))
        self._device.launch(
            self._device.function(DECODE, 'decode_shared_bytes'), (1,), 1, (size,))
        return int(self._device.download(size)[0])


def _matrices(weights: DenseWeights[DeviceTensor]) -> list[DeviceTensor]:
    """Return the first matrix of each that the kernel multiplies with, in its order."""
    return [matrix for layer in weights.layers for matrix in (
        layer.attn_q, layer.attn_v, layer.attn_output, layer.ffn_gate, layer.ffn_down)
    ] + [weights.output]


def _stage(matrix: DeviceTensor, types: Sequence[str]) -> tuple[int, ...]:
    assert isinstance(matrix, PackedTensor), matrix.host.name
    return (_address(matrix.data), types.index(matrix.kernel_type), STEP_BYTES[matrix.kernel_type])


def _layer(layer: DenseLayer[DeviceTensor], cache: LayerCache) -> tuple[int, ...]:
    assert layer.attn_q_norm is not None and layer.attn_k_norm is not None
    norms = (layer.attn_norm, layer.attn_q_norm, layer.attn_k_norm, layer.ffn_norm)
    rows = [cache.keys, cache.values]
    if cache.key_scales is not None:
        rows += [cache.key_scales, cache.value_scales]
    return tuple(_address(array) for array in (*(norm.data for norm in norms), *rows))


def _work_shapes(
    config: ModelConfig, blocks: int
) -> list[tuple[str, tuple[int, ...], type[np.generic]]]:
    """Names, shapes and types of the kernel's buffers, see ``Work`` in kernels/decode.cu."""
    query, key = config.head_count * HEAD_DIM, config.head_count_kv * HEAD_DIM
    parts = most_parts(config.head_count_kv, blocks)
    return [
        ('attended', (config.embedding_length // 2,), np.uint64),
        ('x', (config.embedding_length // 2,), np.uint64),
        ('qkv', (query + 2 * key,), np.uint64),
        ('heads', (query // 2,), np.uint64),
        ('hidden', (config.feed_forward_length // 2,), np.uint64),
        ('parts', (parts, query), np.uint64),
        ('weights', (parts, config.head_count, 2), np.uint64),
        ('best', (blocks, 2), np.float32),
        ('arrived', (1,), np.uint32),
    ]


def most_parts(groups: int, blocks: int) -> int:
    """Most parts of the cache that attention is split into, a block each."""
    return min(max(1, blocks // groups), MOST_PARTS)


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
