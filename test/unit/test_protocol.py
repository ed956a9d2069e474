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

"""Requests and events: what is taken, what is refused and with which words."""

from dataclasses import replace
import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from reflex_llm_ros.engine.config import SamplingParams
from reflex_llm_ros.engine.request import (
    Done,
    GenerateRequest,
    Message,
    Reasoning,
    Started,
    Token,
)
from reflex_llm_ros.protocol import (
    Defaults,
    encode_request,
    Error,
    Event,
    event_from_json,
    event_to_json,
    MAX_REQUEST_CHARS,
    parse_request,
    Queued,
    Request,
    request_from_prompt,
    RequestError,
    Status,
    status_from_json,
    status_to_json,
)

DEFAULTS = Defaults(
    sampling=SamplingParams(temperature=0.3, top_k=7, top_p=0.8, min_p=0.1,
                            repeat_penalty=1.2, seed=11, max_tokens=99),
    system='Be brief.', thinking=False, history_turns=4, stop=('END',))
TEXT = st.text(st.characters(exclude_categories=['Cs']), min_size=1, max_size=40)


def refusal(**request: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        parse_request(json.dumps(request), DEFAULTS)
    assert '\n' not in str(raised.value)
    assert len(str(raised.value)) < 300
    return raised.value


def test_a_bare_prompt_takes_every_default() -> None:
    assert parse_request('{"id": "r", "prompt": "Hi"}', DEFAULTS) == Request(
        'r', GenerateRequest(
            messages=(Message('user', 'Hi'),), conversation='', system='Be brief.',
            sampling=DEFAULTS.sampling, stop=('END',), thinking=False, history_turns=4))


def test_every_key_reaches_its_place() -> None:
    request = parse_request(json.dumps({
        'id': 'r', 'conversation': 'c', 'system': 's', 'stop': ['a', 'b'], 'thinking': True,
        'messages': [{'role': 'system', 'content': ''}, {'role': 'user', 'content': 'u'},
                     {'role': 'assistant', 'content': 'a'}, {'role': 'tool', 'content': 't'}],
        'temperature': 0, 'top_k': 1, 'top_p': 0.5, 'min_p': 1, 'repeat_penalty': 2,
        'seed': 5, 'max_tokens': 0, 'priority': -3, 'interrupt': True,
    }), DEFAULTS)
    assert request == Request('r', GenerateRequest(
        messages=(Message('system', ''), Message('user', 'u'), Message('assistant', 'a'),
                  Message('tool', 't')),
        conversation='c', system='s',
        sampling=SamplingParams(temperature=0.0, top_k=1, top_p=0.5, min_p=1.0,
                                repeat_penalty=2.0, seed=5, max_tokens=0),
        stop=('a', 'b'), thinking=True, history_turns=4), priority=-3, interrupt=True)


def test_a_missing_id_is_made_up_and_differs_each_time() -> None:
    ids = {parse_request('{"prompt": "Hi"}', DEFAULTS).id for _ in range(100)}
    assert len(ids) == 100


def test_seed_minus_one_draws_a_fresh_one() -> None:
    assert parse_request('{"prompt": "Hi", "seed": -1}', DEFAULTS).generate.sampling.seed is None


@pytest.mark.parametrize('key, value, why', [
    ('temperature', -0.1, 'from 0 to 5'),
    ('temperature', 10**400, 'from 0 to 5'),
    ('temperature', '1', 'must be a number'),
    ('temperature', True, 'must be a number'),
    ('temperature', None, 'must be a number'),
    ('top_p', 1.01, 'from 0 to 1'),
    ('min_p', -1, 'from 0 to 1'),
    ('repeat_penalty', 0, 'from 0.1 to 10'),
    ('top_k', 1.0, 'must be an integer'),
    ('top_k', -1, 'from 0 to 1000000'),
    ('seed', 2**63, 'from -1 to'),
    ('max_tokens', 1e9, 'must be an integer'),
    ('max_tokens', 10**30, 'from 0 to 1000000'),
    ('priority', False, 'must be an integer'),
    ('interrupt', 1, 'true or false'),
    ('thinking', 'on', 'true or false'),
    ('thinking', None, 'true or false'),
    ('conversation', 3, 'must be a string'),
    ('conversation', 'c' * 129, 'at most 128'),
    ('system', ['x'], 'must be a string'),
    ('system', '\ud800', 'surrogate'),
    ('stop', 'END', 'list'),
    ('stop', [''], '1 to 256'),
    ('stop', ['x'] * 17, 'at most 16'),
    ('stop', [1], 'must be a string'),
    ('json_schema', {}, 'not supported by this version'),
    ('tools', [], 'not supported by this version'),
    ('temprature', 1, 'not a key of a request'),
    ('id', '', 'is empty'),
    ('id', 7, 'must be a string'),
    ('id', 'i' * 129, 'at most 128'),
])
def test_a_bad_value_is_refused_with_its_name_and_the_reason(
    key: str, value: Any, why: str
) -> None:
    error = str(refusal(**{'prompt': 'Hi', key: value}))
    assert key in error
    assert why in error


@pytest.mark.parametrize('messages, why', [
    ([], 'at least one turn'),
    ('Hi', 'must be a list'),
    (['Hi'], r'[0] must have role and content'),
    ([{'role': 'user'}], r'[0] must have role and content'),
    ([{'role': 'user', 'content': 'x', 'name': 'y'}], r'[0] must have role and content'),
    ([{'role': 'user', 'content': 'x'}, {'role': 'robot', 'content': 'x'}], 'robot'),
    ([{'role': ['user'], 'content': 'x'}], r'[0] has the role'),
    ([{'role': 'user', 'content': None}], r'[0] content must be a string'),
    ([{'role': 'user', 'content': '\udfff'}], 'surrogate'),
])
def test_bad_messages_are_refused_with_their_index(messages: Any, why: str) -> None:
    assert why in str(refusal(messages=messages))


@pytest.mark.parametrize('text, why', [
    ('', 'not JSON'),
    ('{"prompt": "Hi"', 'not JSON'),
    ('"Hi"', 'JSON object'),
    ('[]', 'JSON object'),
    ('{}', 'either prompt or messages'),
    ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', 'either prompt or'),
    ('{"prompt": "  "}', 'prompt is empty'),
    ('{"prompt": "a", "temperature": NaN}', 'NaN'),
    ('{"prompt": "a", "temperature": -Infinity}', '-Infinity'),
    ('{"prompt": "a", "temperature": 1e999}', 'from 0 to 5'),
    ('{"prompt": "a", "seed": ' + '9' * 5000 + '}', '.'),
    ('{"prompt": "a", "top_k": 1, "top_k": 2}', 'top_k twice'),
    ('{"prompt": ' + '[' * 100_000, '.'),
    ('{"a\\n' + 'b' * 1000 + '": 1}', 'not a key'),
])
def test_what_is_no_request_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(RequestError, match=why) as raised:
        parse_request(text, DEFAULTS)
    assert '\n' not in str(raised.value)
    assert raised.value.code == 'bad_request'


def test_a_request_that_is_too_long_is_refused_with_the_limit_and_its_id() -> None:
    text = json.dumps({'id': 'long', 'prompt': 'x' * 10_000_000})
    with pytest.raises(RequestError, match=str(MAX_REQUEST_CHARS)) as raised:
        parse_request(text, DEFAULTS)
    assert raised.value.id == 'long'
    with pytest.raises(RequestError, match=str(MAX_REQUEST_CHARS)):
        request_from_prompt('x' * 10_000_000, DEFAULTS)


def test_an_error_carries_the_id_wherever_it_stands() -> None:
    assert refusal(prompt='Hi', temperature=-1, id='r').id == 'r'
    assert refusal(id='r').id == 'r'
    with pytest.raises(RequestError) as raised:
        parse_request('{"id": "r", "prompt": ', DEFAULTS)
    assert raised.value.id == 'r'


def test_a_plain_prompt_is_a_turn_of_the_default_conversation() -> None:
    request = request_from_prompt('Hi', DEFAULTS)
    assert request == Request(request.id, GenerateRequest(
        messages=(Message('user', 'Hi'),), conversation='default', system='Be brief.',
        sampling=DEFAULTS.sampling, stop=('END',), thinking=False, history_turns=4))
    with pytest.raises(RequestError, match='the prompt is empty'):
        request_from_prompt(' \n', DEFAULTS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(
        st.text(max_size=8), children, max_size=4),
    max_leaves=10)
KEYS = st.sampled_from([
    'id', 'prompt', 'messages', 'conversation', 'system', 'max_tokens', 'temperature', 'top_k',
    'top_p', 'min_p', 'repeat_penalty', 'seed', 'stop', 'thinking', 'json_schema', 'tools',
    'priority', 'interrupt', 'unknown'])


@settings(deadline=None)
@given(st.dictionaries(KEYS, JSON))
def test_any_object_is_a_request_or_a_request_error(values: dict[str, Any]) -> None:
    try:
        request = parse_request(json.dumps(values), DEFAULTS)
    except RequestError as error:
        assert 1 <= len(error.id) <= 128
        event_to_json(Event(error.id, 0, Error(error.code, str(error)))).encode()
    else:
        assert 0 <= request.generate.sampling.temperature <= 5
        assert request.generate.messages


@settings(deadline=None)
@given(st.text())
def test_random_text_is_refused_without_any_other_error(text: str) -> None:
    with pytest.raises(RequestError):
        parse_request(text, DEFAULTS)


@settings(deadline=None)
@given(prompt=TEXT.filter(str.strip), system=TEXT, stop=st.lists(TEXT, max_size=16),
       temperature=st.floats(0, 5), seed=st.integers(0, 2**63 - 1), interrupt=st.booleans())
def test_an_encoded_request_parses_to_what_was_asked(
    prompt: str, system: str, stop: list[str], temperature: float, seed: int, interrupt: bool
) -> None:
    request = parse_request(encode_request(
        id='r', prompt=prompt, system=system, stop=stop, temperature=temperature, seed=seed,
        interrupt=interrupt, top_k=None), DEFAULTS)
    assert request == Request('r', GenerateRequest(
        messages=(Message('user', prompt),), system=system, stop=tuple(stop), thinking=False,
        sampling=replace(DEFAULTS.sampling, temperature=temperature, seed=seed),
        history_turns=4), interrupt=interrupt)


def test_encode_takes_messages_and_refuses_what_the_node_would() -> None:
    messages = [Message('user', 'a'), {'role': 'assistant', 'content': 'b'}]
    request = parse_request(encode_request(messages=messages), DEFAULTS)
    assert request.generate.messages == (Message('user', 'a'), Message('assistant', 'b'))
    with pytest.raises(RequestError, match='temperature'):
        encode_request(prompt='Hi', temperature=-1)
    with pytest.raises(RequestError, match='NaN'):
        encode_request(prompt='Hi', temperature=math.nan)


@pytest.mark.parametrize('body, expected', [
    (Queued(2), {'type': 'queued', 'position': 2}),
    (Started(9, 4), {'type': 'started', 'prompt_tokens': 9, 'cached_tokens': 4}),
    (Token('é', 5), {'type': 'token', 'text': 'é', 'token_id': 5}),
    (Reasoning('hm'), {'type': 'reasoning', 'text': 'hm'}),
    (Done('t', 'length', 1, 2, 3.5, 4.5, 5.5), {
        'type': 'done', 'text': 't', 'finish_reason': 'length', 'prompt_tokens': 1,
        'completion_tokens': 2, 'ttft_ms': 3.5, 'tokens_per_s': 4.5,
        'prefill_tokens_per_s': 5.5}),
    (Error('queue_full', 'm'), {'type': 'error', 'code': 'queue_full', 'message': 'm'}),
])
def test_events_as_json(body: Any, expected: dict[str, Any]) -> None:
    event = Event('r', 3, body)
    text = event_to_json(event)
    assert json.loads(text) == {'id': 'r', 'seq': 3, **expected}
    assert event_from_json(text) == event
    assert event.final == (expected['type'] in ('done', 'error'))


def test_an_event_may_have_keys_of_a_later_version() -> None:
    text = '{"id": "r", "seq": 0, "type": "queued", "position": 1, "eta_s": 4}'
    assert event_from_json(text) == Event('r', 0, Queued(1))


@pytest.mark.parametrize('text', [
    '', '[]', '{}', '{"id": "r", "seq": 0, "type": "song"}', '{"id": "r", "seq": 0, "type": []}',
    '{"id": "r", "seq": 0, "type": "queued"}', '{"seq": 0, "type": "queued", "position": 1}'])
def test_what_is_no_event_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        event_from_json(text)


def test_status_as_json() -> None:
    status = Status('loading', model='m.gguf', queue=1, percent=40, step='weights')
    assert json.loads(status_to_json(status)) == {
        'state': 'loading', 'model': 'm.gguf', 'queue': 1, 'percent': 40, 'step': 'weights',
        'reason': ''}
    assert status_from_json(status_to_json(status)) == status
