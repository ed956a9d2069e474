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

"""Every transition, every way in which it can fail, and every way in which a node ends."""

from pathlib import Path
import re
import signal
import time

from conftest import Start
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
import psutil
import pytest
import rclpy
from robot import NodeProcess, Robot, SCRIPTED, wait_for


def refuses(robot: Robot) -> str:
    """Send a prompt that the node must not take; return the error's code."""
    code: str = robot.end_of(robot.ask('count 1'))['code']
    return code


def serves(robot: Robot) -> bool:
    return bool(robot.end_of(robot.ask('count 2')).get('text') == '0 1 ')


def test_only_an_active_node_answers_and_it_answers_again_after_a_pause(start: Start) -> None:
    robot = start(model__path='model.gguf')
    robot.status(state='unconfigured')
    assert refuses(robot) == 'not_active'
    assert robot.transition('configure')
    robot.status(state='inactive', model='model.gguf')
    for _ in range(3):
        assert refuses(robot) == 'not_active'
    for _ in range(2):
        assert robot.transition('activate')
        robot.status(state='ready')
        assert serves(robot)
        assert robot.transition('deactivate')
        robot.status(state='inactive')
        assert refuses(robot) == 'not_active'
    assert robot.transition('cleanup')
    robot.status(state='unconfigured', model='')
    assert robot.set_parameters(model__path='other.gguf') == ['']
    robot.activate()
    robot.status(state='ready', model='other.gguf')
    assert serves(robot)
    # One warning for each time that the node is not active.
    assert robot.node.log().count('not_active') == 3


def test_deactivate_ends_what_runs_and_what_waits_before_the_publishers_go_quiet(
    start: Start
) -> None:
    robot = start(model__path='model.gguf')
    robot.activate()
    running, waiting = robot.ask('count 10000'), robot.ask('count 10000')
    robot.until('token', running)
    robot.until('queued', waiting)
    assert robot.transition('deactivate')
    for request_id in (running, waiting):
        end = robot.end_of(request_id)
        assert (end['type'], end['code']) == ('error', 'cancelled_by_deactivate')
    streamed = [event['text'] for event in robot.of(running) if event['type'] == 'token']
    wait_for(lambda: robot.said['tokens'] == streamed, 'the last token')


@pytest.mark.parametrize('path, reason', [
    ('missing.gguf', 'missing.gguf: no such file'), ('', 'set the parameter model.path')])
def test_a_model_that_cannot_be_loaded_is_a_failure_with_a_reason(
    start: Start, path: str, reason: str
) -> None:
    robot = start(model__path=path)
    assert not robot.transition('configure')
    assert robot.state() == 'unconfigured'
    assert reason in robot.status(state='error')['reason']
    assert reason in robot.node.log()
    assert 'Traceback' not in robot.node.log()
    assert refuses(robot) == 'not_active'
    assert robot.set_parameters(model__path='model.gguf') == ['']
    robot.activate()
    assert serves(robot)


def test_an_exception_in_a_transition_is_logged_and_goes_through_error_processing(
    start: Start
) -> None:
    robot = start(model__path='strange.gguf')
    assert not robot.transition('configure')
    assert robot.state() == 'unconfigured'
    assert 'a bug in the loader' in robot.status(state='error')['reason']
    assert 'Traceback' in robot.node.log()
    robot.set_parameters(model__path='model.gguf')
    robot.activate()
    assert serves(robot)


@pytest.mark.parametrize('prompt, code', [('fail', 'engine_error'), ('oom', 'out_of_memory')])
def test_an_engine_failure_goes_through_error_processing(
    start: Start, prompt: str, code: str
) -> None:
    robot = start(model__path='model.gguf', diagnostics__period_s=0.1)
    robot.activate()
    running = robot.ask('count 20')
    robot.until('token', running)
    failing, waiting = robot.ask(prompt), robot.ask('count 1')
    assert robot.end_of(running)['type'] == 'done'
    assert robot.end_of(failing)['code'] == code
    assert robot.end_of(waiting)['code'] == 'engine_error'
    wait_for(lambda: robot.state() == 'unconfigured', 'error processing')
    status = robot.status(state='error')
    assert 'the engine failed' in status['reason']
    wait_for(lambda: any(
        message.status[0].level == b'\2' for message in robot.diagnostics), 'an ERROR')
    assert refuses(robot) == 'not_active'
    robot.activate()
    assert serves(robot)


