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
Chat with a language model node from a terminal, over its topics.

::

    reflex_llm_chat                      a conversation; Ctrl-D ends it
    reflex_llm_chat "What is a robot?"   one answer
    reflex_llm_chat < prompts.txt        one answer a line
    reflex_llm_chat --node /robot/llm    another node than /reflex_llm
    reflex_llm_chat --drive              configure and activate the node first

The answer goes to the standard output and everything else (progress, speed, errors) to the
standard error, so that an answer can be piped on. Ctrl-C cancels an answer, once more ends
the program. In a conversation ``/reset`` makes the node forget it.

The exit code is 0 when all is well, 1 when there is no answer, 2 for wrong arguments and
130 after Ctrl-C.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
import math
import signal
import sys
import threading
import time

from rclpy.utilities import remove_ros_args
from reflex_llm_ros.cli import bringup
from reflex_llm_ros.cli.screen import Screen
from reflex_llm_ros.client import AnswerStream, LlmError, ReflexLlmClient
from reflex_llm_ros.protocol import DEFAULT_CONVERSATION

DISCOVERY_S = 5.0
POLL_S = 0.05
ACTIVATION_S = 2.0
SERVING = ('ready', 'busy')


def main(args: list[str] | None = None) -> int:
    """Run the program and return its exit code."""
    arguments = parse(remove_ros_args(sys.argv)[1:] if args is None else args)
    with ReflexLlmClient(server=arguments.node, server_timeout_s=DISCOVERY_S) as client:
        return chat(client, arguments.prompt, drive=arguments.drive)


def chat(client: ReflexLlmClient, prompt: str | None = None, *, drive: bool = False) -> int:
    """Answer one prompt, or converse when there is none; return the exit code."""
    screen = Screen()
    try:
        connect(client, screen, drive)
        if prompt is None:
            return converse(client, screen)
        return 0 if answer(client, screen, prompt, conversation='') else 1
    except LlmError as error:
        screen.error(str(error))
        return 1
    except KeyboardInterrupt:
        screen.end_line()
        return 130


def parse(args: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog='reflex_llm_chat', description='Chat with a language model node.',
        epilog='In a conversation: /reset forgets it, Ctrl-C cancels an answer, Ctrl-D ends.')
    parser.add_argument('prompt', nargs='?', help='ask this alone; without it, a conversation')
    parser.add_argument('--node', default='/reflex_llm', metavar='NAME',
                        help='name of the node with its namespace (default: %(default)s)')
    parser.add_argument('--drive', action='store_true',
                        help='configure and activate the node first, through its lifecycle '
                             'services')
    return parser.parse_args(args)


def connect(client: ReflexLlmClient, screen: Screen, drive: bool) -> None:
    """Find the node and see to it that it answers; raises LlmError with what to do."""
    with screen.waiting(f'looking for {client.server}'):
        try:
            client.wait_for_server()
        except LlmError as error:
            raise LlmError(error.code, f'{error}.\n{where_to_look(client)}') from None
    with screen.loading() as show:
        if drive:
            bringup.activate(client, while_waiting=lambda: show(client.status))
            return
        while client.status is not None and client.status.state == 'loading':
            show(client.status)
            time.sleep(POLL_S)
        # Between configure and activate a launch file takes a moment.
        deadline = time.monotonic() + ACTIVATION_S
        while state_of(client) == 'inactive' and time.monotonic() < deadline:
            time.sleep(POLL_S)
    if client.status is not None and client.status.state not in SERVING:
        raise LlmError('not_active', how_to_activate(client))


def state_of(client: ReflexLlmClient) -> str:
    """Return the state in the node's last status, empty before there is one."""
    return client.status.state if client.status is not None else ''


def where_to_look(client: ReflexLlmClient) -> str:
    """Say which nodes there are, or how to start one."""
    names = language_models(
        [name for name, _ in client.node.get_topic_names_and_types()])
    if names:
        return f'There is {" and ".join(names)}: choose with --node.'
    return ('Start one: ros2 launch reflex_llm_ros demo.launch.py, and check that '
            'ROS_DOMAIN_ID is the same here and there.')


def language_models(topics: list[str]) -> list[str]:
    """Return the names of the nodes that have the topics of a language model node."""
    return sorted(
        topic[:-len('/tokens')] for topic in topics
        if topic.endswith('/tokens') and topic[:-len('tokens')] + 'events' in topics)


def how_to_activate(client: ReflexLlmClient) -> str:
    """Say what keeps the node from answering and what to type."""
    status = client.status
    assert status is not None
    commands = {
        'unconfigured': ['configure', 'activate'],
        'error': ['configure', 'activate'],
        'inactive': ['activate'],
    }.get(status.state, [])
    what = {
        'unconfigured': 'has no model loaded',
        'inactive': 'has its model loaded but is not active',
        'error': f'failed: {status.reason}',
    }.get(status.state, f'is {status.state}: start it again')
    lines = [f'{client.server} {what}']
    if commands:
        lines[0] += '.'
        lines.append('Give this program --drive, or type:')
        lines += [f'  ros2 lifecycle set {client.server} {command}' for command in commands]
    return '\n'.join(lines)


def converse(client: ReflexLlmClient, screen: Screen) -> int:
    """Answer one line after the other; return the exit code."""
    model = client.status.model if client.status is not None else ''
    screen.greet(model, client.server)
    all_answered = True
    while True:
        line = screen.ask()
        if line is None:
            return 0 if all_answered else 1
        if line == '/reset':
            client.reset()
            screen.note('forgotten; the next prompt starts a new conversation')
        elif line.startswith('/') and line[1:].isalpha():
            screen.note(f'{line} is no command; /reset forgets the conversation, Ctrl-D ends it')
        elif line:
            answered = answer(client, screen, line, conversation=DEFAULT_CONVERSATION)
            all_answered = all_answered and answered


def answer(client: ReflexLlmClient, screen: Screen, prompt: str, conversation: str) -> bool:
    """Show one answer; False when there was none."""
    try:
        stream = client.stream(prompt, conversation=conversation, timeout_s=math.inf)
        show(stream, screen)
        screen.statistics(stream.result())
    except LlmError as error:
        screen.error(f'{error.code}: {error}')
        return False
    return True


def show(stream: AnswerStream, screen: Screen) -> None:
    """Print what comes; the first Ctrl-C cancels it, a second one is the caller's."""
    with interrupt_calls(stream.cancel), screen.answer() as write:
        while (part := stream.next_part()) is not None:
            write(part)


@contextmanager
def interrupt_calls(function: Callable[[], None]) -> Iterator[None]:
    """
    Call a function at the first Ctrl-C in the block, raise KeyboardInterrupt at the next.

    An exception at once could strike in the middle of a print, and half of it would be
    lost or printed again.
    """
    def on_interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        # On a thread of its own, which can wait for locks that the interrupted code holds.
        threading.Thread(target=function).start()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == '__main__':
    sys.exit(main())
