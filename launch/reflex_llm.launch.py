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

"""Start the language model node and, unless told not to, bring it to the active state."""

import os

from launch import LaunchContext, LaunchDescription, logging
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessStart
from launch.events import matches_action
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare
from lifecycle_msgs.msg import Transition


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments; the node itself is made when their values are known."""
    default_params_file = PathJoinSubstitution(
        [FindPackageShare('reflex_llm_ros'), 'config', 'reflex_llm.yaml'])
    return LaunchDescription([
        DeclareLaunchArgument(
            'model', default_value='',
            description='Path of the GGUF file; empty takes model.path from params_file.'),
        DeclareLaunchArgument(
            'name', default_value='reflex_llm',
            description='Name of the node; two models in one graph need two names.'),
        DeclareLaunchArgument(
            'namespace', default_value='',
            description='Namespace of the node.'),
        DeclareLaunchArgument(
            'params_file', default_value=default_params_file,
            description='YAML file with the parameters of the node.'),
        DeclareLaunchArgument(
            'backend', default_value='', choices=['', 'auto', 'cuda', 'cpu'],
            description='What computes; empty takes engine.backend from params_file.'),
        DeclareLaunchArgument(
            'autostart', default_value='true', choices=['true', 'false', 'True', 'False'],
            description='Configure and activate the node; false leaves it unconfigured, '
                        'for a lifecycle manager.'),
        DeclareLaunchArgument(
            'log_level', default_value='info',
            description='debug, info, warn, error or fatal.'),
        OpaqueFunction(function=start_node),
    ])


def start_node(context: LaunchContext) -> list:
    """Make the node's action and the event handlers that drive its lifecycle."""
    arguments = {
        name: LaunchConfiguration(name).perform(context)
        for name in ('model', 'name', 'namespace', 'params_file', 'backend',
                     'autostart', 'log_level')
    }
    # launch_ros only warns about a missing file, and the node would run on defaults.
    params_file = os.path.expanduser(arguments['params_file'])
    if not os.path.isfile(params_file):
        raise RuntimeError(
            f"params_file: there is no file '{params_file}'; give the path of a YAML file")
    # Values stay strings even where YAML would read a number, as in model:=7.
    overrides = {
        parameter: ParameterValue(value, value_type=str)
        for parameter, value in (
            ('model.path', arguments['model']),
            ('engine.backend', arguments['backend']))
        if value
    }
    node = LifecycleNode(
        package='reflex_llm_ros',
        executable='reflex_llm_node',
        name=arguments['name'],
        namespace=arguments['namespace'],
        parameters=[params_file, overrides] if overrides else [params_file],
        ros_arguments=['--log-level', arguments['log_level']],
        output='screen',
    )
    if arguments['autostart'].lower() == 'true':
        # Handlers first: a node may be up before an action that follows it is visited.
        return [*autostart_handlers(node), node]
    return [node]


def autostart_handlers(node: LifecycleNode) -> list:
    """Configure when the process starts, activate when that worked, say so when not."""
    return [
        RegisterEventHandler(OnProcessStart(
            target_action=node,
            on_start=[change_state(node, Transition.TRANSITION_CONFIGURE)])),
        # The start state matters: without it a deactivate would bounce back to active.
        RegisterEventHandler(OnStateTransition(
            target_lifecycle_node=node,
            start_state='configuring', goal_state='inactive',
            entities=[change_state(node, Transition.TRANSITION_ACTIVATE)])),
        *(RegisterEventHandler(OnStateTransition(
            target_lifecycle_node=node,
            start_state='configuring', goal_state=goal_state,
            entities=[OpaqueFunction(function=say_configure_failed, args=[node])]))
          for goal_state in ('unconfigured', 'errorprocessing')),
        RegisterEventHandler(OnStateTransition(
            target_lifecycle_node=node,
            start_state='activating', goal_state='active',
            entities=[OpaqueFunction(function=say_active, args=[node])])),
    ]


def change_state(node: LifecycleNode, transition_id: int) -> EmitEvent:
    """Ask the node for a transition."""
    return EmitEvent(event=ChangeState(
        lifecycle_node_matcher=matches_action(node), transition_id=transition_id))


def say_active(context: LaunchContext, node: LifecycleNode) -> None:
    """Tell the user that the robot can be talked to, and how."""
    logging.get_logger('reflex_llm.launch').info(
        f'{node.node_name} is active. Talk to it: '
        f'ros2 run reflex_llm_ros reflex_llm_chat --node {node.node_name}')


def say_configure_failed(context: LaunchContext, node: LifecycleNode) -> None:
    """
    Tell the user where things stand; the rest of the launch, the robot, goes on.

    There is no second attempt: what makes configure fail (a path, memory) does not heal
    by itself, and loading a model over and over would starve the robot.
    """
    logging.get_logger('reflex_llm.launch').error(
        f'{node.node_name} could not load its model and stays unconfigured; its own log line '
        'above says why. Mend that, then: '
        f'ros2 lifecycle set {node.node_name} configure')
