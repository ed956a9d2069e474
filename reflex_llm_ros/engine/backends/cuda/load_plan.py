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

"""Where a model's weights go and what memory that takes, decided before any is allocated."""

from collections.abc import Sequence
from dataclasses import dataclass
import logging
from typing import Any

from gguf import GGMLQuantizationType
from reflex_llm_ros.engine.backends.cuda.buffers import ATTENTION_CHUNK, buffer_bytes
from reflex_llm_ros.engine.backends.cuda.persistent import refusal, WORDS, work_bytes
from reflex_llm_ros.engine.backends.cuda.q8_activations import KINDS, q8_buffer_bytes
from reflex_llm_ros.engine.backends.cuda.q8_choice import Choice
from reflex_llm_ros.engine.backends.cuda.q8_weights import split_names
from reflex_llm_ros.engine.backends.cuda.sampling import sampling_bytes
from reflex_llm_ros.engine.backends.cuda.staging import piece_bytes, SLOTS
from reflex_llm_ros.engine.backends.cuda.weights import (
    is_read_as_stored,
    kernel_type,
    memory_bytes,
)
from reflex_llm_ros.engine.config import EngineConfig, FastPaths
from reflex_llm_ros.engine.errors import EngineError, OutOfMemoryError
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.memory import kv_bytes_per_position, plan

PACKED, PLANES, DEVICE, MAPPED = 'packed', 'planes', 'device', 'mapped'

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadPlan:
    """
    What a backend will hold, in bytes by purpose, for ``context_length`` positions.

    ``placement`` is PACKED for the persistent kernel, PLANES for the kernels of table B, or the
    file's blocks: DEVICE for a copy, MAPPED for the file's pages. ``q8`` says that Q8_0 matrices
    meet quantized activations, ``types`` names the kernel types of matrices that are not planes,
    ``activations`` what the persistent kernel takes.
    """

    placement: str
    q8: bool
    types: tuple[str, ...]
    activations: str
    context_length: int
    weights: int
    cache: int
    scratch: int


def make_plan(
    device: Any, model: GgufModel, config: EngineConfig, fast: FastPaths
) -> LoadPlan:
    """
    Choose the first placement that the configuration allows, the device can run and that fits.

    Raises
    ------
    EngineError
        ``config.weights`` asks for what this device or model cannot have.
    OutOfMemoryError
        The model does not fit.

    """
    placements = _placements(device, model, config, fast)
    for placement in placements[:-1]:
        try:
            return _fit(device, model, config, placement)
        except OutOfMemoryError:
            continue
    return _fit(device, model, config, placements[-1])


def all_q8(model: GgufModel) -> bool:
    """Say whether a model's matrices are all Q8_0."""
    return _matrix_types(model) == {GGMLQuantizationType.Q8_0}


def decode_activations(model: GgufModel, config: EngineConfig) -> str:
    """
    Return the activations that parameters ask for; empty where they ask for two kinds at once.

    Q8_0 matrices follow ``q8_activations``, all others ``gemv_activations``.
    """
    wanted = {
        config.q8_activations if kind == GGMLQuantizationType.Q8_0 else config.gemv_activations
        for kind in _matrix_types(model)}
    return wanted.pop() if len(wanted) == 1 else ''


def _matrix_types(model: GgufModel) -> set[GGMLQuantizationType]:
    return {tensor.type for tensor in model.tensors.values() if len(tensor.shape) == 2}


def _placements(
    device: Any, model: GgufModel, config: EngineConfig, fast: FastPaths
) -> Sequence[str]:
    can_map = device.can_map_host_memory()
    if config.weights == MAPPED:
        if not can_map:
            raise EngineError(
                f'{device.info.name} cannot read a mapped file; '
                'set model.weights to auto or device')
        return (MAPPED,)
    if config.weights == DEVICE:
        return (DEVICE,)
    if config.weights == PLANES:
        if not split_names(model):
            raise EngineError('no matrix can be in planes; set model.weights to auto')
        return (PLANES,)
    reason = _no_packed(device, model, config, fast)
    if config.weights == PACKED:
        if reason:
            raise EngineError(f'weights cannot be packed: {reason}; set model.weights to auto')
        return (PACKED,)
    if reason:
        log.info('no persistent decode kernel: %s', reason)
    copied = PACKED if not reason else PLANES if split_names(model) else DEVICE
    return (copied, MAPPED) if can_map else (copied,)


def _no_packed(
    device: Any, model: GgufModel, config: EngineConfig, fast: FastPaths
) -> str:
    """Say in a phrase why weights are not packed; empty where they are."""
    activations = decode_activations(model, config)
    if not activations:
        return (f'the file mixes Q8_0 with other types, and q8.activations '
                f'({config.q8_activations}) is not gemv.activations ({config.gemv_activations})')
    if activations not in WORDS:
        return f'activations are {activations}'
    if not all((fast.gemv, fast.embd, fast.norm, fast.attn, fast.cuda_graph)):
        return 'a fast path is off'
    return refusal(device.info, model)


def _fit(device: Any, model: GgufModel, config: EngineConfig, placement: str) -> LoadPlan:
    """Plan one placement; raises OutOfMemoryError where it does not fit."""
    sizes, multiprocessors = model.config, device.info.multiprocessors
    weights = memory_bytes(model, placement == MAPPED)
    if placement == MAPPED and device.info.integrated:
        # Where CPU and GPU share memory, a registered map is pinned in that memory.
        weights += sum(
            tensor.data.nbytes for tensor in model.tensors.values() if is_read_as_stored(tensor))
    scratch = sampling_bytes(sizes.vocab_size) + (SLOTS + 1) * piece_bytes(model)
    q8 = placement == PLANES or placement == PACKED and all_q8(model)
    if q8:
        choice = Choice(KINDS[config.q8_activations], multiprocessors)
        scratch += q8_buffer_bytes(sizes, choice.kind, choice.partial_rows(sizes))
    if placement == PACKED:
        scratch += work_bytes(sizes, multiprocessors)

    def buffers(positions: int) -> int:
        return buffer_bytes(sizes, positions)

    position_bytes = kv_bytes_per_position(sizes, config.kv_cache)
    # Scratch comes by whole chunks: one more than the context is long covers the last.
    chunk = buffers(ATTENTION_CHUNK) - buffers(0)
    context_length = plan(
        sizes, weights=weights, position_bytes=position_bytes - (-chunk // ATTENTION_CHUNK),
        scratch=scratch + buffers(ATTENTION_CHUNK), free=device.free_bytes(),
        context_length=config.context_length, limit_mb=config.memory_limit_mb)
    split = split_names(model) if placement == PLANES else set()
    types = {
        kernel_type(tensor) for name, tensor in model.tensors.items()
        if len(tensor.shape) == 2 and name not in split}
    return LoadPlan(
        placement, q8, tuple(sorted(types)),
        decode_activations(model, config) if placement == PACKED else '',
        context_length, weights, context_length * position_bytes,
        scratch + buffers(context_length))
