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

"""Requests to an active node over DDS: what comes back, and that it goes on afterwards."""

import json

import pytest
from rcl_interfaces.msg import ParameterType
from rclpy.serialization import serialize_message
from robot import Robot, wait_for
from std_msgs.msg import String


def serves(robot: Robot) -> bool:
    """Whether the next prompt is answered."""
    end = robot.end_of(robot.ask('count 2'))
    return bool(end['type'] == 'done' and end['text'] == '0 1 ')


def test_a_prompt_is_answered_on_every_topic(robot: Robot) -> None:
    robot.publish('prompt', 'count 20')
    end = robot.stranger()
    assert end['text'] == ''.join(f'{number} ' for number in range(20))
    wait_for(lambda: robot.said['response'], 'the response')
    assert robot.said['response'] == [end['text']]
    assert ''.join(robot.said['tokens']) == end['text']
    assert [event['type'] for event in robot.of(end['id'])] == [
        'queued', 'started', *['token'] * 20, 'done']


def test_reasoning_is_kept_apart_from_the_answer(robot: Robot) -> None:
    end = robot.end_of(robot.ask('think'))
    wait_for(lambda: robot.said['response'], 'the response')
    assert robot.said['reasoning'] == ['well, ', 'let me see']
    assert robot.said['tokens'] == ['yes']
    assert robot.said['response'] == [end['text']] == ['yes']


def test_requests_are_answered_in_order_and_by_priority(robot: Robot) -> None:
    running = robot.ask('count 100')
    robot.until('token', running)
    late = robot.ask('count 1')
    urgent = robot.ask('count 1', priority=1)
    for request_id in (running, urgent, late):
        robot.end_of(request_id)
    ends = [event['id'] for event in robot.events if event['type'] == 'done']
    assert ends == [running, urgent, late]


def test_cancel_by_id(robot: Robot) -> None:
    running = robot.ask('count 10000')
    robot.until('token', running)
    waiting = robot.ask('count 10000')
    robot.until('queued', waiting)
    robot.publish('cancel', waiting)
    end = robot.end_of(waiting)
    assert (end['finish_reason'], end['text']) == ('cancelled', '')
    robot.publish('cancel', running)
    end = robot.end_of(running)
    assert end['finish_reason'] == 'cancelled'
    assert end['text'].startswith('0 1 ')
    wait_for(lambda: len(robot.said['response']) == 2, 'the responses')
    assert ''.join(robot.said['tokens']) == end['text'] == robot.said['response'][1]
    assert serves(robot)


def test_an_empty_cancel_and_the_service_cancel_all(robot: Robot) -> None:
    running, waiting = robot.ask('count 10000'), robot.ask('count 10000')
    robot.until('token', running)
    robot.publish('cancel', '')
    assert robot.end_of(running)['finish_reason'] == 'cancelled'
    assert robot.end_of(waiting)['finish_reason'] == 'cancelled'
    running, waiting = robot.ask('count 10000'), robot.ask('count 10000')
    robot.until('token', running)
    robot.until('queued', waiting)
    assert robot.trigger('cancel_all') == 'cancelled 2 requests'
    assert robot.end_of(running)['finish_reason'] == 'cancelled'
    assert robot.end_of(waiting)['finish_reason'] == 'cancelled'
    assert serves(robot)


def test_an_interrupt_takes_over(robot: Robot) -> None:
    running, waiting = robot.ask('count 10000'), robot.ask('count 10000')
    robot.until('token', running)
    assert robot.end_of(robot.ask('count 3', interrupt=True))['text'] == '0 1 2 '
    assert robot.end_of(running)['finish_reason'] == 'cancelled'
    robot.until('token', waiting)


def test_a_full_queue_rejects_or_drops_as_the_parameter_says(robot: Robot) -> None:
    running = robot.ask('count 10000')
    robot.until('token', running)
    waiting = [robot.ask('count 1') for _ in range(3)]
    end = robot.end_of(robot.ask('count 1'))
    assert end['code'] == 'queue_full'
    robot.status(state='busy', queue=3)
    assert robot.set_parameters(queue__when_full='drop_oldest') == ['']
    newest = robot.ask('count 1')
    assert robot.end_of(waiting[0])['code'] == 'queue_full'
    assert robot.set_parameters(queue__when_full='reject') == ['']
    robot.publish('cancel', running)
    for request_id in (*waiting[1:], newest):
        assert robot.end_of(request_id)['text'] == '0 '


@pytest.mark.parametrize('text, why', [
    ('{"id": "r", "prompt": "Hi"', 'not JSON'),
    ('{"id": "r", "prompt": "Hi", "temprature": 1}', 'temprature is not a key'),
    ('{"id": "r", "prompt": "Hi", "temperature": -1}', 'temperature must be from 0 to 5'),
    ('{"id": "r", "prompt": "Hi", "json_schema": {}}', 'not supported'),
    ('{"id": "r", "prompt": ""}', 'prompt is empty'),
    (json.dumps({'id': 'r', 'prompt': 'x' * 10_000_000}), 'at most 1000000'),
], ids=lambda value: value[:50])
def test_a_bad_request_is_answered_under_its_id(robot: Robot, text: str, why: str) -> None:
    robot.publish('request', text)
    end = robot.end_of('r')
    assert (end['type'], end['code']) == ('error', 'bad_request')
    assert why in end['message']
    assert serves(robot)


