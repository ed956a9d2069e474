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

"""The parameter table: descriptors, checks and the configuration made of it."""

from typing import Any

import pytest
from reflex_llm_ros.engine.config import EngineConfig, SamplingParams
from reflex_llm_ros.parameters import (
    descriptor,
    QueueLimits,
    reason_against,
    ROWS,
    settings,
    TABLE,
)
from reflex_llm_ros.protocol import Defaults
from reflex_llm_ros.validation import FLOAT_RANGES, INTEGER_RANGES

DEFAULTS = {row.name: row.default for row in TABLE}


def test_a_switch_names_its_environment_variable():
    assert 'JLLM_FAST_GEMV=0' in descriptor(ROWS['fast_paths.gemv']).description
    loads = descriptor(ROWS['fast_paths.q4k_uint32_loads']).description
    assert 'JLLM_Q4K_UINT32_LOADS=0' in loads


def test_the_defaults_make_the_default_configuration() -> None:
    now = settings(DEFAULTS)
    assert now.engine == EngineConfig(model_path='')
    assert now.defaults == Defaults(sampling=SamplingParams())
    assert now.queue == QueueLimits(size=8, drop_oldest=False)
    assert now.diagnostics_period_s == 1.0


def test_every_value_reaches_its_place() -> None:
    now = settings({**DEFAULTS, **{
        'model.path': 'm.gguf', 'model.chat_template_file': 't.jinja', 'engine.backend': 'cpu',
        'context.length': 512, 'context.kv_cache': 'int8', 'context.memory_limit_mb': 100,
        'prefill.chunk': 16,
        'sampling.temperature': 1, 'sampling.top_k': 2, 'sampling.top_p': 0.3,
        'sampling.min_p': 0.4, 'sampling.repeat_penalty': 1.5, 'sampling.seed': 6,
        'sampling.max_tokens': 7,
        'prompt.system': 's', 'prompt.thinking': 'off', 'prompt.history_turns': 3,
        'prompt.stop': ['x', 'y'],
        'queue.size': 2, 'queue.when_full': 'drop_oldest', 'diagnostics.period_s': 5,
    }})
    for name, value in {
            'model_path': 'm.gguf', 'chat_template_file': 't.jinja', 'backend': 'cpu',
            'context_length': 512, 'kv_cache': 'int8', 'memory_limit_mb': 100,
            'prefill_chunk': 16}.items():
        assert getattr(now.engine, name) == value
    assert now.defaults == Defaults(
        SamplingParams(1.0, 2, 0.3, 0.4, 1.5, 6, 7), 's', False, 3, ('x', 'y'))
    assert now.queue == QueueLimits(2, True)
    assert now.diagnostics_period_s == 5.0


def test_the_home_directory_may_be_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('HOME', '/home/robot')
    now = settings({
        **DEFAULTS, 'model.path': '~/m.gguf', 'model.chat_template_file': '/a/~/t.jinja'})
    assert now.engine.model_path == '/home/robot/m.gguf'
    assert now.engine.chat_template_file == '/a/~/t.jinja'


def test_an_empty_list_out_of_a_parameter_file_is_one() -> None:
    assert reason_against({'prompt.stop': None}, DEFAULTS, unconfigured=True) == ''
    assert settings({**DEFAULTS, 'prompt.stop': None}).defaults.stop == ()


@pytest.mark.parametrize('setting, thinking', [('auto', None), ('on', True), ('off', False)])
def test_thinking(setting: str, thinking: bool | None) -> None:
    assert settings({**DEFAULTS, 'prompt.thinking': setting}).defaults.thinking is thinking


@pytest.mark.parametrize('name, value, why', [
    ('sampling.temperature', -0.1, 'sampling.temperature must be from 0 to 5, not -0.1'),
    ('sampling.temperature', 'hot', 'must be a number'),
    ('sampling.temperature', None, 'must be a number, not None'),
    ('sampling.top_k', 2.0, 'must be an integer'),
    ('sampling.seed', -2, 'from -1'),
    ('context.length', -1, 'from 0'),
    ('context.kv_cache', 'fp4', 'must be one of f16, int8, not fp4'),
    ('prompt.thinking', True, 'must be one of auto, on, off'),
    ('prompt.stop', [''], '1 to 256'),
    ('prompt.stop', [b'x'], 'must be a string'),
    ('prompt.stop', 7, 'must be a list'),
    ('queue.size', 0, 'from 1 to 1000'),
    ('diagnostics.period_s', 0.0, 'from 0.1 to 60'),
    ('model.path', 3, 'must be a string'),
])
def test_a_bad_value_is_refused_with_its_name_and_the_reason(
    name: str, value: Any, why: str
) -> None:
    reason = reason_against({name: value}, DEFAULTS, unconfigured=True)
    assert reason.startswith(name)
    assert why in reason


def test_one_bad_value_among_good_ones_is_found() -> None:
    proposed = {'sampling.top_k': 3, 'queue.size': -1, 'use_sim_time': True}
    assert reason_against(proposed, DEFAULTS, unconfigured=True).startswith('queue.size')


LIVE = {'sampling', 'prompt', 'queue'}


@pytest.mark.parametrize('row', TABLE, ids=lambda row: row.name)
def test_what_may_change_while_a_model_is_loaded(row: Any) -> None:
    other: Any = {
        bool: not row.default, int: 5, float: 0.5, str: 'other', list: ['x']}[type(row.default)]
    if row.choices:
        other = row.choices[-1] if row.default != row.choices[-1] else row.choices[0]
    assert reason_against({row.name: other}, DEFAULTS, unconfigured=True) == ''
    reason = reason_against({row.name: other}, DEFAULTS, unconfigured=False)
    if row.name.split('.')[0] in LIVE:
        assert reason == ''
    else:
        assert 'fixed while a model is loaded' in reason
        assert reason_against({row.name: row.default}, DEFAULTS, unconfigured=False) == ''


@pytest.mark.parametrize('row', TABLE, ids=lambda row: row.name)
def test_every_parameter_is_described_and_every_number_has_a_range(row: Any) -> None:
    described = descriptor(row)
    assert described.name == row.name
    assert described.description.endswith('.')
    assert not described.read_only
    if isinstance(row.default, bool) or not isinstance(row.default, (int, float)):
        assert not described.integer_range
        assert not described.floating_point_range
    elif isinstance(row.default, int):
        (limits,) = described.integer_range
        assert limits.from_value <= row.default <= limits.to_value
    else:
        (limits,) = described.floating_point_range
        assert limits.from_value <= row.default <= limits.to_value
    for word in row.choices:
        assert word in described.additional_constraints


def test_parameters_and_requests_share_their_ranges() -> None:
    for key, limits in {**FLOAT_RANGES, **INTEGER_RANGES}.items():
        if key != 'priority':
            assert ROWS[f'sampling.{key}'].limits == limits
