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
The node's parameters: one table from which descriptors, defaults and checks follow.

A new parameter is a new row; one that names a field of :class:`EngineConfig` reaches the
engine with no further code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
import os
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from reflex_llm_ros.engine.config import (
    EngineConfig,
    environment_variable,
    FastPaths,
    SamplingParams,
)
from reflex_llm_ros.protocol import Defaults
from reflex_llm_ros.request_queue import QueueLimits
from reflex_llm_ros.validation import (
    boolean,
    choice,
    FLOAT_RANGES,
    integer,
    INTEGER_RANGES,
    number,
    Refused,
    stop_strings,
    string,
)

DRAW_A_SEED = -1
FAST_PATHS = 'fast_paths.'
THINKING = {'auto': None, 'on': True, 'off': False}


@dataclass(frozen=True)
class Settings:
    """All parameters in the form in which they are used."""

    engine: EngineConfig
    defaults: Defaults
    queue: QueueLimits
    diagnostics_period_s: float


@dataclass(frozen=True)
class Row:
    """
    One parameter; its type is that of ``default``.

    ``live`` ones change at run time and apply to the next request, the others only while
    the node is unconfigured. ``engine`` names the field of :class:`EngineConfig`. In a
    ``path``, ``~`` is the home directory.
    """

    name: str
    default: bool | int | float | str | list[str]
    description: str
    limits: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    live: bool = False
    engine: str = ''
    path: bool = False

    def check(self, value: Any) -> Any:
        """Return the value as the engine takes it; raises Refused."""
        if isinstance(self.default, bool):
            return boolean(value)
        if isinstance(self.default, list):
            # ROS has no type for an empty list: [] in a parameter file arrives as None.
            value = () if value is None else value
            return stop_strings(list(value) if isinstance(value, Sequence) else value)
        if self.choices:
            return choice(value, self.choices)
        if self.path:
            # A shell would put the home directory in; nobody does so in a parameter file.
            return os.path.expanduser(string(value))
        if isinstance(self.default, str):
            return string(value)
        assert self.limits is not None, f'{self.name} is a number and needs a range'
        low, high = self.limits
        if isinstance(self.default, int):
            return integer(value, int(low), int(high))
        return number(value, low, high)


_ENGINE = EngineConfig(model_path='')
_SAMPLING = SamplingParams()

TABLE = (
    Row('model.path', '', 'Path of the GGUF file.', engine='model_path', path=True),
    Row('model.chat_template_file', '',
        "Jinja file to use in place of the template in the GGUF; empty for the file's own.",
        engine='chat_template_file', path=True),
    Row('engine.backend', _ENGINE.backend,
        'Where the model runs; auto takes the GPU when there is one.',
        choices=('auto', 'cuda', 'cpu'), engine='backend'),
    Row('engine.device', _ENGINE.device, 'Number of the CUDA device.',
        limits=(0, 63), engine='device'),
    Row('model.weights', _ENGINE.weights,
        'Where the GPU reads weights: mapped from the file, a copy in device memory, a copy '
        'packed for the fast decode kernel, one with Q8_0 in planes, or auto: packed where that '
        'kernel can run the model, mapped where no copy fits.',
        choices=('auto', 'packed', 'planes', 'device', 'mapped'), engine='weights'),
    Row('q8.activations', _ENGINE.q8_activations,
        'Activations of a model that is all Q8_0, on the GPU: one int8 word, two, or fp32; '
        'two words are about as exact as fp32 and faster.',
        choices=('a8', 'a8x2', 'f32'), engine='q8_activations'),
    Row('gemv.activations', _ENGINE.gemv_activations,
        'Activations of a decode step of a K-quant model, on the GPU: one int8 word, two, or '
        'fp16; where the weights are not packed, it is fp16.',
        choices=('a8', 'a8x2', 'fp16'), engine='gemv_activations'),
    Row('q8.variant', _ENGINE.q8_variant,
        'Kernels of a Q8_0 model in planes, with equal results: auto measures which is fastest; '
        'u1, u2 and u4 load so many steps ahead, r2 has two rows a warp.',
        choices=('auto', 'u1', 'u2', 'u4', 'r2'), engine='q8_variant'),
    Row('debug.probe', _ENGINE.debug_probe,
        'When a model has been loaded on the GPU, log norm and first values after each layer '
        'beside those of the reference implementation, and the first layer that departs.',
        engine='debug_probe'),
    *(Row(FAST_PATHS + switch.name, getattr(_ENGINE.fast_paths, switch.name),
          'Run this operation on its kernels; off for finding out where a wrong token comes '
          f'from. {environment_variable(switch.name)}=0 in the environment turns it off too.')
      for switch in fields(FastPaths)),
    Row('context.length', _ENGINE.context_length,
        "Positions that the KV cache holds; 0 for as many as fit, at most the model's.",
        limits=(0, 1_048_576), engine='context_length'),
    Row('context.kv_cache', _ENGINE.kv_cache, 'Type of the KV cache.',
        choices=('f16', 'int8'), engine='kv_cache'),
    Row('context.memory_limit_mb', _ENGINE.memory_limit_mb,
        'Upper bound in MiB for weights, cache and scratch together; 0 for free memory.',
        limits=(0, 1_048_576), engine='memory_limit_mb'),
    Row('prefill.chunk', _ENGINE.prefill_chunk,
        'Prompt tokens computed at once; a cancel is heard between chunks.',
        limits=(1, 4096), engine='prefill_chunk'),
    Row('sampling.temperature', _SAMPLING.temperature,
        '0 takes the likeliest token; a higher value is more varied.',
        limits=FLOAT_RANGES['temperature'], live=True),
    Row('sampling.top_k', _SAMPLING.top_k, 'Keep the k likeliest tokens; 0 keeps all.',
        limits=INTEGER_RANGES['top_k'], live=True),
    Row('sampling.top_p', _SAMPLING.top_p,
        'Keep the smallest set of tokens whose probability reaches p; 1 keeps all.',
        limits=FLOAT_RANGES['top_p'], live=True),
    Row('sampling.min_p', _SAMPLING.min_p,
        'Drop tokens less likely than min_p times the likeliest; 0 keeps all.',
        limits=FLOAT_RANGES['min_p'], live=True),
    Row('sampling.repeat_penalty', _SAMPLING.repeat_penalty,
        'Make the last 64 tokens less likely to come again; 1 is off.',
        limits=FLOAT_RANGES['repeat_penalty'], live=True),
    Row('sampling.seed', DRAW_A_SEED, 'Same seed, same text; -1 draws a fresh one.',
        limits=INTEGER_RANGES['seed'], live=True),
    Row('sampling.max_tokens', _SAMPLING.max_tokens,
        'Upper bound on generated tokens; 0 for as many as the context holds.',
        limits=INTEGER_RANGES['max_tokens'], live=True),
    Row('prompt.system', '',
        "System prompt of requests that bring none; empty for the chat template's default.",
        live=True),
    Row('prompt.thinking', 'auto',
        'Ask the model to reason first, or not to; auto leaves it to the chat template.',
        choices=tuple(THINKING), live=True),
    Row('prompt.history_turns', 0,
        'Remembered user turns that go into a prompt at most; 0 for as many as fit.',
        limits=(0, 10_000), live=True),
    Row('prompt.stop', [], 'The answer ends before the first of these strings.', live=True),
    Row('queue.size', 8, 'Requests that may wait behind the running one.',
        limits=(1, 1000), live=True),
    Row('queue.when_full', 'reject',
        'Refuse a new request when the queue is full, or drop the one that waits longest.',
        choices=('reject', 'drop_oldest'), live=True),
    Row('diagnostics.period_s', 1.0, 'Seconds between messages on /diagnostics.',
        limits=(0.1, 60.0)),
)
ROWS = {row.name: row for row in TABLE}


