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

"""Every way in which a request can enter, wait, run and end."""

from collections.abc import Iterator
import random
import threading
import time
from typing import Any

import pytest
from reflex_llm_ros.engine.errors import (
    BadRequestError,
    ContextOverflowError,
    EngineError,
    OutOfMemoryError,
)
from reflex_llm_ros.engine.request import Done, GenerateRequest, Started, Token
from reflex_llm_ros.protocol import Error, Queued
from reflex_llm_ros.request_queue import QueueLimits
from scripted_engine import done, PATIENCE_S
from worker_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.worker.load()
    bench.worker.resume()
    yield bench
    assert bench.worker.close(PATIENCE_S)
    assert bench.engine.closed == 1


def test_a_request_goes_through_queued_started_tokens_done(bench: Bench) -> None:
    bench.engine.feed(Token('a', 1), Token('b', 2), done('ab'))
    bench.submit('r')
    assert bench.end('r') == done('ab')
    assert bench.bodies('r') == [
        Queued(0), Started(3, 0), Token('a', 1), Token('b', 2), done('ab')]


def test_the_engine_lives_on_one_thread_of_its_own(bench: Bench) -> None:
    bench.engine.feed(done(''))
    bench.submit('r')
    bench.end('r')
    assert bench.engine.thread != threading.get_ident()


def test_equal_priorities_run_in_order_of_arrival_and_higher_ones_first(bench: Bench) -> None:
    bench.run('running')
    bench.submit('first')
    bench.submit('second')
    bench.submit('urgent', priority=5)
    bench.submit('lazy', priority=-1)
    bench.submit('urgent too', priority=5)
    assert bench.bodies('first') == [Queued(0)]
    assert bench.bodies('urgent') == [Queued(0)]
    assert bench.bodies('lazy') == [Queued(3)]
    assert bench.bodies('urgent too') == [Queued(1)]
    bench.engine.feed(*[done('')] * 6)
    bench.end('lazy')
    assert bench.engine.prompts == [
        'running', 'urgent', 'urgent too', 'first', 'second', 'lazy']


def test_cancelling_the_running_request_keeps_what_it_said(bench: Bench) -> None:
    bench.run('r')
    bench.engine.feed(Token('half', 1))
    while len(bench.bodies('r')) < 3:
        time.sleep(0.001)
    assert bench.worker.cancel('r')
    assert bench.end('r') == done('half', 'cancelled')
    assert not bench.worker.cancel('r')


def test_a_cancelled_waiting_request_ends_without_a_start(bench: Bench) -> None:
    bench.run('running')
    bench.submit('waiting')
    assert bench.worker.cancel('waiting')
    queued, end = bench.bodies('waiting')
    assert (queued, end.text, end.finish_reason) == (Queued(0), '', 'cancelled')
    bench.engine.feed(done('x'))
    assert bench.end('running') == done('x')
    assert bench.engine.prompts == ['running']


def test_cancel_all_ends_the_running_and_all_that_wait(bench: Bench) -> None:
    bench.run('running')
    bench.submit('a')
    bench.submit('b')
    assert bench.worker.cancel_all() == 3
    for name in ('running', 'a', 'b'):
        end = bench.end(name)
        assert isinstance(end, Done)
        assert end.finish_reason == 'cancelled'
    assert bench.engine.prompts == ['running']
    assert bench.worker.cancel_all() == 0


def test_cancelling_an_unknown_id_changes_nothing(bench: Bench) -> None:
    bench.run('r')
    assert not bench.worker.cancel('other')
    bench.engine.feed(done('whole'))
    assert bench.end('r') == done('whole')


def test_an_interrupt_cancels_the_running_request_and_goes_before_all(bench: Bench) -> None:
    bench.run('running')
    bench.submit('urgent', priority=1000)
    bench.submit('stop', interrupt=True)
    assert bench.bodies('stop')[0] == Queued(0)
    end = bench.end('running')
    assert isinstance(end, Done)
    assert end.finish_reason == 'cancelled'
    bench.engine.feed(done(''), done(''))
    bench.end('urgent')
    assert bench.engine.prompts == ['running', 'stop', 'urgent']


def test_the_newest_of_several_interrupts_goes_first(bench: Bench) -> None:
    # The engine is inside a long step, so that all three wait at once.
    engine_may_go_on = threading.Event()
    inner = bench.engine.generate

    def stuck(*arguments: Any) -> Any:
        bench.engine.generating.set()
        assert engine_may_go_on.wait(PATIENCE_S)
        return inner(*arguments)

    bench.engine.generate = stuck  # type: ignore[method-assign]
    bench.run('running')
    bench.engine.generate = inner  # type: ignore[method-assign]
    for name in ('one', 'two', 'three'):
        bench.submit(name, interrupt=True)
    bench.engine.feed(*[done('')] * 3)
    engine_may_go_on.set()
    bench.end('one')
    assert bench.engine.prompts == ['running', 'three', 'two', 'one']


