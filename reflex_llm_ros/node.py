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

"""The lifecycle node: ROS in and out, nothing else."""

from collections.abc import Callable
from dataclasses import replace
import functools
import os
import sys
import traceback
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from reflex_llm_ros.diagnostics import diagnostic_status
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.engine import Engine
from reflex_llm_ros.engine.errors import EngineError
from reflex_llm_ros.engine.request import Done, Reasoning, Token
from reflex_llm_ros.parameters import descriptor, reason_against, Settings, settings, TABLE
from reflex_llm_ros.process import run
from reflex_llm_ros.protocol import (
    DEFAULT_CONVERSATION,
    Defaults,
    Error,
    Event,
    event_to_json,
    parse_request,
    Request,
    request_from_prompt,
    RequestError,
    Status,
    status_to_json,
)
from reflex_llm_ros.raw_string import text_of
from reflex_llm_ros.worker import EngineLike, LoadCancelled, Progress, Snapshot, Worker
from std_msgs.msg import String
from std_srvs.srv import Trigger

DRAIN_S = 30.0
CLOSE_S = 30.0
NOT_ACTIVE = Error('not_active', 'the node is not configured and active')

RELIABLE = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=10,
    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)
STREAM = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=1000,
    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)
LATCHED = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=1,
    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)

LoadEngine = Callable[[EngineConfig, Progress], EngineLike]
Transition = Callable[[Any, LifecycleState], TransitionCallbackReturn]


