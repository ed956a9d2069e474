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

"""What a client makes of events: no text lost, none doubled, one end."""

import concurrent.futures
import queue
import random
import time

import pytest
from reflex_llm_ros.answer import (
    Answer,
    AnswerStream,
    AnswerTimeout,
    LlmError,
    Part,
    Patience,
    PendingAnswer,
)
from reflex_llm_ros.engine.request import Done, Reasoning, Started, Token
from reflex_llm_ros.protocol import Error, Event, Queued

PATIENCE = Patience(server_s=1.0, reply_s=2.0, answer_s=30.0)


def done(text, finish_reason='stop'):
    return Done(text=text, finish_reason=finish_reason, prompt_tokens=9, completion_tokens=3,
                ttft_ms=12.5, tokens_per_s=40.0, prefill_tokens_per_s=300.0)


def events_of(bodies):
    return [Event('a', seq, body) for seq, body in enumerate(bodies)]


def parts_of(pending):
    parts = []
    while True:
        part = pending.next_part(timeout_s=0)
        if part is None:
            return parts
        parts.append(part)


@pytest.fixture
def pending():
    return PendingAnswer('llm', 'a', '{"id": "a"}', PATIENCE)


def test_streams_parts_and_sums_them_up(pending):
    for event in events_of([
        Queued(0), Started(prompt_tokens=9, cached_tokens=4),
        Reasoning('hm, '), Reasoning('boxes'), Token('A ', 5), Token('box', 6), done('A box'),
    ]):
        pending.take(event)
    assert parts_of(pending) == [
        Part('hm, ', True), Part('boxes', True), Part('A ', False), Part('box', False)]
    assert pending.future.result(timeout=0) == Answer(
        text='A box', reasoning='hm, boxes', finish_reason='stop', prompt_tokens=9,
        cached_tokens=4, completion_tokens=3, ttft_ms=12.5, tokens_per_s=40.0)


def test_text_is_whole_and_in_order_whatever_events_are_lost():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(200):
        words = [rng.choice(['a', 'bé ', '漢', ' \n', 'xyz']) for _ in range(rng.randrange(12))]
        text = ''.join(words)
        events = events_of([
            Started(9, 0), *(Token(word, 1) for word in words), done(text)])
        kept = [event for event in events if event.final or rng.random() < 0.8]
        pending = PendingAnswer('llm', 'a', '', PATIENCE)
        for event in kept:
            pending.take(event)
        assert ''.join(part.text for part in parts_of(pending)) == text, f'seed {seed}'
        assert pending.future.result(timeout=0).text == text, f'seed {seed}'


def test_parts_come_before_the_end_does(pending):
    pending.take(Event('a', 0, Token('now', 1)))
    assert pending.next_part(timeout_s=0) == Part('now', False)
    with pytest.raises(queue.Empty):
        pending.next_part(timeout_s=0)
    assert not pending.future.done()


def test_an_error_event_is_an_exception_with_its_code(pending):
    pending.take(Event('a', 0, Error('queue_full', '8 requests wait already')))
    with pytest.raises(LlmError, match='8 requests wait already') as caught:
        pending.future.result(timeout=0)
    assert caught.value.code == 'queue_full'
    assert parts_of(pending) == []


def test_the_first_end_counts(pending):
    pending.fail(LlmError('closed', 'over'))
    pending.take(Event('a', 0, done('late')))
    pending.fail(LlmError('timeout', 'later'))
    assert pending.future.exception(timeout=0).code == 'closed'


def test_a_cancelled_future_stays_cancelled(pending):
    assert pending.future.cancel()
    pending.take(Event('a', 0, done('late')))
    assert pending.finished
    with pytest.raises(concurrent.futures.CancelledError):
        pending.future.result(timeout=0)


def test_the_request_goes_out_once(pending):
    assert pending.request_to_send() == '{"id": "a"}'
    assert pending.request_to_send() is None


def test_waiting_for_a_server_ends(pending):
    born = time.monotonic()
    assert pending.overdue(born, connected=False) is None
    assert pending.overdue(born + 1.5, connected=False).code == 'no_server'


def test_a_server_that_says_nothing_is_given_up(pending):
    pending.request_to_send()
    sent = time.monotonic()
    assert pending.overdue(sent + 1.5, connected=True) is None
    assert pending.overdue(sent + 2.5, connected=True).code == 'no_reply'
    pending.take(Event('a', 0, Queued(3)))
    assert pending.overdue(sent + 2.5, connected=True) is None


def test_an_answer_that_takes_too_long_is_given_up(pending):
    pending.request_to_send()
    pending.take(Event('a', 0, Queued(0)))
    error = pending.overdue(time.monotonic() + 31, connected=True)
    assert isinstance(error, AnswerTimeout)
    assert isinstance(error, TimeoutError)
    assert error.code == 'timeout'


def test_a_server_that_goes_away_is_noticed(pending):
    pending.request_to_send()
    pending.take(Event('a', 0, Queued(0)))
    assert pending.overdue(time.monotonic(), connected=False).code == 'server_lost'


class Calls(list):
    """Collects what it is called with."""

    def __call__(self, *arguments):
        self.append(arguments)


def test_stream_yields_the_answer_without_the_reasoning(pending):
    for event in events_of([Reasoning('hm'), Token('A', 1), Token('B', 2), done('AB')]):
        pending.take(event)
    cancelled = Calls()
    stream = AnswerStream(pending, check=Calls(), cancel=cancelled)
    assert list(stream) == ['A', 'B']
    assert stream.result().reasoning == 'hm'
    assert cancelled == []


def test_leaving_the_loop_cancels(pending):
    pending.take(Event('a', 0, Token('A', 1)))
    cancelled = Calls()
    for text in AnswerStream(pending, check=Calls(), cancel=cancelled):
        assert text == 'A'
        break
    assert cancelled == [('a',)]


def test_stream_raises_after_the_text_that_came(pending):
    pending.take(Event('a', 0, Token('A', 1)))
    pending.take(Event('a', 1, Error('engine_error', 'device lost')))
    texts = []
    with pytest.raises(LlmError, match='device lost'):
        texts.extend(AnswerStream(pending, check=Calls(), cancel=Calls()))
    assert texts == ['A']


@pytest.mark.parametrize('wait', [AnswerStream.result, lambda stream: list(stream)])
def test_waiting_checks_for_patience_itself(pending, wait):
    """In a blocked single-threaded executor no timer could."""
    stream = AnswerStream(
        pending, check=lambda: pending.fail(LlmError('no_reply', 'nothing')), cancel=Calls())
    with pytest.raises(LlmError, match='nothing'):
        wait(stream)
