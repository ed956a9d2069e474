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

"""What the launch tests share: a launch in a domain of its own and the node's lifecycle."""

from collections.abc import Callable
import os
from pathlib import Path
import tempfile
import threading
import time
from typing import Any
import unittest

import pytest

pytest.importorskip(
    'launch_testing', reason='launch_testing is not installed: it comes with ROS 2, not as wheels')

from launch import LaunchDescription  # noqa: E402, I100
from launch.actions import IncludeLaunchDescription  # noqa: E402
from launch.launch_description_sources import PythonLaunchDescriptionSource  # noqa: E402
from launch.substitutions import PathJoinSubstitution  # noqa: E402
from launch_ros.substitutions import FindPackageShare  # noqa: E402
from launch_testing.actions import ReadyToTest  # noqa: E402
from lifecycle_msgs.msg import Transition  # noqa: E402
from lifecycle_msgs.srv import ChangeState, GetState  # noqa: E402
from rcl_interfaces.srv import SetParameters  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from reflex_llm_ros.client import ReflexLlmClient  # noqa: E402
from reflex_llm_ros.dds_domain import free_domain  # noqa: E402
from reflex_llm_ros.synthetic.model_shape import PRESETS  # noqa: E402
from reflex_llm_ros.synthetic.qwen3_gguf import generate  # noqa: E402

LAUNCH_FILES = Path(__file__).resolve().parents[2] / 'launch'
PATIENCE_S = 60.0

_folder = tempfile.TemporaryDirectory()


def tiny_model() -> str:
    """Return the path of a random Qwen3, small enough to load at once."""
    path = Path(_folder.name) / 'tiny.gguf'
    if not path.exists():
        generate(str(path), PRESETS['tiny'], seed=1)
    return str(path)


def launch(file: str, **arguments: str) -> LaunchDescription:
    """Include a launch file of the package, in a domain of its own on this machine alone."""
    os.environ['ROS_DOMAIN_ID'] = str(free_domain())
    if os.environ.get('ROS_DISTRO') == 'humble':
        os.environ['ROS_LOCALHOST_ONLY'] = '1'
    else:
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    return LaunchDescription([
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(PathJoinSubstitution(
                [FindPackageShare('reflex_llm_ros'), 'launch', file])),
            launch_arguments=arguments.items()),
        ReadyToTest(),
    ])


def wait_for(what: Callable[[], bool], saying: str) -> None:
    """Poll until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, f'waited {PATIENCE_S:g} s in vain: {saying}'
        time.sleep(0.05)


class LaunchedNode(unittest.TestCase):
    """Access to the node that was launched."""

    server = 'reflex_llm'

    def setUp(self) -> None:
        self.client = ReflexLlmClient(
            server=self.server, server_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S)
        self.client.wait_for_server()

    def tearDown(self) -> None:
        self.client.close()

    def state(self) -> str:
        response = self._call(GetState, 'get_state', GetState.Request())
        return str(response.current_state.label)

    def wait_for_state(self, label: str) -> None:
        wait_for(lambda: self.state() == label, f'the state {label}')

    def transition(self, name: str) -> bool:
        """Ask for a transition; return whether it led where it should."""
        transition = Transition(id=getattr(Transition, f'TRANSITION_{name.upper()}'))
        response = self._call(
            ChangeState, 'change_state', ChangeState.Request(transition=transition))
        return bool(response.success)

    def set_model(self, path: str) -> None:
        parameter = Parameter('model.path', value=path).to_parameter_msg()
        response = self._call(
            SetParameters, 'set_parameters', SetParameters.Request(parameters=[parameter]))
        assert [result.reason for result in response.results] == ['']

    def assert_answers(self) -> None:
        answer = self.client.ask('hello', max_tokens=3)
        assert answer.finish_reason in ('stop', 'length')

    def assert_stays(self, label: str) -> None:
        """Nothing that the launch does may change the state now."""
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            assert self.state() == label
            time.sleep(0.2)

    def _call(self, kind: Any, name: str, request: Any) -> Any:
        service = self.client.node.create_client(kind, f'{self.server}/{name}')
        try:
            assert service.wait_for_service(PATIENCE_S), f'no service {name}'
            answered = threading.Event()
            future = service.call_async(request)
            future.add_done_callback(lambda _: answered.set())
            assert answered.wait(PATIENCE_S), f'no answer of {name}'
            return future.result()
        finally:
            self.client.node.destroy_client(service)