def test_a_full_queue_rejects(bench: Bench) -> None:
    limits = QueueLimits(size=2, drop_oldest=False)
    bench.run('running')
    bench.submit('a', limits)
    bench.submit('b', limits)
    bench.submit('c', limits, priority=9)
    assert bench.bodies('c') == [Error('queue_full', '2 requests wait already')]
    assert bench.worker.snapshot().waiting == 2
    assert bench.worker.snapshot().dropped == 1
    bench.engine.feed(*[done('')] * 3)
    bench.end('b')
    assert bench.engine.prompts == ['running', 'a', 'b']


def test_a_full_queue_drops_the_oldest_of_the_lowest_priority(bench: Bench) -> None:
    limits = QueueLimits(size=3, drop_oldest=True)
    bench.run('running')
    bench.submit('old urgent', limits, priority=2)
    bench.submit('old', limits)
    bench.submit('new', limits)
    bench.submit('newer', limits)
    dropped = bench.end('old')
    assert isinstance(dropped, Error)
    assert dropped.code == 'queue_full'
    bench.submit('lazy', limits, priority=-1)
    refused = bench.end('lazy')
    assert isinstance(refused, Error)
    assert refused.code == 'queue_full'
    bench.engine.feed(*[done('')] * 4)
    bench.end('newer')
    assert bench.engine.prompts == ['running', 'old urgent', 'new', 'newer']


def test_an_interrupt_gets_into_a_full_queue_that_rejects(bench: Bench) -> None:
    limits = QueueLimits(size=1, drop_oldest=False)
    bench.run('running')
    bench.submit('waiting', limits, priority=100)
    bench.submit('stop', limits, interrupt=True)
    dropped = bench.end('waiting')
    assert isinstance(dropped, Error)
    assert dropped.code == 'queue_full'
    bench.end('running')
    bench.engine.feed(done('stopped'))
    assert bench.end('stop') == done('stopped')


def test_what_an_idle_engine_is_about_to_take_does_not_count_as_waiting(bench: Bench) -> None:
    limits = QueueLimits(size=1, drop_oldest=False)
    for attempt in range(50):
        names = [f'{attempt} runs', f'{attempt} waits']
        bench.engine.feed(done(''), done(''))
        for name in names:
            bench.submit(name, limits)
        for name in names:
            assert bench.end(name) == done('')


def test_an_id_in_use_is_refused_under_another_id(bench: Bench) -> None:
    bench.run('same')
    bench.submit('waiting')
    bench.submit('same')
    bench.submit('waiting')
    refusals = [
        event for event in bench.events if isinstance(event.body, Error)]
    assert [event.body.code for event in refusals] == ['bad_request'] * 2
    assert 'same' in refusals[0].body.message
    assert not {event.id for event in refusals} & {'same', 'waiting'}
    bench.engine.feed(done('1'), done('2'))
    assert bench.end('same') == done('1')
    assert bench.end('waiting') == done('2')


def test_an_id_can_be_used_again_once_its_request_has_ended(bench: Bench) -> None:
    for _ in range(50):
        bench.engine.feed(done(''))
        bench.submit('same')
        bench.end('same')
        bench.events.clear()


@pytest.mark.parametrize('error', [
    BadRequestError('temperature is odd'), ContextOverflowError('100 tokens fit, not 120')])
def test_a_request_that_cannot_be_honoured_gets_an_error_and_the_next_is_served(
    bench: Bench, error: EngineError
) -> None:
    bench.engine.feed(error, done('next'))
    bench.submit('bad')
    bench.submit('good')
    assert bench.end('bad') == Error(error.code, str(error))
    assert bench.end('good') == done('next')
    assert bench.faults == []


