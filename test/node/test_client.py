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

"""The client against the node, over DDS."""

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import pytest
from reflex_llm_ros.client import Answer, AnswerTimeout, LlmError, ReflexLlmClient
from robot import PATIENCE_S, Robot, wait_for

COUNT_TO_5 = '0 1 2 3 4 '


@pytest.fixture
def client(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReflexLlmClient]:
    monkeypatch.setenv('ROS_DOMAIN_ID', str(robot.node.domain))
    with ReflexLlmClient(server_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as client:
        yield client


def started(robot: Robot, count: int = 1) -> list[str]:
    """Wait for the first tokens of ``count`` requests and return their ids."""
    def ids() -> list[str]:
        return sorted({
            event['id'] for event in list(robot.events) if event['type'] == 'token'})
    return wait_for(lambda: ids() if len(ids()) >= count else [], 'tokens')


def test_ask_returns_the_whole_answer_and_its_numbers(client: ReflexLlmClient) -> None:
    assert client.ask('count 5') == Answer(
        text=COUNT_TO_5, reasoning='', finish_reason='stop', prompt_tokens=2, cached_tokens=0,
        completion_tokens=5, ttft_ms=5.0, tokens_per_s=200.0)


def test_stream_yields_every_token(client: ReflexLlmClient) -> None:
    stream = client.stream('count 100')
    assert list(stream) == [f'{number} ' for number in range(100)]
    assert stream.result().completion_tokens == 100


def test_a_new_client_misses_nothing_of_its_first_answer(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ROS_DOMAIN_ID', str(robot.node.domain))
    for _ in range(5):
        with ReflexLlmClient(server_timeout_s=PATIENCE_S) as client:
            assert list(client.stream('think')) == ['yes']


def test_the_reasoning_is_kept_apart(client: ReflexLlmClient) -> None:
    stream = client.stream('think')
    parts = []
    while (part := stream.next_part()) is not None:
        parts.append(tuple(part))
    assert parts == [('well, ', True), ('let me see', True), ('yes', False)]
    assert stream.result().reasoning == 'well, let me see'


def test_futures_come_in_the_order_of_the_queue(client: ReflexLlmClient) -> None:
    ended: list[Future[Answer]] = []
    futures = [client.ask_async(f'count {n}') for n in (9, 1, 5)]
    for future in futures:
        future.add_done_callback(ended.append)
    texts = [future.result(timeout=PATIENCE_S).text for future in futures]
    assert [text.split()[-1] for text in texts] == ['8', '0', '4']
    assert ended == futures


@pytest.mark.parametrize(('prompt', 'options', 'code', 'words'), [
    ('too long', {}, 'context_overflow', '100 fit'),
    ('count 1', {'temperature': -1.0}, 'bad_request', 'temperature'),
    ('', {}, 'bad_request', 'empty'),
    (None, {}, 'bad_request', 'messages'),
])
def test_errors_are_exceptions_with_a_code(
    client: ReflexLlmClient, prompt: str, options: dict, code: str, words: str
) -> None:
    with pytest.raises(LlmError, match=words) as caught:
        client.ask(prompt, **options)
    assert caught.value.code == code
    assert client.ask('count 5').text == COUNT_TO_5


def test_a_full_queue_is_an_error(client: ReflexLlmClient, robot: Robot) -> None:
    running = client.ask_async('count 100000')
    started(robot)
    waiting = [client.ask_async('count 1') for _ in range(3)]
    with pytest.raises(LlmError) as caught:
        client.ask('count 1')
    assert caught.value.code == 'queue_full'
    client.cancel()
    assert running.result(timeout=PATIENCE_S).finish_reason == 'cancelled'
    for future in waiting:
        assert future.result(timeout=PATIENCE_S).finish_reason == 'cancelled'


def test_a_cancelled_stream_ends_with_what_it_has(client: ReflexLlmClient) -> None:
    stream = client.stream('count 100000')
    texts = []
    for text in stream:
        texts.append(text)
        if len(texts) == 3:
            stream.cancel()
    answer = stream.result()
    assert answer.finish_reason == 'cancelled'
    assert answer.text == ''.join(texts)
    assert len(texts) >= 3


def test_leaving_a_loop_or_cancelling_a_future_frees_the_engine(
    client: ReflexLlmClient, robot: Robot
) -> None:
    for _ in client.stream('count 100000'):
        break
    future = client.ask_async('count 100000')
    left, cancelled = started(robot, 2)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    for request_id in (left, cancelled):
        assert robot.end_of(request_id)['finish_reason'] == 'cancelled'


def test_an_answer_that_takes_too_long_is_cancelled(
    client: ReflexLlmClient, robot: Robot
) -> None:
    client.wait_for_server()
    with pytest.raises(AnswerTimeout):
        client.ask('count 100000', timeout_s=0.5)
    request_id, = started(robot)
    assert robot.end_of(request_id)['finish_reason'] == 'cancelled'


def test_messages_and_options_reach_the_node(client: ReflexLlmClient) -> None:
    answer = client.ask(
        messages=[{'role': 'system', 'content': 'be short'},
                  {'role': 'user', 'content': 'count 3'}],
        conversation='kitchen', temperature=0.1, stop=['x'], interrupt=True)
    assert answer.text == '0 1 2 '


def test_an_interrupt_ends_what_runs(client: ReflexLlmClient, robot: Robot) -> None:
    running = client.ask_async('count 100000')
    started(robot)
    assert client.ask('count 5', interrupt=True).text == COUNT_TO_5
    assert running.result(timeout=PATIENCE_S).finish_reason == 'cancelled'


def test_reset_reaches_the_engine(client: ReflexLlmClient, robot: Robot) -> None:
    def resets() -> int:
        values = {
            pair.key: pair.value
            for message in robot.diagnostics[-1:] for status in message.status
            for pair in status.values}
        return int(values.get('conversations_reset', 0))

    before = resets()
    client.reset()
    client.ask('count 1')
    wait_for(lambda: resets() == before + 1, 'a reset')


@pytest.fixture
def long_queue(robot: Robot) -> Iterator[None]:
    assert robot.set_parameters(queue__size=100) == ['']
    yield
    assert robot.set_parameters(queue__size=3) == ['']


@pytest.mark.usefixtures('long_queue')
def test_more_asks_at_once_than_a_topic_holds(client: ReflexLlmClient) -> None:
    futures = [client.ask_async(f'count {n}') for n in range(1, 41)]
    assert [len(future.result(timeout=PATIENCE_S).text.split()) for future in futures] == [
        *range(1, 41)]


def test_a_node_that_is_not_active_says_so(
    client: ReflexLlmClient, robot: Robot
) -> None:
    running = client.ask_async('count 100000')
    started(robot)
    assert robot.transition('deactivate')
    try:
        with pytest.raises(LlmError) as caught:
            running.result(timeout=PATIENCE_S)
        assert caught.value.code == 'cancelled_by_deactivate'
        with pytest.raises(LlmError) as caught:
            client.ask('count 1')
        assert caught.value.code == 'not_active'
    finally:
        assert robot.transition('activate')
    assert client.ask('count 5').text == COUNT_TO_5


@pytest.mark.usefixtures('long_queue')
def test_threads_ask_at_once(client: ReflexLlmClient) -> None:
    with ThreadPoolExecutor(12) as threads:
        answers = threads.map(lambda number: client.ask(f'count {number}').text, range(1, 13))
        assert [len(text.split()) for text in answers] == [*range(1, 13)]
