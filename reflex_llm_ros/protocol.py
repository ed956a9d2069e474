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
Requests and events as JSON: what travels in the std_msgs/String topics.

``parse_request`` and ``event_to_json`` are the node's side, ``encode_request`` and
``event_from_json`` a client's. A request is checked key by key, because a misspelt option
that is silently ignored costs a robot builder an afternoon; an event may carry keys that
this version does not know, so that old clients outlive new nodes.
"""

from dataclasses import asdict, dataclass, field, fields, replace
import json
import re
from typing import Any
import uuid

from reflex_llm_ros.engine.config import SamplingParams
from reflex_llm_ros.engine.errors import BadRequestError
from reflex_llm_ros.engine.request import (
    Done,
    GenerateRequest,
    Message,
    Reasoning,
    Started,
    Token,
)
from reflex_llm_ros.validation import check, Refused, shown

DEFAULT_CONVERSATION = 'default'
MAX_REQUEST_CHARS = 1_000_000


class RequestError(BadRequestError):
    """A request that cannot be honoured; ``id`` is its own where one could be read."""

    def __init__(self, message: str, request_id: str = '') -> None:
        super().__init__(message)
        self.id = request_id or new_id()


@dataclass(frozen=True)
class Defaults:
    """What a request leaves open, from the parameters ``sampling.*`` and ``prompt.*``."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    system: str = ''
    thinking: bool | None = None
    history_turns: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """
    A request as the queue holds it.

    ``priority``: a higher one goes first. ``interrupt``: cancel the running request and
    go before all that wait.
    """

    id: str  # noqa: A003
    generate: GenerateRequest
    priority: int = 0
    interrupt: bool = False


@dataclass(frozen=True)
class Queued:
    """The request waits; ``position`` 0 is the next to run."""

    position: int


@dataclass(frozen=True)
class Error:
    """The request ended without an answer; the codes are those of the ROS interface."""

    code: str
    message: str


EventBody = Queued | Started | Token | Reasoning | Done | Error

EVENT_TYPES: dict[str, type[EventBody]] = {
    'queued': Queued,
    'started': Started,
    'token': Token,
    'reasoning': Reasoning,
    'done': Done,
    'error': Error,
}


@dataclass(frozen=True)
class Event:
    """Something that happened to request ``id``; ``seq`` counts its events from 0."""

    id: str  # noqa: A003
    seq: int
    body: EventBody

    @property
    def final(self) -> bool:
        """Whether this is the request's last event."""
        return isinstance(self.body, (Done, Error))


@dataclass(frozen=True)
class Status:
    """
    What ``~/status`` says.

    ``state`` is ``unconfigured``, ``loading``, ``inactive``, ``ready``, ``busy``, ``error``
    or ``finalized``; ``percent`` and ``step`` tell how far loading is, ``queue`` how many
    requests wait, ``reason`` what went wrong.
    """

    state: str
    model: str = ''
    queue: int = 0
    percent: int = 0
    step: str = ''
    reason: str = ''


def new_id() -> str:
    """Make up a request id."""
    return uuid.uuid4().hex[:12]


# --- requests


def request_from_prompt(text: str, defaults: Defaults) -> Request:
    """Turn plain text into a user turn of the default conversation."""
    request_id = new_id()
    _check_size(text, request_id)
    try:
        prompt = check('prompt', text)
    except Refused as refused:
        raise RequestError(f'the prompt {refused}', request_id) from None
    return Request(request_id, GenerateRequest(
        messages=(Message('user', prompt),),
        conversation=DEFAULT_CONVERSATION,
        system=defaults.system,
        sampling=defaults.sampling,
        stop=defaults.stop,
        thinking=defaults.thinking,
        history_turns=defaults.history_turns,
    ))


