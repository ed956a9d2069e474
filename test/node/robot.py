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

"""A node in its own process, and a robot's side of the conversation with it over DDS."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import json
import os
from pathlib import Path
import signal
from statistics import median
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, TypeVar

from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters
import rclpy
from rclpy.client import Client
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from reflex_llm_ros.cli.node_process import end
from reflex_llm_ros.dds_domain import free_domain
from reflex_llm_ros.protocol import encode_request, new_id
from std_msgs.msg import String
from std_srvs.srv import Trigger

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTED = [str(Path(__file__).with_name('scripted_node.py'))]
REAL = ['-m', 'reflex_llm_ros.node']
PATIENCE_S = 60.0

os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
Found = TypeVar('Found')


def wait_for(what: Callable[[], Found], saying: str, timeout_s: float = PATIENCE_S) -> Found:
    """Poll until there is something, and return it."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, f'waited {timeout_s:g} s in vain: {saying}'
        time.sleep(0.002)


class NodeProcess:
    """The node, started with parameters; what it logs goes to a file."""

    def __init__(self, program: list[str], parameters: dict[str, Any]) -> None:
        self.domain = free_domain()
        self._log = tempfile.TemporaryFile('w+b')
        arguments = [*program, '--ros-args']
        for name, value in parameters.items():
            arguments += ['-p', f'{name}:={json.dumps(value)}']
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdout=self._log, stderr=subprocess.STDOUT,
            cwd=REPOSITORY, env={
                **os.environ, 'ROS_DOMAIN_ID': str(self.domain),
                'PYTHONPATH': os.pathsep.join([str(REPOSITORY), *sys.path])})

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal and return the exit code: 1 where nothing in the process could end it."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        """End the process whatever a test has done to it."""
        end(self.process)


class Robot:
    """Publishes prompts, keeps everything that the node says."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.events: list[dict[str, Any]] = []
        self.said: dict[str, list[str]] = {
            topic: [] for topic in ('tokens', 'response', 'reasoning', 'status')}
        self.diagnostics: list[DiagnosticArray] = []
        self.context = Context()
        rclpy.init(context=self.context, domain_id=node.domain)
        self.ros = rclpy.create_node(
            f'robot_{new_id()}', context=self.context, enable_rosout=False,
            start_parameter_services=False)
        deep = QoSProfile(depth=1000)
        self.ros.create_subscription(
            String, '/reflex_llm/events',
            lambda message: self.events.append(json.loads(message.data)), deep)
        for topic, texts in self.said.items():
            qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
            self.ros.create_subscription(
                String, f'/reflex_llm/{topic}',
                lambda message, texts=texts: texts.append(message.data),
                qos if topic == 'status' else deep)
        self.ros.create_subscription(
            DiagnosticArray, '/diagnostics', self.diagnostics.append, deep)
        self.publishers = {
            topic: self.ros.create_publisher(String, f'/reflex_llm/{topic}', QoSProfile(depth=10))
            for topic in ('prompt', 'request', 'cancel')}
        self._clients: dict[str, Client] = {}
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.ros)
        self._spinner = threading.Thread(target=self._executor.spin, daemon=True)
        self._spinner.start()

    def close(self) -> None:
        self._executor.shutdown()
        self._spinner.join(PATIENCE_S)
        rclpy.shutdown(context=self.context)

    def meet(self) -> None:
        """Wait until every topic reaches the other side: an answer proves it."""
        for publisher in self.publishers.values():
            wait_for(
                lambda publisher=publisher: self.alive() and publisher.get_subscription_count(),
                'the node to subscribe')
        for topic in ('/reflex_llm/tokens', '/reflex_llm/response', '/reflex_llm/reasoning'):
            wait_for(lambda topic=topic: self.ros.count_publishers(topic), topic)

        def answered() -> bool:
            before = len(self.events)
            self.publishers['request'].publish(String(data='hello?'))
            time.sleep(0.1)
            return len(self.events) > before

        wait_for(answered, 'an event')
        time.sleep(0.3)
        self.events.clear()

    def alive(self) -> bool:
        assert self.node.process.poll() is None, f'the node is gone:\n{self.node.log()}'
        return True

    # --- services

    def call(self, kind: Any, name: str, request: Any, timeout_s: float = PATIENCE_S) -> Any:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self.ros.create_client(kind, f'/reflex_llm/{name}')
        assert client.wait_for_service(PATIENCE_S), f'no service {name}'
        future = client.call_async(request)
        wait_for(lambda: self.alive() and future.done(), f'an answer of {name}', timeout_s)
        return future.result()

    def transition(self, name: str, timeout_s: float = PATIENCE_S) -> bool:
        request = ChangeState.Request(transition=Transition(
            id=getattr(Transition, f'TRANSITION_{name.upper()}')))
        success: bool = self.call(ChangeState, 'change_state', request, timeout_s).success
        return success

    def state(self) -> str:
        label: str = self.call(GetState, 'get_state', GetState.Request()).current_state.label
        return label

    def activate(self) -> None:
        assert self.transition('configure'), self.node.log()
        assert self.transition('activate'), self.node.log()

    def set_parameters(self, **values: Any) -> list[str]:
        """Set parameters (``sampling__top_k=3``); return the reasons against."""
        request = SetParameters.Request(parameters=[
            Parameter(name.replace('__', '.'), value=value).to_parameter_msg()
            for name, value in values.items()])
        results = self.call(SetParameters, 'set_parameters', request).results
        return [result.reason for result in results]

    def get(self, name: str) -> Any:
        request = GetParameters.Request(names=[name])
        return self.call(GetParameters, 'get_parameters', request).values[0]

    def describe(self, name: str) -> Any:
        request = DescribeParameters.Request(names=[name])
        return self.call(DescribeParameters, 'describe_parameters', request).descriptors[0]

    def trigger(self, name: str) -> str:
        response = self.call(Trigger, name, Trigger.Request())
        assert response.success, response.message
        message: str = response.message
        return message

    # --- topics

    def publish(self, topic: str, data: str | bytes) -> None:
        self.publishers[topic].publish(
            String(data=data) if isinstance(data, str) else data)

    def ask(self, prompt: str = '', **options: Any) -> str:
        """Send a request and return its id."""
        request_id: str = options.pop('id', None) or new_id()
        if prompt:
            options['prompt'] = prompt
        self.publish('request', encode_request(id=request_id, **options))
        return request_id

    def of(self, request_id: str) -> list[dict[str, Any]]:
        """All events of a request, whose numbers must be complete."""
        events = [event for event in list(self.events) if event['id'] == request_id]
        assert [event['seq'] for event in events] == list(range(len(events))), events
        return events

    def until(self, kind: str, request_id: str) -> dict[str, Any]:
        """Wait for an event of a type."""
        return wait_for(
            lambda: self.alive() and next(
                (event for event in self.of(request_id) if event['type'] == kind), None),
            f'{kind} of {request_id}, got {self.of(request_id)}')

    def end_of(self, request_id: str) -> dict[str, Any]:
        """Wait for the last event, of which there must be one."""
        end = wait_for(
            lambda: self.alive() and next(iter(self._ends(request_id)), None),
            f'the end of {request_id}, got {self.of(request_id)}')
        assert len(self._ends(request_id)) == 1
        assert self.of(request_id)[-1] is end
        return end

    def last_words(self, request_id: str) -> dict[str, Any]:
        """Wait for the last event of a request to a node that is gone."""
        return wait_for(
            lambda: next(iter(self._ends(request_id)), None), f'the end of {request_id}', 10.0)

    def _ends(self, request_id: str) -> list[dict[str, Any]]:
        return [event for event in self.of(request_id) if event['type'] in ('done', 'error')]

    def stranger(self) -> dict[str, Any]:
        """Wait for the end of the only request there is, whose id is not known."""
        return wait_for(lambda: self.alive() and next(
            (event for event in list(self.events) if event['type'] in ('done', 'error')), None),
            'an event')

    def status(self, **expected: Any) -> dict[str, Any]:
        """Wait until the latest status has these values."""
        def latest() -> dict[str, Any] | None:
            self.alive()
            status = json.loads(self.said['status'][-1]) if self.said['status'] else {}
            return status if expected.items() <= status.items() else None
        return wait_for(latest, f'a status with {expected}, got {self.said["status"][-3:]}')

    def forget(self) -> None:
        """Drop what has been said about requests so far."""
        time.sleep(0.05)
        self.events.clear()
        for topic in ('tokens', 'response', 'reasoning'):
            self.said[topic].clear()

    def call_while(self, request_id: str, calls: int) -> None:
        """Call services, which do not wait for a request that runs, then cancel it."""
        latencies: dict[str, list[float]] = {'get_state': [], 'set_parameters': []}
        for turn in range(calls):
            before = time.monotonic()
            self.call(GetState, 'get_state', GetState.Request())
            between = time.monotonic()
            self.set_parameters(sampling__top_k=turn)
            latencies['get_state'].append(between - before)
            latencies['set_parameters'].append(time.monotonic() - between)
        before = time.monotonic()
        self.publish('cancel', request_id)
        assert self.end_of(request_id)['finish_reason'] == 'cancelled', 'it ended before'
        latencies['cancel to done'] = [time.monotonic() - before]
        for name, seconds in latencies.items():
            print(f'{name}: median {median(seconds) * 1000:.1f} ms, '
                  f'longest {max(seconds) * 1000:.1f} ms')


@contextmanager
def active_robot(program: list[str], parameters: dict[str, Any]) -> Iterator[Robot]:
    """Run an active node, which must end cleanly."""
    robot = Robot(NodeProcess(program, parameters))
    try:
        robot.meet()
        robot.activate()
        yield robot
        assert robot.node.end() == 0, robot.node.log()
    finally:
        robot.node.stop()
        robot.close()
