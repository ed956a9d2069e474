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
The engine's thread: requests go in through a bounded queue, events come out of a callback.

One thread creates, uses and closes the engine, because a device context belongs to the
thread that made it. Every other thread only changes the queue, and so never waits for the
engine; ``load``, ``drain`` and ``close`` are the exceptions, and they say so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
import threading
import traceback
from typing import Protocol

from reflex_llm_ros.engine.engine import EngineInfo
from reflex_llm_ros.engine.errors import BadRequestError, ContextOverflowError, EngineError
from reflex_llm_ros.engine.memory import MemoryReport, return_freed_memory
from reflex_llm_ros.engine.request import Done, GenerateRequest
from reflex_llm_ros.engine.request import Event as EngineEvent
from reflex_llm_ros.protocol import Error, Event, EventBody, new_id, Queued, Request
from reflex_llm_ros.request_queue import QueueLimits, RequestQueue, Ticket

CANCELLED = Done(
    text='', finish_reason='cancelled', prompt_tokens=0, completion_tokens=0,
    ttft_ms=0.0, tokens_per_s=0.0, prefill_tokens_per_s=0.0)
DEACTIVATED = Error('cancelled_by_deactivate', 'the node was deactivated during this request')

Progress = Callable[[float, str], None]
"""Told the fraction done, 0 to 1, and what is being done."""


class EngineLike(Protocol):
    """What the worker asks of an engine."""

    info: EngineInfo

    def generate(
        self, request: GenerateRequest, cancelled: Callable[[], bool]
    ) -> Iterator[EngineEvent]:
        """Answer a request; the last event is Done."""

    def reset(self, conversation: str) -> None:
        """Forget a conversation."""

    def memory(self) -> MemoryReport:
        """Say what is held and what is free."""

    def counters(self) -> dict[str, int]:
        """Count what diagnostics show."""

    def close(self) -> None:
        """Free everything."""


class LoadCancelled(Exception):
    """The worker was closed while it loaded the model."""


@dataclass(frozen=True)
class Snapshot:
    """
    The worker at one moment.

    ``last`` is the end of the newest answer; ``memory`` and ``counters`` are the engine's
    as of then; ``fault`` is what broke the engine.
    """

    busy: bool = False
    waiting: int = 0
    answered: int = 0
    dropped: int = 0
    last: Done | None = None
    info: EngineInfo | None = None
    memory: MemoryReport | None = None
    counters: dict[str, int] = field(default_factory=dict)
    fault: str = ''


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, EngineError) else f'{type(error).__name__}: {error}'