@pytest.mark.parametrize('error, code', [
    (RuntimeError('device lost'), 'engine_error'),
    (EngineError('device lost'), 'engine_error'),
    (OutOfMemoryError('no memory'), 'out_of_memory'),
    (MemoryError('no memory'), 'out_of_memory'),
])
def test_an_engine_failure_ends_every_request_and_is_reported(
    bench: Bench, error: Exception, code: str
) -> None:
    bench.run('running')
    bench.submit('waiting')
    bench.engine.feed(error)
    end = bench.end('running')
    assert isinstance(end, Error)
    assert end.code == code
    assert str(error) in end.message
    waiting = bench.end('waiting')
    assert isinstance(waiting, Error)
    assert waiting.code == 'engine_error'
    assert bench.worker.close(PATIENCE_S)
    assert len(bench.faults) == 1
    assert str(error) in bench.faults[0]
    bench.submit('late')
    late = bench.end('late')
    assert isinstance(late, Error)
    assert late.code == 'engine_error'


def test_an_answer_that_just_stops_is_a_failure(bench: Bench) -> None:
    bench.engine.generate = lambda request, cancelled: iter(())  # type: ignore
    bench.submit('r')
    end = bench.end('r')
    assert isinstance(end, Error)
    assert end.code == 'engine_error'


def test_drain_ends_everything_before_it_returns_and_resume_serves_again(bench: Bench) -> None:
    bench.run('running')
    bench.submit('waiting')
    assert bench.worker.drain(PATIENCE_S)
    for name in ('running', 'waiting'):
        body = bench.bodies(name)[-1]
        assert isinstance(body, Error)
        assert body.code == 'cancelled_by_deactivate'
    bench.submit('inactive')
    assert bench.bodies('inactive')[0].code == 'not_active'
    bench.worker.resume()
    bench.engine.feed(done('again'))
    bench.submit('active')
    assert bench.end('active') == done('again')


def test_drain_says_when_the_engine_does_not_come_to_rest(bench: Bench) -> None:
    release = threading.Event()

    def stuck(request: GenerateRequest, cancelled: Any) -> Iterator[Done]:
        bench.engine.generating.set()
        assert release.wait(PATIENCE_S)
        yield done('', 'cancelled')

    bench.engine.generate = stuck  # type: ignore[method-assign, assignment]
    bench.run('r')
    assert not bench.worker.drain(0.01)
    assert not bench.worker.close(0.01)
    release.set()


def test_reset_happens_on_the_engine_thread_before_the_next_request(bench: Bench) -> None:
    bench.run('running')
    bench.submit('next')
    bench.worker.reset('default')
    assert bench.engine.resets == []
    bench.engine.feed(done(''))
    bench.end('running')
    bench.engine.feed(done(''))
    bench.end('next')
    assert bench.engine.resets == ['default']


def test_close_ends_running_and_waiting_requests(bench: Bench) -> None:
    bench.run('running')
    bench.submit('waiting')
    assert bench.worker.close(PATIENCE_S)
    for name in ('running', 'waiting'):
        end = bench.end(name)
        assert isinstance(end, Error)
        assert end.code == 'cancelled_by_deactivate'


def test_snapshot_follows_the_requests(bench: Bench) -> None:
    assert bench.worker.snapshot().memory == bench.engine.memory()
    bench.run('running')
    bench.submit('waiting')
    snapshot = bench.worker.snapshot()
    assert (snapshot.busy, snapshot.waiting, snapshot.answered) == (True, 1, 0)
    bench.engine.feed(done('a'), done('b'))
    bench.end('waiting')
    assert bench.worker.drain(PATIENCE_S)
    snapshot = bench.worker.snapshot()
    assert (snapshot.busy, snapshot.waiting, snapshot.answered) == (False, 0, 2)
    assert snapshot.last == done('b')
    assert snapshot.counters == {'answers': 2}


def test_every_request_ends_exactly_once_whatever_happens_at_once(bench: Bench) -> None:
    seed = random.randrange(2**32)
    print('seed', seed)
    limits = QueueLimits(size=3, drop_oldest=True)
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            bench.engine.feed(Token('t', 1), done('t'))
            time.sleep(0.002)

    def clients(number: int) -> None:
        chance = random.Random(seed + number)
        for turn in range(40):
            name = f'{number}/{turn}'
            bench.submit(
                name, limits,
                interrupt=chance.random() < 0.1, priority=chance.randrange(3))
            if chance.random() < 0.3:
                bench.worker.cancel(f'{chance.randrange(4)}/{turn}')
            if chance.random() < 0.02:
                bench.worker.cancel_all()
            time.sleep(chance.random() * 0.004)

    feeder = threading.Thread(target=feed)
    threads = [threading.Thread(target=clients, args=(number,)) for number in range(4)]
    for thread in [feeder, *threads]:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert bench.worker.drain(PATIENCE_S)
    stop.set()
    feeder.join(PATIENCE_S)
    for number in range(4):
        for turn in range(40):
            bench.end(f'{number}/{turn}')
