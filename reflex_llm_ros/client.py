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
Talk to the language model from another node, with no JSON in sight.

On its own, in a script::

    with ReflexLlmClient() as client:
        for text in client.stream('Name three things a robot can carry.'):
            print(text, end='', flush=True)

Inside a node, whose executor delivers the answer (``ask_async`` never blocks, so it may be
called from any callback)::

    self.llm = ReflexLlmClient(self)
    future = self.llm.ask_async('Where is the kitchen?', max_tokens=40)
    future.add_done_callback(lambda future: self.say(future.result().text))
"""

import atexit
from concurrent.futures import Future
import threading
import time
from typing import Any

import rclpy
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.client import Client
from rclpy.clock import Clock, ClockType  # type: ignore[attr-defined]
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy, QoSHistoryPolicy, QoSProfile, QoSReliabilityPolicy
from reflex_llm_ros.answer import (
    Answer,
    AnswerStream,
    AnswerTimeout,
    CHECK_PERIOD_S,
    LlmError,
    no_server,
    Part,
    Patience,
    PendingAnswer,
)
from reflex_llm_ros.engine.errors import EngineError
from reflex_llm_ros.protocol import (
    encode_request,
    event_from_json,
    new_id,
    Status,
    status_from_json,
)
from std_msgs.msg import String
from std_srvs.srv import Trigger

__all__ = ['Answer', 'AnswerStream', 'AnswerTimeout', 'LlmError', 'Part', 'ReflexLlmClient']

DISCOVERY_S = 0.5
# The node's subscription holds 10 requests and would drop the oldest of a larger burst
# without a word.
MAX_ON_THE_WAY = 5


def qos(depth: int, durability: QoSDurabilityPolicy = QoSDurabilityPolicy.VOLATILE) -> QoSProfile:
    """Return the quality of service of the node's topics."""
    return QoSProfile(
        history=QoSHistoryPolicy.KEEP_LAST, depth=depth,
        reliability=QoSReliabilityPolicy.RELIABLE, durability=durability)


