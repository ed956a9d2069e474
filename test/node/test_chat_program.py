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

"""The chat against the node: in pipes, and in a terminal with its keys."""

from collections.abc import Iterator
import os
import re
import subprocess
import sys
import threading
import time

from conftest import Start
import pytest
from reflex_llm_ros.dds_domain import free_domain
from robot import NodeProcess, PATIENCE_S, REPOSITORY, Robot, wait_for

CHAT = [sys.executable, '-m', 'reflex_llm_ros.cli.chat']
# Runs a program in a terminal of its own; what is written to the pipe are its keys.
IN_TERMINAL = [sys.executable, '-c', 'import os, pty, sys\n'
               'sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))']
CTRL_C = '\x03'
CTRL_D = '\x04'
ENTER = '\r'
DIM = '\x1b[2;3m'
STATISTICS = '200.0 tokens/s · first token after 0.01 s'


def environment(node: NodeProcess | None) -> dict[str, str]:
    domain = node.domain if node else free_domain()
    return {
        **os.environ, 'ROS_DOMAIN_ID': str(domain), 'TERM': 'xterm',
        'COLUMNS': '60', 'PYTHONPATH': os.pathsep.join([str(REPOSITORY), *sys.path])}


def chat(
    node: NodeProcess | None, *arguments: str, lines: str = ''
) -> 'subprocess.CompletedProcess[str]':
    """Run the chat in pipes."""
    return subprocess.run(
        [*CHAT, *arguments], env=environment(node), cwd=REPOSITORY, input=lines, text=True,
        capture_output=True, timeout=PATIENCE_S)