@pytest.mark.parametrize('topic', ['prompt', 'request'])
@pytest.mark.parametrize('old, new', [
    (b'Hello', b'He\xff\xfeo'),
    (b'Hello', b'Hel\xc3('),
    (b'Hello', b'\xed\xa0\x80lo'),
    # A length past the end of the message.
    (b'\x00\x00\x00Hello', b'\x00\x00\x7fHello'),
])
def test_a_message_that_is_no_utf8_gets_an_error(
    robot: Robot, topic: str, old: bytes, new: bytes
) -> None:
    raw = serialize_message(String(data='Hello'))
    assert old in raw
    robot.publish(topic, raw.replace(old, new))
    end = robot.stranger()
    assert end['code'] == 'bad_request'
    assert 'UTF-8' in end['message'] or 'cannot be read' in end['message']
    assert serves(robot)


def test_a_replacement_character_is_text_like_any_other(robot: Robot) -> None:
    robot.publish('prompt', 'count 1 \N{REPLACEMENT CHARACTER}é')
    assert robot.stranger()['text'] == '0 '


@pytest.mark.parametrize('prompt, why', [(' ', 'is empty'), ('x' * 10_000_000, '1000000')],
                         ids=['empty', 'huge'])
def test_a_bad_plain_prompt_gets_an_error(robot: Robot, prompt: str, why: str) -> None:
    robot.publish('prompt', prompt)
    end = robot.stranger()
    assert end['code'] == 'bad_request'
    assert why in end['message']
    assert serves(robot)


def test_a_context_overflow_gets_an_error(robot: Robot) -> None:
    assert robot.end_of(robot.ask('too long'))['code'] == 'context_overflow'
    assert serves(robot)


def test_an_id_in_use_does_not_disturb_the_one_that_has_it(robot: Robot) -> None:
    robot.ask('count 50', id='same')
    robot.until('token', 'same')
    robot.ask('count 1', id='same')
    refusal = robot.stranger()
    assert refusal['code'] == 'bad_request'
    assert 'same' in refusal['message']
    assert robot.end_of('same')['text'].endswith(' 49 ')


def test_reset_forgets_the_default_conversation(robot: Robot) -> None:
    robot.trigger('reset')
    assert serves(robot)
    wait_for(lambda: robot.diagnostics and any(
        value.key == 'conversations_reset' and value.value == '1'
        for value in robot.diagnostics[-1].status[0].values), 'the count of resets')


def test_sampling_and_prompt_parameters_apply_to_the_next_request(robot: Robot) -> None:
    assert robot.set_parameters(
        sampling__temperature=0.0, prompt__stop=['x'], prompt__system='s') == [
        '', '', '']
    assert robot.get('sampling.temperature').double_value == 0.0
    assert list(robot.get('prompt.stop').string_array_value) == ['x']
    assert robot.set_parameters(sampling__temperature=1) == ['']
    (reason,) = robot.set_parameters(sampling__temperature=-1.0)
    assert 'sampling.temperature' in reason
    assert '5' in reason
    (reason,) = robot.set_parameters(prompt__stop=['x', ''])
    assert 'prompt.stop must hold strings of 1 to 256 characters' in reason
    assert robot.set_parameters(prompt__stop=[]) == ['']
    assert serves(robot)


def test_what_the_model_was_loaded_with_is_fixed(robot: Robot) -> None:
    (reason,) = robot.set_parameters(model__path='other.gguf')
    assert 'fixed while a model is loaded' in reason
    assert robot.get('model.path').string_value == 'model.gguf'
    assert robot.set_parameters(model__path='model.gguf') == ['']


def test_parameters_describe_themselves(robot: Robot) -> None:
    temperature = robot.describe('sampling.temperature')
    assert temperature.type == ParameterType.PARAMETER_DOUBLE
    assert temperature.floating_point_range[0].to_value == 5.0
    assert 'unconfigured' in robot.describe('model.path').additional_constraints


def test_diagnostics_say_how_fast_and_how_full(robot: Robot) -> None:
    assert serves(robot)
    robot.diagnostics.clear()
    wait_for(lambda: robot.diagnostics, 'diagnostics')
    (status,) = robot.diagnostics[-1].status
    assert status.name == '/reflex_llm: engine'
    assert status.level == b'\0'
    values = {value.key: value.value for value in status.values}
    expected = {
        'state': 'ready', 'model': 'model.gguf', 'queue': '0', 'tokens_per_s': '200.0',
        'time_to_first_token_ms': '5.0', 'prompt_tokens_per_s': '1000.0',
        'kv_used_tokens': '4', 'kv_size_tokens': '100', 'memory_weights_mib': '1.0',
        'memory_kv_cache_mib': '2.0', 'memory_scratch_mib': '4.0', 'memory_free_mib': '1024.0'}
    assert expected.items() <= values.items()


def test_a_request_that_is_turned_away_shows_as_a_warning(robot: Robot) -> None:
    robot.until('token', robot.ask('count 10000'))
    for _ in range(4):
        robot.ask('count 1')
    wait_for(lambda: any(
        message.status[0].level == b'\1' and 'turned away' in message.status[0].message
        for message in robot.diagnostics), 'a warning')


def test_services_answer_while_the_engine_generates(robot: Robot) -> None:
    running = robot.ask('count 10000')
    robot.until('token', running)
    # A callback that waits for the engine would take as long as the answer, 50 s.
    robot.call_while(running, calls=30)