def descriptor(row: Row) -> ParameterDescriptor:
    """Describe a parameter to ``ros2 param describe`` and its like."""
    constraints = []
    if row.choices:
        constraints.append(f'One of {", ".join(row.choices)}.')
    if not row.live:
        constraints.append('Changes only while the node is unconfigured.')
    result = ParameterDescriptor(
        name=row.name,
        description=row.description,
        additional_constraints=' '.join(constraints),
        # A whole number is a fine temperature, and an empty list has no type of its own.
        # The check below sees to the types that make sense.
        dynamic_typing=isinstance(row.default, (float, list)),
    )
    if row.limits is not None:
        low, high = row.limits
        if isinstance(row.default, int):
            result.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]
        else:
            result.floating_point_range = [
                FloatingPointRange(from_value=low, to_value=high, step=0.0)]
    return result


def reason_against(
    proposed: Mapping[str, Any], current: Mapping[str, Any], unconfigured: bool
) -> str:
    """
    Say why these values cannot be set; empty when they can.

    Names that are not in the table belong to others and pass. Setting a parameter to the
    value it has is always allowed, so that a whole parameter file can be loaded at any time.
    """
    for name, value in proposed.items():
        row = ROWS.get(name)
        if row is None:
            continue
        try:
            row.check(value)
        except Refused as refused:
            return f'{name} {refused}'
        if not row.live and not unconfigured and name in current and value != current[name]:
            return (f'{name} is fixed while a model is loaded: '
                    'deactivate and clean up the node, set it, configure again')
    return ''


def settings(values: Mapping[str, Any]) -> Settings:
    """Build the configuration from the values of all parameters in the table."""
    checked = {row.name: row.check(values[row.name]) for row in TABLE}
    sampling = _group(checked, 'sampling.')
    if sampling['seed'] == DRAW_A_SEED:
        sampling['seed'] = None
    return Settings(
        engine=EngineConfig(
            fast_paths=FastPaths(**_group(checked, FAST_PATHS)),
            **{row.engine: checked[row.name] for row in TABLE if row.engine}),
        defaults=Defaults(
            sampling=SamplingParams(**sampling),
            system=checked['prompt.system'],
            thinking=THINKING[checked['prompt.thinking']],
            history_turns=checked['prompt.history_turns'],
            stop=checked['prompt.stop'],
        ),
        queue=QueueLimits(
            checked['queue.size'], checked['queue.when_full'] == 'drop_oldest'),
        diagnostics_period_s=checked['diagnostics.period_s'],
    )


def _group(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name[len(prefix):]: value for name, value in values.items() if name.startswith(prefix)}