class Terminal:
    """The chat in a terminal."""

    def __init__(self, node: NodeProcess, *arguments: str) -> None:
        self.raw = ''
        self._process = subprocess.Popen(
            [*IN_TERMINAL, *CHAT, *arguments], env=environment(node), cwd=REPOSITORY,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        while piece := os.read(output.fileno(), 4096):
            self.raw += piece.decode(errors='replace')

    @property
    def text(self) -> str:
        """What is on the screen, without colours and cursor movements."""
        return re.sub(r'\x1b\[[0-9;?]*[a-zA-Z]|[\r\x01\x02\x07]', '', self.raw)

    def press(self, keys: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(keys.encode())
        pipe.flush()

    def see(self, what: str, times: int = 1) -> None:
        wait_for(lambda: self.text.count(what) >= times, f'{what!r} in {self.text!r}')

    def end_with(self, keys: str) -> int:
        """
        Press keys until the program ends; return its exit code.

        Readline shows its prompt a moment before it hears of keys and signals.
        """
        for _ in range(10):
            self.press(keys)
            try:
                self._process.wait(PATIENCE_S / 10)
                break
            except subprocess.TimeoutExpired:
                continue
        return self.exit_code()

    def exit_code(self) -> int:
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def terminal(robot: Robot) -> Iterator[Terminal]:
    terminal = Terminal(robot.node)
    terminal.see('> ')
    yield terminal
    terminal.close()


def test_one_prompt_in_a_pipe(robot: Robot) -> None:
    run = chat(robot.node, 'count 5')
    assert run.stdout == '0 1 2 3 4 \n'
    assert run.stderr == f'5 tokens · {STATISTICS}\n'
    assert run.returncode == 0


def test_a_line_is_a_prompt_in_a_pipe(robot: Robot) -> None:
    run = chat(robot.node, lines='count 3\n\n/reset\n/what\nthink\n')
    assert run.stdout == '0 1 2 \nyes\n'
    assert run.returncode == 0
    said = run.stderr.splitlines()
    assert said[0] == f'3 tokens · {STATISTICS}'
    assert said[1].startswith('forgotten')
    assert said[2].startswith('/what is no command')
    assert len(said) == 4


def test_an_error_is_told_and_the_next_line_is_answered(robot: Robot) -> None:
    run = chat(robot.node, lines='too long\ncount 1\n')
    assert run.stdout == '0 \n'
    assert run.stderr.startswith('context_overflow: ')
    assert run.returncode == 1


def test_a_conversation_in_a_terminal(terminal: Terminal) -> None:
    assert 'Ctrl-C cancels' in terminal.text
    terminal.press('think' + ENTER)
    terminal.see('first token after')
    assert f'{DIM}well' in terminal.raw
    assert 'well, let me see\n\nyes\n1 token · ' in terminal.text
    terminal.press('/reset' + ENTER)
    terminal.see('forgotten')
    terminal.press('count 30' + ENTER)
    terminal.see('30 tokens')
    lines = terminal.text.split('count 30\n')[1].split('\n30 tokens')[0].splitlines()[-2:]
    assert ' '.join(lines).split() == [str(number) for number in range(30)]
    assert all(len(line) <= 60 for line in lines)
    assert terminal.end_with(CTRL_D) == 0


def test_ctrl_c_cancels_an_answer_and_the_next_one_comes(terminal: Terminal) -> None:
    terminal.press('count 100000' + ENTER)
    terminal.see('5 6 7')
    terminal.press(CTRL_C)
    terminal.see('cancelled')
    terminal.press('count 5' + ENTER)
    terminal.see('5 tokens · ')
    assert '^C' not in terminal.text
    assert terminal.end_with(CTRL_D) == 0


def test_ctrl_c_twice_ends_the_program(start: Start) -> None:
    robot = start(model__path='model.gguf')
    robot.activate()
    terminal = Terminal(robot.node, 'hang')
    try:
        terminal.see('thinking')
        terminal.press(CTRL_C)
        # Two signals at once may be delivered as one.
        time.sleep(0.5)
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130
        assert 'Traceback' not in terminal.text
    finally:
        terminal.close()


def test_ctrl_c_at_the_prompt_ends_the_program(terminal: Terminal) -> None:
    assert terminal.end_with(CTRL_C) == 130


def test_no_node_says_what_to_do() -> None:
    run = chat(None, 'hello', '--node', '/nobody')
    assert run.stdout == ''
    assert '/nobody' in run.stderr
    assert 'ros2 launch reflex_llm_ros' in run.stderr
    assert 'Traceback' not in run.stderr
    assert run.returncode == 1


def test_a_wrong_name_says_which_nodes_there_are(robot: Robot) -> None:
    run = chat(robot.node, 'hello', '--node', '/nobody')
    assert 'There is /reflex_llm' in run.stderr
    assert run.returncode == 1


def test_a_node_without_a_model_says_what_to_do_and_can_be_driven(start: Start) -> None:
    robot = start(model__path='model.gguf')
    run = chat(robot.node, 'count 2')
    assert 'ros2 lifecycle set /reflex_llm configure' in run.stderr
    assert '--drive' in run.stderr
    assert run.returncode == 1
    assert robot.state() == 'unconfigured'
    run = chat(robot.node, '--drive', 'count 2')
    assert run.stdout == '0 1 \n', run.stderr
    assert run.returncode == 0
    assert robot.state() == 'active'
    assert robot.transition('deactivate')
    run = chat(robot.node, 'count 2')
    assert 'ros2 lifecycle set /reflex_llm activate' in run.stderr
    assert 'configure' not in run.stderr
    assert chat(robot.node, '--drive', 'count 2').stdout == '0 1 \n'


def test_a_model_that_cannot_be_loaded_gives_the_reason(start: Start) -> None:
    robot = start(model__path='missing.gguf')
    for arguments in (['--drive'], []):
        run = chat(robot.node, 'count 2', *arguments)
        assert 'missing.gguf: no such file' in run.stderr
        assert 'Traceback' not in run.stderr
        assert run.returncode == 1


def test_loading_is_shown_and_waited_for(start: Start) -> None:
    robot = start(model__path='slow.gguf')
    driver = Terminal(robot.node, '--drive', 'count 2')
    try:
        driver.see('%')
        other = chat(robot.node, 'count 3')
        assert other.stdout == '0 1 2 \n', other.stderr
        assert 'loading slow.gguf: weights' in other.stderr
        driver.see('2 tokens')
        assert driver.exit_code() == 0
    finally:
        driver.close()
