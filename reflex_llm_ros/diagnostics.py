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

"""What ``/diagnostics`` says about the engine."""

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from reflex_llm_ros.protocol import Status
from reflex_llm_ros.worker import Snapshot

FALLBACK = 'fallback'
MIB = 2**20


def diagnostic_status(
    name: str, status: Status, now: Snapshot, dropped_before: int
) -> DiagnosticStatus:
    """
    Describe the engine.

    ERROR when there is a reason to; WARN when requests were turned away since the last
    message, or when an operation fell back to a slower one; OK otherwise.
    """
    fallbacks = ', '.join(
        f'{key}: {count}' for key, count in now.counters.items() if FALLBACK in key and count)
    newly_dropped = now.dropped - dropped_before
    if status.state == 'error':
        level, message = DiagnosticStatus.ERROR, status.reason
    elif newly_dropped > 0:
        level, message = DiagnosticStatus.WARN, f'{newly_dropped} requests turned away'
    elif fallbacks:
        level, message = DiagnosticStatus.WARN, f'slower than it should be; {fallbacks}'
    else:
        level, message = DiagnosticStatus.OK, status.state
    return DiagnosticStatus(
        level=level, name=f'{name}: engine', message=message,
        hardware_id=now.info.backend if now.info else '',
        values=[KeyValue(key=key, value=value) for key, value in _values(status, now)])


def _values(status: Status, now: Snapshot) -> list[tuple[str, str]]:
    values = [
        ('state', status.state),
        ('model', status.model),
        ('queue', str(now.waiting)),
        ('answered', str(now.answered)),
        ('dropped', str(now.dropped)),
    ]
    if now.info is not None:
        values.append(('kv_size_tokens', str(now.info.context_length)))
    last = now.last
    if last is not None:
        values += [
            ('tokens_per_s', f'{last.tokens_per_s:.1f}'),
            ('time_to_first_token_ms', f'{last.ttft_ms:.1f}'),
            ('prompt_tokens_per_s', f'{last.prefill_tokens_per_s:.1f}'),
            ('kv_used_tokens', str(last.prompt_tokens + last.completion_tokens)),
        ]
    if now.memory is not None:
        values += [
            ('memory_weights_mib', f'{now.memory.weights / MIB:.1f}'),
            ('memory_kv_cache_mib', f'{now.memory.kv_cache / MIB:.1f}'),
            ('memory_scratch_mib', f'{now.memory.scratch / MIB:.1f}'),
            ('memory_free_mib', f'{now.memory.free / MIB:.1f}'),
        ]
    return values + [(key, str(count)) for key, count in sorted(now.counters.items())]
