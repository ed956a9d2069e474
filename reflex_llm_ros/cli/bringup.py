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

"""Bring a language model node to the active state through its lifecycle services."""

from collections.abc import Callable
import threading
import time
from typing import Any

from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.client import Client
from reflex_llm_ros.client import LlmError, ReflexLlmClient

POLL_S = 0.1
REPLY_S = 10.0
STATUS_S = 2.0


def activate(client: ReflexLlmClient, while_waiting: Callable[[], None]) -> None:
    """
    Configure and activate the node, whichever of the two it still needs.

    ``while_waiting`` is called every now and then: a model may take a minute to load.

    Raises
    ------
    LlmError
        ``engine_error`` with the node's own reason when it cannot be brought up,
        ``server_lost`` when it goes away, ``no_reply`` when it does not tell its state.

    """
    state = _state(client, while_waiting)
    if state == State.PRIMARY_STATE_UNCONFIGURED:
        _change(client, Transition.TRANSITION_CONFIGURE, 'configure', while_waiting)
        state = State.PRIMARY_STATE_INACTIVE
    if state == State.PRIMARY_STATE_INACTIVE:
        _change(client, Transition.TRANSITION_ACTIVATE, 'activate', while_waiting)
    elif state != State.PRIMARY_STATE_ACTIVE:
        raise LlmError('engine_error', f'{client.server} has been shut down; start it again')


def _state(client: ReflexLlmClient, while_waiting: Callable[[], None]) -> int:
    reply = _call(client, GetState, 'get_state', GetState.Request(), while_waiting)
    state: int = reply.current_state.id
    return state


def _change(
    client: ReflexLlmClient, transition: int, name: str, while_waiting: Callable[[], None],
) -> None:
    request = ChangeState.Request(transition=Transition(id=transition))
    reply = _call(client, ChangeState, 'change_state', request, while_waiting)
    if not reply.success:
        raise LlmError(
            'engine_error', f'{client.server} could not {name}: {_reason(client)}')


def _reason(client: ReflexLlmClient) -> str:
    """Return why the node failed; its status may come a moment after its reply."""
    deadline = time.monotonic() + STATUS_S
    while time.monotonic() < deadline:
        if client.status is not None and client.status.state == 'error':
            return client.status.reason
        time.sleep(POLL_S)
    return 'its log says why'


def _call(
    client: ReflexLlmClient, kind: Any, name: str, request: Any,
    while_waiting: Callable[[], None],
) -> Any:
    service: Client[Any, Any] = client.node.create_client(kind, f'{client.server}/{name}')
    try:
        if not service.wait_for_service(timeout_sec=REPLY_S):
            raise LlmError('no_reply', f'{client.server} has no service {name}')
        answered = threading.Event()
        future = service.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        while not answered.wait(POLL_S):
            if not client.server_is_there():
                raise LlmError('server_lost', f'{client.server} went away; its log says why')
            while_waiting()
        return future.result()
    finally:
        client.node.destroy_client(service)