def test_illegal_transitions_are_survived(start: Start) -> None:
    robot = start(model__path='model.gguf')
    client = robot.ros.create_client(ChangeState, '/reflex_llm/change_state')
    assert client.wait_for_service(10)

    def request(name: str) -> None:
        # Some versions of rclpy never answer an illegal one, so nobody waits for it.
        client.call_async(ChangeState.Request(transition=Transition(
            id=getattr(Transition, f'TRANSITION_{name.upper()}'))))

    for illegal in ('activate', 'deactivate', 'cleanup', 'active_shutdown'):
        request(illegal)
    robot.activate()
    for illegal in ('configure', 'activate', 'cleanup', 'unconfigured_shutdown'):
        request(illegal)
    assert serves(robot)
    assert robot.state() == 'active'
    assert robot.node.end() == 0


@pytest.mark.parametrize('state', ['unconfigured', 'inactive', 'active'])
def test_shutdown_from_any_state(start: Start, state: str) -> None:
    robot = start(model__path='model.gguf')
    running = ''
    if state != 'unconfigured':
        assert robot.transition('configure')
    if state == 'active':
        assert robot.transition('activate')
        running = robot.ask('count 10000')
        robot.until('token', running)
    assert robot.transition(f'{state}_shutdown')
    assert robot.state() == 'finalized'
    robot.status(state='finalized')
    if running:
        assert robot.end_of(running)['code'] == 'cancelled_by_deactivate'
    assert robot.node.end() == 0


def test_loading_is_told_in_percent_and_does_not_block_cancel(start: Start) -> None:
    robot = start(model__path='slow.gguf')
    client = robot.ros.create_client(ChangeState, '/reflex_llm/change_state')
    assert client.wait_for_service(10)
    client.call_async(ChangeState.Request(
        transition=Transition(id=Transition.TRANSITION_CONFIGURE)))
    robot.status(state='loading', step='weights', percent=3)
    assert refuses(robot) == 'not_active'
    assert robot.trigger('cancel_all') == 'cancelled 0 requests'
    robot.status(state='loading', step='weights', percent=8)
    assert robot.node.end() == 0


# What is promised is 2 s, and printed is what it took; 1 is the code of one that
# a thread without Python's lock had to end, after 5 s.
ENDINGS = {
    'while unconfigured': ('model.gguf', ''),
    'while active and idle': ('model.gguf', 'count 1'),
    'while it loads': ('slow.gguf', ''),
    'while loading hangs': ('stuck.gguf', ''),
    'while it generates': ('model.gguf', 'count 10000'),
    'while the engine hangs': ('model.gguf', 'hang'),
}


def shared_memory(robot: Robot) -> list[Path]:
    """Files in which Fast DDS passes the node's messages on: it holds a lock beside each."""
    opened = psutil.Process(robot.node.process.pid).open_files()
    pattern = re.compile(r'(/dev/shm/fast(?:dds|rtps)_[0-9a-f]{16})_el')
    locked = (pattern.fullmatch(file.path) for file in opened)
    return [Path(lock[1]) for lock in locked if lock]


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('when', ENDINGS)
def test_a_signal_ends_the_process_cleanly(start: Start, when: str, number: int) -> None:
    path, prompt = ENDINGS[when]
    robot = start(model__path=path)
    if prompt:
        robot.activate()
        running = robot.ask(prompt)
        robot.until('started', running)
    elif 'load' in when:
        client = robot.ros.create_client(ChangeState, '/reflex_llm/change_state')
        assert client.wait_for_service(10)
        client.call_async(ChangeState.Request(
            transition=Transition(id=Transition.TRANSITION_CONFIGURE)))
        robot.status(state='loading', step='weights')
    if when == 'while active and idle':
        robot.end_of(running)
    segments = shared_memory(robot)
    assert segments or rclpy.get_rmw_implementation_identifier() != 'rmw_fastrtps_cpp'
    before = time.monotonic()
    assert robot.node.end(number) == 0, robot.node.log()
    print(f'{when}: ended in {time.monotonic() - before:.2f} s')
    assert 'Traceback' not in robot.node.log()
    if 'hangs' not in when:
        assert not [segment for segment in segments if segment.exists()]
    if when == 'while it generates':
        assert robot.last_words(running)['code'] == 'cancelled_by_deactivate'


def test_twenty_cycles_leave_no_threads_behind(start: Start) -> None:
    robot = start(model__path='model.gguf')
    process = psutil.Process(robot.node.process.pid)
    threads = []
    for _ in range(20):
        robot.activate()
        assert serves(robot)
        assert robot.transition('deactivate')
        assert robot.transition('cleanup')
        threads.append(process.num_threads())
    # Others come and go for a moment; one left behind in each cycle would raise them all.
    assert min(threads[10:]) <= max(threads[:10]), threads


def test_a_parameter_file_that_makes_no_sense_is_one_line_and_exit_code_1(start: Start) -> None:
    node = NodeProcess(SCRIPTED, {'queue.size': -1})
    assert node.process.wait(60) == 1
    assert 'queue.size' in node.log()
    assert 'Traceback' not in node.log()