def logged(transition: Transition) -> Transition:
    """Log what a transition raises: rclpy turns it into ERROR without a word."""
    @functools.wraps(transition)
    def wrapper(node: 'ReflexLlmNode', state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except Exception as error:
            node.fail(f'{transition.__name__}: {error}', traceback.format_exc())
            return TransitionCallbackReturn.ERROR
    return wrapper


class ReflexLlmNode(LifecycleNode):
    """
    A language model as a lifecycle node.

    The publishers of the answer are lifecycle publishers. ``~/events`` and ``~/status`` are
    not, because an inactive node has to be able to say that it is inactive. All entities
    live as long as the node: destroying one under a running executor is a race.
    """

    def __init__(self, *, load_engine: LoadEngine = Engine, **kwargs: Any) -> None:
        super().__init__('reflex_llm', **kwargs)
        self._load_engine = load_engine
        self._worker: Worker | None = None
        self._stopping = False
        self._status = Status('unconfigured')
        self._told: Status | None = None
        self._warned_inactive = False
        self._dropped_before = 0

        self.add_on_set_parameters_callback(self._check_parameters)
        for row in TABLE:
            self.declare_parameter(row.name, row.default, descriptor(row))

        self._events = self.create_publisher(String, '~/events', STREAM)
        self._status_publisher = self.create_publisher(String, '~/status', LATCHED)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', RELIABLE)
        self._tokens = self.create_lifecycle_publisher(String, '~/tokens', STREAM)
        self._reasoning = self.create_lifecycle_publisher(String, '~/reasoning', STREAM)
        self._response = self.create_lifecycle_publisher(String, '~/response', RELIABLE)

        # Lifecycle and parameter services are in the default group, which a configure keeps
        # busy while the model loads.
        requests = MutuallyExclusiveCallbackGroup()
        control = MutuallyExclusiveCallbackGroup()
        reports = MutuallyExclusiveCallbackGroup()
        self.create_subscription(
            String, '~/prompt', functools.partial(self._on_request, request_from_prompt),
            RELIABLE, callback_group=requests, raw=True)
        self.create_subscription(
            String, '~/request', functools.partial(self._on_request, parse_request),
            RELIABLE, callback_group=requests, raw=True)
        self.create_subscription(
            String, '~/cancel', self._on_cancel, RELIABLE, callback_group=control)
        self.create_service(
            Trigger, '~/cancel_all', self._on_cancel_all, callback_group=control)
        self.create_service(Trigger, '~/reset', self._on_reset, callback_group=control)
        self._diagnostics_timer = self.create_timer(
            self._settings().diagnostics_period_s, self._publish_diagnostics,
            callback_group=reports)
        # Status is told from one place and read afresh there, so that the last one is true.
        self._status_changed = self.create_guard_condition(
            self._publish_status, callback_group=reports)
        self._engine_failed = self.create_guard_condition(
            self._process_fault, callback_group=self.default_callback_group)
        self._status_changed.trigger()

    def stop(self, timeout_s: float) -> bool:
        """
        End all requests, telling so, and close the engine; False when that takes longer.

        For the end of the process: after it nothing can be configured any more.
        """
        self._stopping = True
        worker = self._worker
        return worker is None or worker.close(timeout_s)

    def destroy_node(self) -> None:
        """Destroy the node and what rclpy leaves of it: the state machine."""
        super().destroy_node()
        # It holds the DDS participant, whose shared memory would outlive the process.
        self._state_machine.destroy_when_not_in_use()

    def fail(self, reason: str, trace: str = '') -> None:
        """Log a failure, and show it in status and diagnostics until the next configure."""
        self.get_logger().error(f'{reason}\n{trace}' if trace else reason)
        self._set_status(Status('error', model=self._status.model, reason=reason))

    # --- lifecycle

    @logged
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the model. FAILURE, with the reason logged, when that cannot be done."""
        now = self._settings()
        if not now.engine.model_path:
            self.fail('set the parameter model.path to a GGUF file')
            return TransitionCallbackReturn.FAILURE
        self._diagnostics_timer.timer_period_ns = int(now.diagnostics_period_s * 1e9)
        self._dropped_before = 0
        self._set_status(Status('loading', model=os.path.basename(now.engine.model_path)))
        self._worker = Worker(
            make_engine=functools.partial(self._load_engine, now.engine),
            on_progress=self._on_progress,
            on_event=self._on_event,
            on_fault=self._on_fault,
        )
        if self._stopping:
            self._worker.close(0.0)
        try:
            self._worker.load()
        except (EngineError, OSError, MemoryError) as error:
            self._free()
            self.fail(f'cannot load the model: {error}')
            return TransitionCallbackReturn.FAILURE
        except LoadCancelled:
            return TransitionCallbackReturn.FAILURE
        self._set_status(Status('inactive', model=self._status.model))
        return super().on_configure(state)

    @logged
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the gate."""
        result = super().on_activate(state)
        self._warned_inactive = False
        self._set_status(Status('ready', model=self._status.model))
        assert self._worker is not None
        self._worker.resume()
        return result

    @logged
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End all requests, tell their last events, and only then go quiet."""
        assert self._worker is not None
        if not self._worker.drain(DRAIN_S):
            self.fail(f'the engine did not come to rest within {DRAIN_S:g} s')
            return TransitionCallbackReturn.ERROR
        if self._worker.snapshot().fault:
            return TransitionCallbackReturn.ERROR
        self._set_status(Status('inactive', model=self._status.model))
        return super().on_deactivate(state)

    @logged
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the model and everything with it."""
        if self._worker is not None and self._worker.snapshot().fault:
            return TransitionCallbackReturn.ERROR
        if not self._free():
            return TransitionCallbackReturn.ERROR
        self._set_status(Status('unconfigured'))
        return super().on_cleanup(state)

    @logged
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything, whatever the state."""
        freed = self._free()
        self._set_status(Status('finalized'))
        super().on_deactivate(state)
        return TransitionCallbackReturn.SUCCESS if freed else TransitionCallbackReturn.ERROR

    @logged
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything: SUCCESS leads to unconfigured, from where configure tries again."""
        freed = self._free()
        super().on_deactivate(state)
        # An engine that hangs still holds its memory; a second one would not fit beside it.
        return TransitionCallbackReturn.SUCCESS if freed else TransitionCallbackReturn.FAILURE

    def _free(self) -> bool:
        worker = self._worker
        if worker is None:
            return True
        if not worker.close(CLOSE_S):
            self.fail(f'the engine could not be closed within {CLOSE_S:g} s')
            return False
        self._worker = None
        return True

    def _on_fault(self, reason: str, trace: str) -> None:
        self.fail(f'the engine failed: {reason}', trace)
        self._engine_failed.trigger()

    def _process_fault(self) -> None:
        """
        Take the node through error processing after an engine failure.

        rclpy has no trigger for it: the transition out of the present state is requested,
        and its callback returns ERROR because of the failure.
        """
        if self._worker is None or not self._worker.snapshot().fault:
            return
        if self._tokens.is_activated:
            self.trigger_deactivate()
        else:
            self.trigger_cleanup()

    # --- parameters

    def _settings(self) -> Settings:
        return settings({row.name: self.get_parameter(row.name).value for row in TABLE})

    def _check_parameters(self, proposed: list['Parameter[Any]']) -> SetParametersResult:
        current = {
            parameter.name: self.get_parameter(parameter.name).value
            for parameter in proposed if self.has_parameter(parameter.name)}
        reason = reason_against(
            {parameter.name: parameter.value for parameter in proposed},
            current, unconfigured=self._worker is None)
        return SetParametersResult(successful=not reason, reason=reason)

    # --- in

    def _on_request(self, read: Callable[[str, Defaults], Request], raw: bytes) -> None:
        try:
            now = self._settings()
            request = read(text_of(raw), now.defaults)
        except RequestError as error:
            self._on_event(Event(error.id, 0, Error(error.code, str(error))))
            return
        worker = self._worker
        if worker is None:
            self._on_event(Event(request.id, 0, NOT_ACTIVE))
        else:
            worker.submit(request, now.queue)

    def _on_cancel(self, message: String) -> None:
        if self._worker is None:
            return
        if message.data:
            self._worker.cancel(message.data)
        else:
            self._worker.cancel_all()

    def _on_cancel_all(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        count = self._worker.cancel_all() if self._worker else 0
        response.success = True
        response.message = f'cancelled {count} requests'
        return response

    def _on_reset(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        response.success = self._worker is not None
        response.message = 'no model is loaded'
        if self._worker is not None:
            self._worker.reset(DEFAULT_CONVERSATION)
            response.message = 'the next prompt starts a new conversation'
        return response

    # --- out; from any thread

    def _on_event(self, event: Event) -> None:
        body = event.body
        self._publish(self._events, event_to_json(event))
        if isinstance(body, Token):
            self._publish(self._tokens, body.text)
        elif isinstance(body, Reasoning):
            self._publish(self._reasoning, body.text)
        else:
            self._status_changed.trigger()
        if isinstance(body, Done):
            self._publish(self._response, body.text)
        elif isinstance(body, Error):
            self._log_error(event.id, body)

    def _log_error(self, request_id: str, error: Error) -> None:
        if error.code == 'not_active':
            if self._warned_inactive:
                return
            self._warned_inactive = True
        self.get_logger().warning(f'request {request_id}: {error.code}: {error.message}')

    def _on_progress(self, fraction: float, step: str) -> None:
        percent = int(100 * fraction)
        if (percent, step) != (self._status.percent, self._status.step):
            if step != self._status.step:
                self.get_logger().info(f'loading: {step}')
            self._set_status(Status(
                'loading', model=self._status.model, percent=percent, step=step))

    def _set_status(self, status: Status) -> None:
        self._status = status
        self._status_changed.trigger()

    def _publish_status(self) -> None:
        status = self._status_now(self._snapshot())
        if status != self._told:
            self._told = status
            self._publish(self._status_publisher, status_to_json(status))

    def _publish_diagnostics(self) -> None:
        now = self._snapshot()
        message = DiagnosticArray()
        message.header.stamp = self.get_clock().now().to_msg()
        message.status = [diagnostic_status(
            self.get_fully_qualified_name(), self._status_now(now), now, self._dropped_before)]
        self._dropped_before = now.dropped
        self._diagnostics.publish(message)

    def _snapshot(self) -> Snapshot:
        worker = self._worker
        return Snapshot() if worker is None else worker.snapshot()

    def _status_now(self, now: Snapshot) -> Status:
        busy = self._status.state == 'ready' and (now.busy or now.waiting > 0)
        return replace(
            self._status, state='busy' if busy else self._status.state, queue=now.waiting)

    def _publish(self, publisher: 'Publisher[String]', text: str) -> None:
        try:
            publisher.publish(String(data=text))
        except Exception as error:
            # The engine's thread must outlive a middleware that is gone.
            self.get_logger().error(f'cannot publish on {publisher.topic_name}: {error}')


def main(args: list[str] | None = None) -> int:
    """Run the node until it is told to end."""
    return run(ReflexLlmNode, ReflexLlmNode.stop, args)


if __name__ == '__main__':
    sys.exit(main())
