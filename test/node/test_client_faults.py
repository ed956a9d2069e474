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

"""The client against a node that misbehaves in ways that the real one does not."""

from concurrent.futures import CancelledError
import json
import os
import threading
import time

import pytest
import rclpy
from rclpy.executors import (
    ExternalShutdownException,
    MultiThreadedExecutor,
    SingleThreadedExecutor,
)
from rclpy.qos import QoSDurabilityPolicy
from reflex_llm_ros.client import AnswerTimeout, LlmError, qos, ReflexLlmClient
from reflex_llm_ros.dds_domain import free_domain
from std_msgs.msg import String
from std_srvs.srv import Trigger

DONE = {'type': 'done', 'finish_reason': 'stop', 'prompt_tokens': 5, 'completion_tokens': 2,
        'ttft_ms': 1.0, 'tokens_per_s': 10.0, 'prefill_tokens_per_s': 50.0}


class StandIn:
    """
    A node of the same topics whose answers are scripts.

    The prompt says what to send: a JSON list of events without ids and sequence numbers; a
    number waits that many seconds, null skips a sequence number, as a lost message would.
    """

    def __init__(self):
        self.context = rclpy.Context()
        rclpy.init(context=self.context, args=[])
        self.node = rclpy.create_node('stand_in', context=self.context)
        self.events = self.node.create_publisher(String, '~/events', qos(1000))
        self.status = self.node.create_publisher(
            String, '~/status', qos(1, QoSDurabilityPolicy.TRANSIENT_LOCAL))
        self.status.publish(String(data='{"state": "ready"}'))
        self.requests = []
        self.cancelled = []
        self.resets = 0
        self.node.create_subscription(String, '~/request', self.on_request, qos(10))
        self.node.create_subscription(
            String, '~/cancel', lambda message: self.cancelled.append(message.data), qos(10))
        self.node.create_service(Trigger, '~/reset', self.on_reset)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.thread = threading.Thread(target=self.spin, daemon=True)
        self.thread.start()

    def spin(self):
        try:
            self.executor.spin()
        except ExternalShutdownException:
            pass

    def on_request(self, message):
        request = json.loads(message.data)
        self.requests.append(request)
        for seq, event in enumerate(json.loads(request['prompt'])):
            if isinstance(event, (int, float)):
                time.sleep(event)
            elif event is not None:
                event = {'id': request['id'], 'seq': seq, **event}
                self.events.publish(String(data=json.dumps(event)))

    def on_reset(self, request, response):
        self.resets += 1
        response.success = self.resets == 1
        response.message = '' if response.success else 'no'
        return response

    def close(self):
        if self.context.ok():
            self.executor.shutdown()
            self.thread.join()
            self.node.destroy_node()
            self.context.try_shutdown()


def token(text):
    return {'type': 'token', 'text': text, 'token_id': 1}


def done(text):
    return {**DONE, 'text': text}


def script(*events):
    return json.dumps(events)


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope='module', autouse=True)
def own_domain():
    before = dict(os.environ)
    os.environ['ROS_DOMAIN_ID'] = str(free_domain())
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def stand_in():
    node = StandIn()
    yield node
    node.close()


@pytest.fixture
def client(stand_in):
    with ReflexLlmClient(server='/stand_in') as client:
        client.wait_for_server(10.0)
        yield client


def test_the_keys_of_a_request_arrive(client, stand_in):
    client.ask(script(done('')), max_tokens=7, stop=['x'], conversation='kitchen')
    request, = stand_in.requests
    assert request['max_tokens'] == 7
    assert request['stop'] == ['x']
    assert request['conversation'] == 'kitchen'


def test_a_request_that_the_node_would_refuse_is_never_sent(client, stand_in):
    with pytest.raises(LlmError, match='tempature') as caught:
        client.ask('hello', tempature=0.1)
    assert caught.value.code == 'bad_request'
    client.ask(script(done('')))
    assert len(stand_in.requests) == 1


def test_lost_events_cost_no_text(client):
    stream = client.stream(script(token('A '), token('small '), None, token('of '), done(
        'A small box of bolts')))
    assert ''.join(stream) == 'A small box of bolts'


def test_events_of_others_and_of_the_future_are_passed_over(client):
    answer = client.ask(script(
        {'type': 'token', 'text': 'not ours', 'token_id': 1, 'id': 'other'},
        {'type': 'sketch', 'svg': '<svg/>'},
        {**done('ours'), 'colour': 'red'}))
    assert answer.text == 'ours'


