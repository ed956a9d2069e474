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

"""What a client makes of the events of one request; no ROS here."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
import queue
import threading
import time
from typing import NamedTuple

from reflex_llm_ros.engine.request import Done, Reasoning, Started, Token
from reflex_llm_ros.protocol import Error, Event

CHECK_PERIOD_S = 0.1


class LlmError(Exception):
    """
    A request that ended without an answer.

    ``code`` is an error code of the ROS interface (``bad_request``, ``queue_full``,
    ``not_active``, ``context_overflow``, ``out_of_memory``, ``engine_error``,
    ``cancelled_by_deactivate``) or one of the client's own: ``no_server`` (nobody
    listens), ``no_reply`` (somebody listens and says nothing), ``server_lost`` (the node
    went away in the middle), ``timeout`` and ``closed``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AnswerTimeout(LlmError, TimeoutError):
    """The answer was not complete in time; the request has been cancelled."""

    def __init__(self, message: str) -> None:
        super().__init__('timeout', message)


def no_server(server: str, waited_s: float) -> LlmError:
    """Return the error for a node that is not there."""
    return LlmError('no_server', f'no node {server} was found in {waited_s:g} s')


@dataclass(frozen=True)
class Answer:
    """
    A whole answer.

    ``finish_reason`` is ``stop``, ``length`` (``max_tokens`` or the context is used up) or
    ``cancelled``; ``ttft_ms`` is the time to the first token in ms as the node measured it,
    ``tokens_per_s`` the speed after that; ``cached_tokens`` of the ``prompt_tokens`` were
    known from an earlier prompt.
    """

    text: str
    reasoning: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_ms: float
    tokens_per_s: float


class Part(NamedTuple):
    """A piece of streamed text, of the answer or of the reasoning before it."""

    text: str
    reasoning: bool


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds: for a server, for its first event, for the whole answer."""

    server_s: float = 5.0
    reply_s: float = 10.0
    answer_s: float = 120.0


class PendingAnswer:
    """
    One answer in the making: events go in, parts and in the end an :class:`Answer` come out.

    No text is lost or doubled when events are: from a gap in the sequence numbers on,
    text is held back until ``done`` brings the whole of it.

    Methods may be called from any thread.
    """

    def __init__(self, server: str, request_id: str, request: str, patience: Patience) -> None:
        self.id = request_id
        self.future: Future[Answer] = Future()
        self._server = server
        self._request = request
        self._patience = patience
        self._born = time.monotonic()
        self._sent_at: float | None = None
        # No SimpleQueue: on Python 3.10 its get() can forget its timeout.
        self._parts: queue.Queue[Part | None] = queue.Queue()
        self._lock = threading.Lock()
        self._finished = False
        self._next_seq = 0
        self._gap = False
        self._cached_tokens = 0
        self._streamed_chars = 0
        self._reasoning: list[str] = []

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to come."""
        return self._finished

    @property
    def unacknowledged(self) -> bool:
        """Whether the request is on its way and nothing has come back yet."""
        return self._sent_at is not None and self._next_seq == 0

    def request_to_send(self) -> str | None:
        """Return the request the first time, None ever after: it must go out once."""
        with self._lock:
            if self._sent_at is not None:
                return None
            self._sent_at = time.monotonic()
            return self._request

    def take(self, event: Event) -> None:
        """Take the next event of this request."""
        self._gap = self._gap or event.seq != self._next_seq
        self._next_seq = event.seq + 1
        body = event.body
        if isinstance(body, Started):
            self._cached_tokens = body.cached_tokens
        elif isinstance(body, Token):
            if not self._gap:
                self._stream(body.text)
        elif isinstance(body, Reasoning):
            self._reasoning.append(body.text)
            self._parts.put(Part(body.text, reasoning=True))
        elif isinstance(body, Error):
            self.fail(LlmError(body.code, body.message))
        elif isinstance(body, Done):
            self._stream(body.text[self._streamed_chars:])
            self._finish(Answer(
                text=body.text,
                reasoning=''.join(self._reasoning),
                finish_reason=body.finish_reason,
                prompt_tokens=body.prompt_tokens,
                cached_tokens=self._cached_tokens,
                completion_tokens=body.completion_tokens,
                ttft_ms=body.ttft_ms,
                tokens_per_s=body.tokens_per_s,
            ))

    def fail(self, error: LlmError) -> None:
        """End without an answer; nothing happens when the end has come already."""
        self._finish(error)

    def overdue(self, now: float, connected: bool) -> LlmError | None:
        """
        Say what has been waited for too long at ``now`` (``time.monotonic()``), if anything.

        ``connected`` tells whether the node is there.
        """
        patience = self._patience
        if self._sent_at is None:
            if not connected and now - self._born > patience.server_s:
                return no_server(self._server, patience.server_s)
        elif not connected:
            return LlmError(
                'server_lost', f'{self._server} went away before the answer was complete')
        elif self.unacknowledged and now - self._sent_at > patience.reply_s:
            return LlmError(
                'no_reply',
                f'no reply from {self._server} in {patience.reply_s:g} s; '
                'a client that lives in a node needs '
                'that node to spin meanwhile: inside a callback use ask_async')
        if now - self._born > patience.answer_s:
            return AnswerTimeout(f'the answer was not complete after {patience.answer_s:g} s')
        return None

    def next_part(self, timeout_s: float) -> Part | None:
        """
        Wait for the next piece of text; None after the last one.

        Raises
        ------
        queue.Empty
            When nothing came within ``timeout_s``.

        """
        part = self._parts.get(timeout=timeout_s)
        if part is None:
            self._parts.put(None)
        return part

    def _stream(self, text: str) -> None:
        if text:
            self._streamed_chars += len(text)
            self._parts.put(Part(text, reasoning=False))

    def _finish(self, end: Answer | LlmError) -> None:
        with self._lock:
            if self._finished:
                return
            self._finished = True
        # False when the user has cancelled the future, which then has its result.
        if self.future.set_running_or_notify_cancel():
            if isinstance(end, Answer):
                self.future.set_result(end)
            else:
                self.future.set_exception(end)
        self._parts.put(None)


class AnswerStream:
    """
    An answer as it is made: iterating yields its text.

    Leaving the loop early, by ``break`` or by an exception, cancels the request.
    """

    def __init__(
        self, pending: PendingAnswer, check: Callable[[], None], cancel: Callable[[str], None],
    ) -> None:
        self._pending = pending
        self._check = check
        self._cancel = cancel

    def __iter__(self) -> Iterator[str]:
        try:
            part = self.next_part()
            while part is not None:
                if not part.reasoning:
                    yield part.text
                part = self.next_part()
        finally:
            if not self._pending.finished:
                self.cancel()
        self.result()

    def next_part(self) -> Part | None:
        """Wait for the next piece of answer or reasoning; None after the last one."""
        while True:
            try:
                return self._pending.next_part(CHECK_PERIOD_S)
            except queue.Empty:
                self._check()

    def result(self) -> Answer:
        """
        Wait for the whole answer.

        Raises
        ------
        LlmError
            When there is none.

        """
        while not wait([self._pending.future], CHECK_PERIOD_S).done:
            self._check()
        return self._pending.future.result()

    def cancel(self) -> None:
        """Let the answer end with what it has so far (``finish_reason`` ``cancelled``)."""
        self._cancel(self._pending.id)