class Worker:
    """
    Runs requests one after another on a thread of its own.

    Parameters
    ----------
    make_engine
        Loads the model; called on the engine's thread with a :data:`Progress`, which
        raises :class:`LoadCancelled` once the worker is closed.
    on_progress
        Told how far loading is, on the engine's thread.
    on_event
        Told every event, on the thread where it came about, in the order of ``seq`` for a
        request. It must neither raise nor wait: the queue may be locked meanwhile.
    on_fault
        Told, on the engine's thread, a line and a traceback when the engine failed. The
        worker then answers every request with an error and wants to be closed.

    """

    def __init__(
        self,
        *,
        make_engine: Callable[[Progress], EngineLike],
        on_progress: Progress,
        on_event: Callable[[Event], None],
        on_fault: Callable[[str, str], None],
    ) -> None:
        self._make_engine = make_engine
        self._on_progress = on_progress
        self._on_event = on_event
        self._on_fault = on_fault

        self._changed = threading.Condition()
        self._waiting = RequestQueue()
        self._running: Ticket | None = None
        self._resets: list[str] = []
        self._arrivals = 0
        self._busy = False
        self._open = False
        self._loaded = False
        self._closing = False
        self._load_error: BaseException | None = None
        self._snapshot = Snapshot()
        # A daemon, so that a device call that never returns cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name='engine', daemon=True)

    # --- called by the owner

    def load(self) -> None:
        """
        Start the thread and wait until the model is loaded.

        Raises
        ------
        LoadCancelled
            When ``close`` was called meanwhile.
        Exception
            Whatever ``make_engine`` raised.

        """
        with self._changed:
            if self._closing:
                raise LoadCancelled
            self._thread.start()
            self._changed.wait_for(
                lambda: self._loaded or self._load_error or self._closing or self._snapshot.fault)
            # Its traceback holds the half-made engine: it must not outlive this call.
            error, self._load_error = self._load_error, None
            if error is not None:
                raise error
            if self._closing:
                raise LoadCancelled
            if self._snapshot.fault:
                raise EngineError(self._snapshot.fault)

    def resume(self) -> None:
        """Take requests from now on."""
        with self._changed:
            self._open = True

    def drain(self, timeout_s: float) -> bool:
        """
        Take no more requests, end those there are, and wait until the last has ended.

        Returns
        -------
        bool
            Whether the engine came to rest in time; all final events are out then.

        """
        with self._changed:
            self._open = False
            self._end_all(DEACTIVATED)
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """
        End all requests, close the engine and end the thread.

        Returns
        -------
        bool
            Whether that was done in time.

        """
        with self._changed:
            self._open = False
            self._closing = True
            self._end_all(DEACTIVATED)
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- called by anyone, at any time

    def submit(self, request: Request, limits: QueueLimits) -> None:
        """Queue a request, or answer it with an error."""
        with self._changed:
            self._arrivals += 1
            ticket = Ticket(request, self._arrivals)
            refusal = self._refusal(ticket, limits)
            if refusal is not None:
                self._emit(ticket, refusal)
                return
            if request.interrupt and self._running is not None:
                self._running.cut_short(CANCELLED)
            self._emit(ticket, Queued(self._waiting.add(ticket)))
            self._changed.notify_all()

    def cancel(self, request_id: str) -> bool:
        """Cancel a request that runs or waits; False when there is none of that id."""
        with self._changed:
            if self._running is not None and self._running.request.id == request_id:
                self._running.cut_short(CANCELLED)
                return True
            ticket = self._waiting.remove(request_id)
            if ticket is not None:
                self._emit(ticket, CANCELLED)
            return ticket is not None

    def cancel_all(self) -> int:
        """Cancel what runs and what waits; say how many."""
        with self._changed:
            return self._end_all(CANCELLED)

    def reset(self, conversation: str) -> None:
        """Forget a conversation before the next request runs."""
        with self._changed:
            self._resets.append(conversation)
            self._changed.notify_all()

    def snapshot(self) -> Snapshot:
        """Say how things stand."""
        with self._changed:
            return replace(
                self._snapshot, busy=self._running is not None, waiting=len(self._waiting))

    # --- with the lock held

    def _emit(self, ticket: Ticket, body: EventBody) -> None:
        event = Event(ticket.request.id, ticket.events, body)
        ticket.events += 1
        self._on_event(event)

    def _end_all(self, ending: Done | Error) -> int:
        ended = self._waiting.clear()
        for ticket in ended:
            self._emit(ticket, ending)
        if self._running is None:
            return len(ended)
        self._running.cut_short(ending)
        return len(ended) + 1

    def _refusal(self, ticket: Ticket, limits: QueueLimits) -> Error | None:
        if self._snapshot.fault:
            return Error('engine_error', f'the engine failed before: {self._snapshot.fault}')
        if not self._open:
            return Error('not_active', 'the node is not active: configure and activate it')
        known = [*self._waiting, self._running] if self._running else self._waiting
        request_id = ticket.request.id
        if any(other.request.id == request_id for other in known):
            # Under its own id the error would end the request that came first.
            ticket.request = replace(ticket.request, id=new_id())
            return Error('bad_request', f'id {request_id} already waits or runs')
        # What an idle engine is about to take does not wait.
        if len(self._waiting) < limits.size + (not self._busy):
            return None
        self._snapshot = replace(self._snapshot, dropped=self._snapshot.dropped + 1)
        full = Error('queue_full', f'{len(self._waiting)} requests wait already')
        loser = self._waiting.who_yields(ticket, limits)
        if loser is ticket:
            return full
        self._waiting.remove(loser.request.id)
        self._emit(loser, Error('queue_full', 'dropped to make room for another request'))
        return None

    # --- on the engine's thread

    def _run(self) -> None:
        self._serve()
        return_freed_memory()

    def _serve(self) -> None:
        try:
            engine = self._make_engine(self._progress)
        except BaseException as error:
            with self._changed:
                self._load_error = error
                self._changed.notify_all()
            return
        try:
            self._observe(engine)
            with self._changed:
                self._loaded = True
                self._changed.notify_all()
            while self._step(engine):
                pass
        except Exception as error:
            self._fail(error)
        finally:
            try:
                engine.close()
            except Exception as error:
                self._on_fault(_line(error), traceback.format_exc())

    def _progress(self, fraction: float, step: str) -> None:
        if self._closing:
            raise LoadCancelled
        self._on_progress(fraction, step)

    def _step(self, engine: EngineLike) -> bool:
        """Do the next thing there is to do; False when that is to end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or self._resets or len(self._waiting) > 0)
            if self._closing:
                return False
            self._busy = True
            resets, self._resets = self._resets, []
            ticket = self._waiting.take()
            self._running = ticket
        for conversation in resets:
            engine.reset(conversation)
        if ticket is not None:
            ending = self._answer(engine, ticket)
            self._observe(engine, ending)
            self._finish(ticket, ending)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return True

    def _answer(self, engine: EngineLike, ticket: Ticket) -> Done | Error:
        """Generate, telling every event but the last, which is returned."""
        if ticket.ending is not None:
            return ticket.ending
        try:
            for body in engine.generate(
                    ticket.request.generate, lambda: ticket.ending is not None):
                if isinstance(body, Done):
                    cut = body.finish_reason == 'cancelled' and ticket.ending
                    return ticket.ending if isinstance(cut, Error) else body
                self._emit(ticket, body)
        except (BadRequestError, ContextOverflowError) as error:
            return Error(error.code, str(error))
        raise EngineError('the engine ended an answer without saying so')

    def _finish(self, ticket: Ticket, ending: Done | Error) -> None:
        # The id is free again before anyone can have read the last event.
        with self._changed:
            self._running = None
        self._emit(ticket, ending)

    def _observe(self, engine: EngineLike, ending: Done | Error | None = None) -> None:
        memory, counters = engine.memory(), dict(engine.counters())
        with self._changed:
            self._snapshot = replace(
                self._snapshot, info=engine.info, memory=memory, counters=counters)
            if isinstance(ending, Done):
                self._snapshot = replace(
                    self._snapshot, last=ending, answered=self._snapshot.answered + 1)

    def _fail(self, error: Exception) -> None:
        code = 'out_of_memory' if isinstance(error, MemoryError) else 'engine_error'
        code = error.code if isinstance(error, EngineError) else code
        line = _line(error)
        with self._changed:
            self._snapshot = replace(self._snapshot, fault=line)
            ticket = self._running
        if ticket is not None:
            self._finish(ticket, Error(code, line))
        with self._changed:
            self._end_all(Error('engine_error', f'the engine failed before: {line}'))
            self._busy = False
            self._changed.notify_all()
        self._on_fault(line, traceback.format_exc())
