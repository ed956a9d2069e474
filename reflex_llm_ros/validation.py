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
What the values of a request may be; parameters of the same name obey the same ranges.

A check returns the value as the engine takes it, or raises :class:`Refused` with the
predicate of a sentence about the field: "must be from 0 to 5, not 7".
"""

from collections.abc import Callable, Sequence
from typing import Any

from reflex_llm_ros.engine.request import Message

MAX_NAME_CHARS = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
ROLES = ('system', 'user', 'assistant', 'tool')

FLOAT_RANGES: dict[str, tuple[float, float]] = {
    'temperature': (0.0, 5.0),
    'top_p': (0.0, 1.0),
    'min_p': (0.0, 1.0),
    'repeat_penalty': (0.1, 10.0),
}
INTEGER_RANGES: dict[str, tuple[int, int]] = {
    'top_k': (0, 1_000_000),
    'seed': (-1, 2**63 - 1),
    'max_tokens': (0, 1_000_000),
    'priority': (-1_000_000, 1_000_000),
}


class Refused(ValueError):
    """Why a value is refused, as the predicate of a sentence about its field."""


def shown(value: Any) -> str:
    """Show a value of unknown size and content on one printable line."""
    text = value if isinstance(value, str) and value.isidentifier() else ascii(value)
    return text if len(text) <= 60 else text[:57] + '...'


def check(key: str, value: Any) -> Any:
    """Check the value of a request's key and convert it to what the engine takes."""
    if key in FLOAT_RANGES:
        return number(value, *FLOAT_RANGES[key])
    if key in INTEGER_RANGES:
        whole = integer(value, *INTEGER_RANGES[key])
        return None if key == 'seed' and whole < 0 else whole
    if key in _UNSUPPORTED:
        raise Refused('is not supported by this version')
    if key not in _CHECKS:
        known = ', '.join(sorted([*_CHECKS, *FLOAT_RANGES, *INTEGER_RANGES]))
        raise Refused(f'is not a key of a request (known: {known})')
    return _CHECKS[key](value)


def number(value: Any, low: float, high: float) -> float:
    """Check a number; integers count as numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused(f'must be a number, not {shown(value)}')
    # Also true of NaN and of integers too large for a float.
    if not low <= value <= high:
        raise Refused(f'must be from {low:g} to {high:g}, not {shown(value)}')
    return float(value)


def integer(value: Any, low: int, high: int) -> int:
    """Check an integer; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f'must be an integer, not {shown(value)}')
    if not low <= value <= high:
        raise Refused(f'must be from {low} to {high}, not {shown(value)}')
    return value


def boolean(value: Any) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise Refused(f'must be true or false, not {shown(value)}')
    return value


def string(value: Any) -> str:
    """Check that text can be written as UTF-8."""
    if not isinstance(value, str):
        raise Refused(f'must be a string, not {shown(value)}')
    try:
        value.encode('utf-8')
    except UnicodeEncodeError:
        raise Refused('contains half of a surrogate pair') from None
    return value


def choice(value: Any, choices: Sequence[str]) -> str:
    """Check that text is one of a few words."""
    if value not in choices:
        raise Refused(f'must be one of {", ".join(choices)}, not {shown(value)}')
    return str(value)


def stop_strings(value: Any) -> tuple[str, ...]:
    """Check a list of stop strings."""
    if not isinstance(value, list) or len(value) > MAX_STOP_STRINGS:
        raise Refused(f'must be a list of at most {MAX_STOP_STRINGS} strings')
    for text in value:
        if not 1 <= len(string(text)) <= MAX_STOP_CHARS:
            raise Refused(f'must hold strings of 1 to {MAX_STOP_CHARS} characters')
    return tuple(value)


def _prompt(value: Any) -> str:
    prompt = string(value)
    if not prompt.strip():
        raise Refused('is empty')
    return prompt


def _id(value: Any) -> str:
    name = _conversation(value)
    if not name:
        raise Refused('is empty')
    return name


def _conversation(value: Any) -> str:
    name = string(value)
    if len(name) > MAX_NAME_CHARS:
        raise Refused(f'must have at most {MAX_NAME_CHARS} characters, not {len(name)}')
    return name


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise Refused('must be a list of {role, content} with at least one turn')
    return tuple(_message(index, turn) for index, turn in enumerate(value))


def _message(index: int, turn: Any) -> Message:
    if not isinstance(turn, dict) or set(turn) != {'role', 'content'}:
        raise Refused(f'[{index}] must have role and content and nothing else')
    if turn['role'] not in ROLES:
        raise Refused(
            f'[{index}] has the role {shown(turn["role"])}; known: {", ".join(ROLES)}')
    try:
        return Message(turn['role'], string(turn['content']))
    except Refused as refused:
        raise Refused(f'[{index}] content {refused}') from None


_CHECKS: dict[str, Callable[[Any], Any]] = {
    'id': _id,
    'prompt': _prompt,
    'messages': _messages,
    'conversation': _conversation,
    'system': string,
    'stop': stop_strings,
    'thinking': boolean,
    'interrupt': boolean,
}
_UNSUPPORTED = ('json_schema', 'tools')