class ReflexLlmClient:
    """
    A client of one language model node.

    Parameters
    ----------
    node
        The node to live in; its executor must spin for answers to arrive. None makes a
        node of its own, with its own context and thread.
    server
        Name of the language model node, relative to the namespace of ``node``.
    server_timeout_s
        How long a request waits for the node to be there.
    timeout_s
        How long an answer may take from the call to its last token, unless a call says
        otherwise.

    ``ask``, ``ask_async`` and ``stream`` take the keys of a request as keyword arguments:
    ``messages`` (in place of the prompt), ``conversation``, ``system``, ``max_tokens``,
    ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``repeat_penalty``, ``seed``, ``stop``,
    ``thinking``, ``priority`` and ``interrupt``. What goes wrong is raised as
    :class:`LlmError`.
    """

    def __init__(
        self,
        node: Node | None = None,
        *,
        server: str = 'reflex_llm',
        server_timeout_s: float = 5.0,
        timeout_s: float = 120.0,
    ) -> None:
        self._own_node: _SpinningNode | None = None
        if node is None:
            self._own_node = _SpinningNode()
            node = self._own_node.node
        self.node = node
        self.server = server
        self.status: Status | None = None
        self._server_timeout_s = server_timeout_s
        self._timeout_s = timeout_s
        self._pending: dict[str, PendingAnswer] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._matched_at: float | None = None

        group = MutuallyExclusiveCallbackGroup()
        # The events first, see server_is_there.
        self._events = self.node.create_subscription(
            String, f'{server}/events', self._on_event, qos(1000), callback_group=group)
        self._status = self.node.create_subscription(
            String, f'{server}/status', self._on_status,
            qos(1, QoSDurabilityPolicy.TRANSIENT_LOCAL), callback_group=group)
        self._requests = self.node.create_publisher(String, f'{server}/request', qos(10))
        self._cancel = self.node.create_publisher(String, f'{server}/cancel', qos(10))
        self._reset: Client[Trigger.Request, Trigger.Response] = self.node.create_client(
            Trigger, f'{server}/reset', callback_group=group)
        # Patience is counted in real seconds, whatever use_sim_time says.
        self._timer = self.node.create_timer(
            CHECK_PERIOD_S, self._check, callback_group=group,
            clock=Clock(clock_type=ClockType.STEADY_TIME))

    def __enter__(self) -> 'ReflexLlmClient':
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def wait_for_server(self, timeout_s: float | None = None) -> None:
        """
        Wait until the node is there, active or not.

        Raises
        ------
        LlmError
            ``no_server`` when it is not there within ``timeout_s`` (by default
            ``server_timeout_s``).

        """
        timeout_s = self._server_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        while not self.server_is_there():
            if time.monotonic() > deadline:
                raise no_server(self.server, timeout_s)
            time.sleep(0.02)

    def server_is_there(self) -> bool:
        """Return whether the node is connected in both directions."""
        matched = (
            self._requests.get_subscription_count() > 0
            and self._cancel.get_subscription_count() > 0
            and self.node.count_publishers(self._events.topic_name) > 0)
        if not matched:
            self._matched_at = self.status = None
            return False
        if self._matched_at is None:
            self._matched_at = time.monotonic()
        # That we see the node does not mean that it sees us, and what it publishes before
        # it does is lost. A status that has arrived proves it: its reader was announced
        # after that of the events. Without a spinning executor there is only time to go by.
        return self.status is not None or time.monotonic() - self._matched_at > DISCOVERY_S

    def ask_async(
        self, prompt: str | None = None, *, timeout_s: float | None = None, **request: Any,
    ) -> Future[Answer]:
        """
        Ask without waiting; ``cancel()`` of the future cancels the request too.

        Raises
        ------
        LlmError
            At once when the node would refuse the request; everything later is the
            future's exception.

        """
        return self._submit(prompt, timeout_s, request).future

    def ask(
        self, prompt: str | None = None, *, timeout_s: float | None = None, **request: Any,
    ) -> Answer:
        """
        Ask and wait for the whole answer.

        Not for callbacks of a single-threaded executor, which could not deliver the answer.

        Raises
        ------
        LlmError
            When there is no answer; ``AnswerTimeout`` when it took too long.

        """
        return self.stream(prompt, timeout_s=timeout_s, **request).result()

    def stream(
        self, prompt: str | None = None, *, timeout_s: float | None = None, **request: Any,
    ) -> AnswerStream:
        """Ask and return the answer as it is made; raises as :meth:`ask` does."""
        return AnswerStream(
            self._submit(prompt, timeout_s, request), check=self._check, cancel=self.cancel)

    def cancel(self, request_id: str | None = None) -> None:
        """Cancel one request, or all of this client; they end with what they have so far."""
        with self._lock:
            # The latest first: none may start because the one before it has ended.
            ids = [*reversed(self._pending)] if request_id is None else [request_id]
        for each in ids:
            self._cancel.publish(String(data=each))

    def reset(self, timeout_s: float = 5.0) -> None:
        """
        Make the node forget its default conversation.

        Raises
        ------
        LlmError
            ``no_server`` or ``no_reply`` when nobody answers within ``timeout_s``, and
            ``engine_error`` when the node refuses.

        """
        if not self._reset.wait_for_service(timeout_sec=timeout_s):
            raise LlmError('no_server', f'no service {self._reset.srv_name}')
        answered = threading.Event()
        future = self._reset.call_async(Trigger.Request())
        future.add_done_callback(lambda _: answered.set())
        answered.wait(timeout_s)
        response = future.result()
        if response is None:
            self._reset.remove_pending_request(future)
            raise LlmError('no_reply', f'no reply from {self._reset.srv_name}')
        if not response.success:
            raise LlmError('engine_error', response.message)

    def close(self) -> None:
        """Cancel what is pending and take everything out of the node; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self.cancel()
        for pending in self._all_pending():
            pending.fail(LlmError('closed', 'the client was closed'))
        if self._own_node is not None:
            self._own_node.close()
            return
        self.node.destroy_timer(self._timer)
        self.node.destroy_client(self._reset)
        for subscription in (self._events, self._status):
            self.node.destroy_subscription(subscription)
        for publisher in (self._requests, self._cancel):
            self.node.destroy_publisher(publisher)

    # --- from here on for this file alone

    def _submit(
        self, prompt: str | None, timeout_s: float | None, request: dict[str, Any],
    ) -> PendingAnswer:
        if self._closed:
            raise LlmError('closed', 'the client was closed')
        request_id = request.pop('id', None) or new_id()
        try:
            text = encode_request(id=request_id, prompt=prompt, **request)
        except EngineError as error:
            raise LlmError(error.code, str(error)) from None
        pending = PendingAnswer(self.server, request_id, text, Patience(
            server_s=self._server_timeout_s,
            answer_s=self._timeout_s if timeout_s is None else timeout_s))
        with self._lock:
            self._pending[request_id] = pending
        pending.future.add_done_callback(
            lambda future: self._on_future_done(request_id, future))
        self._check()
        return pending

    def _on_future_done(self, request_id: str, future: Future[Answer]) -> None:
        with self._lock:
            self._pending.pop(request_id, None)
        if future.cancelled() and not self._closed:
            self.cancel(request_id)

    def _check(self) -> None:
        """Send what waits for the server, give up on what has waited too long."""
        connected = self.server_is_there()
        waiting = self._all_pending()
        on_the_way = sum(pending.unacknowledged for pending in waiting)
        for pending in waiting:
            if connected and on_the_way < MAX_ON_THE_WAY:
                request = pending.request_to_send()
                if request is not None:
                    self._requests.publish(String(data=request))
                    on_the_way += 1
            error = pending.overdue(time.monotonic(), connected)
            if error is not None:
                self.cancel(pending.id)
                pending.fail(error)

    def _all_pending(self) -> list[PendingAnswer]:
        with self._lock:
            return list(self._pending.values())

    def _on_event(self, message: String) -> None:
        try:
            event = event_from_json(message.data)
        except ValueError:
            return  # of a newer node than this client knows, or of no node at all
        with self._lock:
            pending = self._pending.get(event.id)
        if pending is not None:
            pending.take(event)
            if event.seq == 0:
                self._check()

    def _on_status(self, message: String) -> None:
        try:
            self.status = status_from_json(message.data)
        except ValueError:
            return


class _SpinningNode:
    """A node with a context and a thread of its own, for programs that have neither."""

    def __init__(self) -> None:
        # Not the default context: that is the program's, and so are its signal handlers.
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        # The program's own arguments may rename its node, but must not rename this one.
        self.node = rclpy.create_node(
            'reflex_llm_client', context=self._context, start_parameter_services=False,
            cli_args=['--ros-args', '-r', f'__node:=reflex_llm_client_{new_id()}'])
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()
        # A thread that still spins while the interpreter takes rclpy down crashes it.
        atexit.register(self.close)

    def close(self) -> None:
        atexit.unregister(self.close)
        self._executor.shutdown()
        self._thread.join()
        self.node.destroy_node()
        self._context.try_shutdown()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass
