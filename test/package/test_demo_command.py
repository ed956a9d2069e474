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

"""The demo shows an answer, and whatever ends it early leaves no process behind."""

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time

import pytest

psutil = pytest.importorskip('psutil')
pytest.importorskip('rclpy')

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0


class DemoProcess:
    """The demo in a process, its output, and all processes that descend from it."""

    def __init__(self, folder: Path, *words: str, typed: str | None = None) -> None:
        self._folder = folder
        self.output = folder / 'stdout'
        self.errors = folder / 'stderr'
        with self.output.open('wb') as output, self.errors.open('wb') as errors:
            self.process = subprocess.Popen(
                [sys.executable, '-m', 'reflex_llm_ros.cli.demo', *words], cwd=ROOT,
                stdin=subprocess.PIPE, stdout=output, stderr=errors,
                # Whom this folder was handed down to descends from the demo.
                env={**os.environ, 'TMPDIR': str(folder)})
        assert self.process.stdin is not None
        if typed is not None:
            self.process.stdin.write(typed.encode())
        self.process.stdin.close()

    def family(self) -> list[psutil.Process]:
        """Return the demo's processes that are alive, itself among them."""
        alive = []
        for process in psutil.process_iter():
            try:
                if process.environ().get('TMPDIR') == str(self._folder):
                    alive.append(process)
            except psutil.Error:
                continue
        return alive

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so while the demo runs."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.02)

    def end(self) -> int:
        """Wait for the demo's end and return its exit code."""
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def demo(tmp_path: Path, smollm2_path: Path) -> Iterator[Callable[..., DemoProcess]]:
    """Start a demo; nothing of it, nor of its files, may be there after it has ended."""
    started: list[DemoProcess] = []

    def start(*words: str, typed: str | None = None) -> DemoProcess:
        started.append(DemoProcess(tmp_path, *words, typed=typed))
        return started[-1]

    yield start
    family = started[0].family()
    for process in family:
        process.kill()
    assert not family
    assert sorted(path.name for path in tmp_path.iterdir()) == ['stderr', 'stdout']


def test_one_question(demo: Callable[..., DemoProcess]) -> None:
    running = demo('What', 'is the capital of France?')
    assert running.end() == 0, running.errors.read_text()
    assert 'Paris' in running.output.read_text()
    assert re.search(
        r'^\d+ tokens · .* tokens/s · first token after .* s', running.errors.read_text(),
        re.MULTILINE)


def test_chat(demo: Callable[..., DemoProcess]) -> None:
    running = demo(typed='What is the capital of France?\n/reset\n')
    assert running.end() == 0, running.errors.read_text()
    assert 'Paris' in running.output.read_text()


@pytest.mark.parametrize(('moment', 'number'), [
    ('starting', signal.SIGINT), ('loading', signal.SIGINT), ('answering', signal.SIGINT),
    ('loading', signal.SIGHUP), ('answering', signal.SIGTERM)])
def test_interrupted(
        demo: Callable[..., DemoProcess], moment: str, number: signal.Signals) -> None:
    running = demo('Tell me a long story.')
    running.wait_until({
        'starting': lambda: len(running.family()) > 1,
        'loading': lambda: 'loading' in running.errors.read_text(),
        'answering': lambda: running.output.stat().st_size > 0,
    }[moment])
    running.process.send_signal(number)
    # To a shell both are 130. CPython (Py_RunMain) ends by the signal itself, although the
    # interrupt was caught, where it struck inside an exec() of text: while a class is made, say.
    assert running.end() in (130, -signal.SIGINT), running.errors.read_text()
    assert running.errors.read_text().count('Traceback') == 0


def test_node_that_dies(demo: Callable[..., DemoProcess]) -> None:
    running = demo('Tell me a long story.')
    running.wait_until(lambda: running.output.stat().st_size > 0)
    node, = (p for p in running.family() if 'reflex_llm_ros.node' in p.cmdline())
    node.kill()
    assert running.end() == 1
    assert 'the node died' in running.errors.read_text()
    assert 'The last lines of the node:' in running.errors.read_text()
