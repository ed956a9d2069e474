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
What a decode step would take on a Jetson Orin, stage by stage, from bytes and instructions.

Nothing here was measured on an Orin: the assumptions go with the numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reflex_llm_ros.bench.result import Projection, Stage, StepCost
from reflex_llm_ros.engine.backends.cuda.packed import STEP_BYTES
from reflex_llm_ros.engine.backends.cuda.weights import MATRIX_TYPES
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.memory import kv_bytes_per_position

CLOCK_HZ = 1.02e9
SCHEDULERS = 4
WAIT_US = 2.0
"""A stage waits for all blocks of the one before: 1 µs on an H200, by its clock."""
LAUNCH_US = 10.0
STAGES = {
    'query, key, value': ('attn_q', 'attn_k', 'attn_v'), 'attention output': ('attn_output',),
    'gate, up': ('ffn_gate', 'ffn_up'), 'down': ('ffn_down',)}
ATTENTION_WAITS = 2


@dataclass(frozen=True)
class Orin:
    """A module: multiprocessors of compute capability 8.7, and its memory's bytes a second."""

    name: str
    multiprocessors: int
    bandwidth: float


ORINS = (Orin('Orin Nano 8 GB', 8, 102e9), Orin('AGX Orin', 16, 204.8e9))


def project(
    model: GgufModel, costs: Sequence[StepCost], words: int, position: int, orin: Orin
) -> Projection | None:
    """
    Return a decode step of a model; None where it has matrices whose loop was not counted.

    A warp's step takes as many cycles of its scheduler as it has instructions, or twice those of
    integers, whose lanes are half as many, if that is more.
    """
    by_kind = {cost.kernel_type: cost for cost in costs if cost.words == words}
    config = model.config
    groups = {name: [f'blk.{layer}.{part}.weight' for layer in range(config.block_count)
                     for part in parts] for name, parts in STAGES.items()}
    groups['head'] = ['token_embd.weight' if config.tied_output else 'output.weight']
    per_second = orin.multiprocessors * SCHEDULERS * CLOCK_HZ
    stages = []
    for name, tensors in groups.items():
        size, cycles = 0, 0.0
        for tensor in tensors:
            kind = MATRIX_TYPES.get(model.tensors[tensor].type, '')
            if kind not in by_kind:
                return None
            cost, data = by_kind[kind], model.tensors[tensor].data.nbytes
            size += data
            cycles += data / STEP_BYTES[kind] * max(cost.instructions, 2 * cost.integer)
        waits = 1 if name == 'head' else config.block_count
        stages.append(Stage(
            name, size, size / orin.bandwidth * 1e6, cycles / per_second * 1e6,
            waits * WAIT_US + (LAUNCH_US if name == 'head' else 0)))
    cache = position * kv_bytes_per_position(config, 'f16')
    stages.insert(1, Stage(
        f'attention at {position}', cache, cache / orin.bandwidth * 1e6, 0.0,
        ATTENTION_WAITS * config.block_count * WAIT_US))
    return Projection(
        orin.name,
        f'{orin.multiprocessors} multiprocessors of {SCHEDULERS} schedulers at '
        f'{CLOCK_HZ / 1e9:.2f} GHz, {orin.bandwidth / 1e9:g} GB/s all of which is reached; '
        f'{WAIT_US:g} us a wait between stages, {LAUNCH_US:g} us a launch; attention by its bytes '
        'alone; integers at half rate', tuple(stages))
