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

"""The parameter files, as the node reads them."""

from pathlib import Path

from conftest import Start
import pytest
from rclpy.parameter import parameter_value_to_python
from robot import REPOSITORY, SCRIPTED
import yaml

FILES = sorted((REPOSITORY / 'config').glob('*.yaml'))


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name)
def test_the_node_takes_every_value_of_the_file(start: Start, path: Path) -> None:
    robot = start([*SCRIPTED, '--ros-args', '--params-file', str(path)])
    in_file = yaml.safe_load(path.read_text(encoding='utf-8'))['/**']['ros__parameters']
    # ROS has no type for an empty list.
    expected = {name: None if value == [] else value for name, value in in_file.items()}
    assert {name: parameter_value_to_python(robot.get(name)) for name in expected} == expected
    # What the file says is enough to get going, but for the model's own path.
    assert robot.set_parameters(model__path='model.gguf') == ['']
    robot.activate()
    assert robot.end_of(robot.ask('count 2'))['text'] == '0 1 '
