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

"""When diagnostics warn, and about what."""

from diagnostic_msgs.msg import DiagnosticStatus
import pytest
from reflex_llm_ros.diagnostics import diagnostic_status
from reflex_llm_ros.engine.engine import EngineInfo
from reflex_llm_ros.protocol import Status
from reflex_llm_ros.worker import Snapshot

INFO = EngineInfo('Model', 'qwen3', 512, 'cuda', 0)


@pytest.mark.parametrize('status, now, level, message', [
    (Status('ready'), Snapshot(info=INFO, dropped=3), DiagnosticStatus.OK, 'ready'),
    (Status('ready'), Snapshot(info=INFO, dropped=5), DiagnosticStatus.WARN,
     '2 requests turned away'),
    (Status('busy'), Snapshot(info=INFO, dropped=3, counters={'fallback gemv': 2, 'steps': 9}),
     DiagnosticStatus.WARN, 'slower than it should be; fallback gemv: 2'),
    (Status('busy'), Snapshot(info=INFO, dropped=3, counters={'fallback gemv': 0}),
     DiagnosticStatus.OK, 'busy'),
    (Status('error', reason='device lost'), Snapshot(dropped=5), DiagnosticStatus.ERROR,
     'device lost'),
])
def test_level_and_message(status: Status, now: Snapshot, level: bytes, message: str) -> None:
    described = diagnostic_status('/reflex_llm', status, now, dropped_before=3)
    assert (described.level, described.message) == (level, message)
    assert described.name == '/reflex_llm: engine'


def test_counters_and_context_are_values() -> None:
    now = Snapshot(info=INFO, counters={'fallback gemv': 2})
    values = {
        value.key: value.value
        for value in diagnostic_status('/n', Status('ready'), now, 0).values}
    assert values['fallback gemv'] == '2'
    assert values['kv_size_tokens'] == '512'
    assert 'tokens_per_s' not in values
