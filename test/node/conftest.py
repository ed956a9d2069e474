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

"""Nodes for the tests, each in its own process and DDS domain."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from robot import active_robot, NodeProcess, Robot, SCRIPTED

Start = Callable[..., Robot]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start nodes that the test may break; all are gone afterwards."""
    robots: list[Robot] = []

    def start(program: list[str] = SCRIPTED, **parameters: Any) -> Robot:
        robot = Robot(NodeProcess(program, {
            name.replace('__', '.'): value for name, value in parameters.items()}))
        robots.append(robot)
        robot.meet()
        return robot

    yield start
    for robot in robots:
        robot.node.stop()
        robot.close()


@pytest.fixture(scope='module')
def shared_robot() -> Iterator[Robot]:
    parameters = {'model.path': 'model.gguf', 'queue.size': 3, 'diagnostics.period_s': 0.1}
    with active_robot(SCRIPTED, parameters) as robot:
        yield robot


@pytest.fixture
def robot(shared_robot: Robot) -> Iterator[Robot]:
    """Share one active node; a test leaves it active and idle."""
    shared_robot.forget()
    yield shared_robot
    shared_robot.trigger('cancel_all')
    shared_robot.status(state='ready', queue=0)