def parse_request(text: str, defaults: Defaults) -> Request:
    """
    Read a JSON request.

    Raises
    ------
    RequestError
        With one line that names the field and says why.

    """
    leading_id = _LEADING_ID.match(text)
    request_id = leading_id.group(1) if leading_id else new_id()
    _check_size(text, request_id)
    try:
        values = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except Refused as refused:
        raise RequestError(f'the request {refused}', request_id) from None
    except ValueError as error:
        raise RequestError(f'the request is not JSON: {error}', request_id) from None
    except RecursionError:
        raise RequestError('the request is nested too deeply', request_id) from None
    if not isinstance(values, dict):
        raise RequestError('the request must be a JSON object', request_id)

    checked: dict[str, Any] = {}
    # The id goes first: an error about any other field then carries it.
    for key in sorted(values, key=lambda key: key != 'id'):
        try:
            checked[key] = check(key, values[key])
        except Refused as refused:
            raise RequestError(f'{shown(key)} {refused}', request_id) from None
        request_id = checked.get('id', request_id)

    if ('prompt' in checked) == ('messages' in checked):
        raise RequestError('give either prompt or messages', request_id)
    messages = checked.get('messages') or (Message('user', checked['prompt']),)
    sampling = replace(defaults.sampling, **{
        key: checked[key] for key in _SAMPLING_KEYS if key in checked})
    return Request(
        id=request_id,
        generate=GenerateRequest(
            messages=messages,
            conversation=checked.get('conversation', ''),
            system=checked.get('system', defaults.system),
            sampling=sampling,
            stop=checked.get('stop', defaults.stop),
            thinking=checked.get('thinking', defaults.thinking),
            history_turns=defaults.history_turns,
        ),
        priority=checked.get('priority', 0),
        interrupt=checked.get('interrupt', False),
    )


def encode_request(**request: Any) -> str:
    """
    Write a JSON request from the keys of the ROS interface; None leaves a key out.

    ``messages`` may hold :class:`Message` or dictionaries. An ``id`` is made up when there
    is none; it stands first, where the node finds it even in a request that it cannot parse.

    Raises
    ------
    RequestError
        When the node would refuse the request.

    """
    values: dict[str, Any] = {'id': request.pop('id', None) or new_id()}
    for key, value in request.items():
        if value is not None:
            values[key] = value
    if 'messages' in values:
        values['messages'] = [
            asdict(message) if isinstance(message, Message) else message
            for message in values['messages']]
    if 'stop' in values:
        values['stop'] = list(values['stop'])
    text = json.dumps(values, ensure_ascii=False)
    parse_request(text, Defaults())
    return text


_LEADING_ID = re.compile(r'\s*\{\s*"id"\s*:\s*"([^"\\\x00-\x1f]{1,128})"')
_SAMPLING_KEYS = tuple(key.name for key in fields(SamplingParams))


def _check_size(text: str, request_id: str) -> None:
    if len(text) > MAX_REQUEST_CHARS:
        raise RequestError(
            f'the request has {len(text)} characters; at most {MAX_REQUEST_CHARS} are taken',
            request_id)


def _refuse_constant(name: str) -> None:
    raise Refused(f'contains {name}, which is not a JSON number')


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Refused(f'has the key {shown(twice)} twice')
    return result


# --- events and status


def event_to_json(event: Event) -> str:
    """Write an event: ``{"id", "seq", "type", ...}``."""
    name = next(name for name, kind in EVENT_TYPES.items() if isinstance(event.body, kind))
    return json.dumps(
        {'id': event.id, 'seq': event.seq, 'type': name, **asdict(event.body)},
        ensure_ascii=False, allow_nan=False)


def event_from_json(text: str) -> Event:
    """
    Read an event; keys that this version does not know are passed over.

    Raises
    ------
    ValueError
        When the text is no event, or one of a type that this version does not know.

    """
    values = _object(text)
    kind = EVENT_TYPES.get(str(values.get('type')))
    if kind is None:
        raise ValueError(f'unknown event type {shown(values.get("type"))}')
    if not isinstance(values.get('id'), str) or not isinstance(values.get('seq'), int):
        raise ValueError('an event needs an id and a sequence number')
    return Event(values['id'], values['seq'], _build(kind, values))


def status_to_json(status: Status) -> str:
    """Write a status."""
    return json.dumps(asdict(status), ensure_ascii=False)


def status_from_json(text: str) -> Status:
    """Read a status; raises ValueError when the text is none."""
    status: Status = _build(Status, _object(text))
    return status


def _object(text: str) -> dict[str, Any]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError('not a JSON object')
    return values


def _build(kind: Any, values: dict[str, Any]) -> Any:
    try:
        return kind(**{
            key.name: values[key.name] for key in fields(kind) if key.name in values})
    except TypeError as error:
        raise ValueError(str(error)) from None