def test_silence_is_given_up_and_cancelled(client, stand_in):
    with pytest.raises(AnswerTimeout):
        client.ask(script({'type': 'queued', 'position': 0}), timeout_s=0.5)
    request, = stand_in.requests
    wait_until(lambda: request['id'] in stand_in.cancelled)


def test_leaving_a_stream_early_cancels(client, stand_in):
    for _ in client.stream(script(token('A'))):
        break
    request, = stand_in.requests
    wait_until(lambda: request['id'] in stand_in.cancelled)


def test_cancelling_a_future_cancels_the_request(client, stand_in):
    future = client.ask_async(script(token('A')))
    wait_until(lambda: stand_in.requests)
    assert future.cancel()
    wait_until(lambda: stand_in.requests[0]['id'] in stand_in.cancelled)
    with pytest.raises(CancelledError):
        future.result(timeout=1)


def test_cancel_without_an_id_cancels_all_of_this_client(client, stand_in):
    with ReflexLlmClient(server='/stand_in') as other:
        futures = [client.ask_async(script(token('A'))) for _ in range(3)]
        other.ask_async(script(token('B')))
        wait_until(lambda: len(stand_in.requests) == 4)
        client.cancel()
        wait_until(lambda: len(stand_in.cancelled) == 3)
        theirs = {r['id'] for r in stand_in.requests if 'A' in r['prompt']}
        assert set(stand_in.cancelled) == theirs
    assert not any(future.done() for future in futures)


def test_a_node_that_goes_away_is_noticed(client, stand_in):
    future = client.ask_async(script(token('A')))
    wait_until(lambda: stand_in.requests)
    stand_in.close()
    assert future.exception(timeout=10).code == 'server_lost'


def test_a_request_waits_for_its_node():
    with ReflexLlmClient(server='/stand_in', server_timeout_s=20.0) as client:
        future = client.ask_async(script(token('late'), done('late')))
        time.sleep(0.3)
        stand_in = StandIn()
        try:
            assert future.result(timeout=20).text == 'late'
        finally:
            stand_in.close()


def test_no_node_is_an_error_with_its_name():
    with ReflexLlmClient(server='nobody', server_timeout_s=0.3) as client:
        with pytest.raises(LlmError, match='nobody') as caught:
            client.wait_for_server()
        assert caught.value.code == 'no_server'
        with pytest.raises(LlmError) as caught:
            client.ask('hello')
        assert caught.value.code == 'no_server'


def test_reset_says_when_it_is_refused(client):
    client.reset()
    with pytest.raises(LlmError, match='no'):
        client.reset()


def test_close_ends_what_is_pending_and_refuses_more(client):
    future = client.ask_async(script(token('A')))
    client.close()
    client.close()
    assert future.exception(timeout=1).code == 'closed'
    with pytest.raises(LlmError, match='closed'):
        client.ask_async('hello')


def test_asks_from_many_threads_do_not_mix(client):
    def ask(name):
        answers[name] = client.ask(script(token(name), 0.001, done(name)), timeout_s=30).text

    answers = {}
    threads = [threading.Thread(target=ask, args=[f'answer {n}']) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert answers == {f'answer {n}': f'answer {n}' for n in range(20)}


@pytest.fixture
def host():
    """Give a node as a user has it, in the default context, not yet spinning."""
    rclpy.init(args=[])
    node = rclpy.create_node('host', namespace='')
    yield node
    node.destroy_node()
    rclpy.try_shutdown()


def test_lives_in_a_node_of_the_user(stand_in, host):
    executor = MultiThreadedExecutor(num_threads=2)
    executor.add_node(host)
    client = ReflexLlmClient(host, server='stand_in')
    client.wait_for_server(10.0)
    future = client.ask_async(script(token('A'), done('A')))
    executor.spin_until_future_complete(future, timeout_sec=10)
    assert future.result(timeout=0).text == 'A'
    answers = []

    def ask_once():
        timer.cancel()
        answers.append(client.ask(script(done('B'))).text)

    # A callback that blocks is fine when another thread of the executor is free.
    timer = host.create_timer(0.01, ask_once)
    deadline = time.monotonic() + 10
    while not answers and time.monotonic() < deadline:
        executor.spin_once(timeout_sec=0.1)
    assert answers == ['B']
    client.close()
    executor.shutdown()
    assert not list(host.subscriptions)
    assert list(host.timers) == [timer]
