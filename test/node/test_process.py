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

"""A node's process ends in time, whatever hangs in its ending."""

from collections.abc import Iterator
from contextlib import contextmanager
import os
import signal
import subprocess
import sys
import time
from typing import IO

import pytest
from reflex_llm_ros.dds_domain import free_domain
from robot import PATIENCE_S, REPOSITORY

HANGING = """
import sys, threading, time
from rclpy.node import Node
from reflex_llm_ros.process import run

class Hanging(Node):
    def __init__(self):
        super().__init__('hanging')
        print('up', flush=True)

    def destroy_node(self):
        if sys.argv[1] == 'destroying':
            threading.Event().wait()
        super().destroy_node()

def stop(node, timeout_s):
    if sys.argv[1] == 'stopping':
        threading.Event().wait()
    if sys.argv[1] == 'a thread':
        threading.Thread(target=threading.Event().wait).start()
    return True

sys.exit(run(Hanging, stop, []))
"""


@contextmanager
def running(
    program: str, *arguments: str
) -> Iterator[tuple['subprocess.Popen[bytes]', IO[bytes]]]:
    """Run a program that meets no other node; gives the process and what it writes."""
    process = subprocess.Popen(
        [sys.executable, '-c', program, *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE,
        env={**os.environ, 'ROS_DOMAIN_ID': str(free_domain())})
    try:
        assert process.stdout is not None
        yield process, process.stdout
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize('what', ['nothing', 'destroying', 'stopping', 'a thread'])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_process_ends_whatever_hangs(what: str, number: signal.Signals) -> None:
    with running(HANGING, what) as (process, output):
        assert output.readline() == b'up\n'
        before = time.monotonic()
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        print(f'{what} hangs: ended in {time.monotonic() - before:.2f} s')


INTERRUPTED = """
import os, signal, sys
from rclpy.node import Node
from reflex_llm_ros.process import run

def in_a_wait(frame, event, arg):
    if event == 'line':
        os.kill(os.getpid(), signal.SIGTERM)
    return in_a_wait

def trace(frame, event, arg):
    waits = frame.f_code.co_filename == threading_file and frame.f_code.co_name == 'wait'
    return in_a_wait if waits else None

def make_node():
    sys.settrace(trace)
    return Node('interrupted')

import threading
threading_file = threading.__file__
sys.exit(run(make_node, lambda node, timeout_s: True, []))
"""


def test_signals_at_every_line_of_a_wait_end_the_process() -> None:
    """A handler that takes a lock which its own thread holds would wait for ever."""
    with running(INTERRUPTED) as (process, _):
        assert process.wait(PATIENCE_S) == 0


RESTARTING = """
import signal, sys
from rclpy.node import Node
from reflex_llm_ros.process import run

class Restarting(Node):
    def __init__(self):
        super().__init__('restarting')
        self.create_timer(0.1, self.say)

    def say(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.siginterrupt(number, False)
        print('up', flush=True)

sys.exit(run(Restarting, lambda node, timeout_s: True, []))
"""


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_interrupts_no_wait_ends_the_process(number: signal.Signals) -> None:
    """NVRTC puts the handlers back with SA_RESTART when it has compiled the first kernel."""
    with running(RESTARTING) as (process, output):
        assert output.readline() == b'up\n'
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0


LATE = """
import os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from rclpy.node import Node
from reflex_llm_ros.process import PAUSE_S, run
from std_msgs.msg import String

begin = ThreadPoolExecutor.submit
handed = []

def submit(pool, task):
    handed.append(time.monotonic())
    if len(handed) == 1:
        threading.Timer(0.2, begin, (pool, task)).start()

ThreadPoolExecutor.submit = submit

class Late(Node):
    def __init__(self):
        super().__init__('late')
        self.create_subscription(String, 'word', self.hear, 1)
        publisher = self.create_publisher(String, 'word', 1)
        threading.Timer(0.5, publisher.publish, (String(),)).start()

    def hear(self, message):
        times = list(handed)
        print(len(times), int((times[-1] - times[0]) / PAUSE_S), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

sys.exit(run(Late, lambda node, timeout_s: True, []))
"""


def test_a_callback_whose_thread_is_late_is_not_handed_over_in_a_busy_loop() -> None:
    """It would be the later for it: the loop that hands it over has Python's lock."""
    with running(LATE) as (process, output):
        handed, pauses = map(int, output.readline().split())
        assert process.wait(PATIENCE_S) == 0
    assert handed <= pauses + 2
