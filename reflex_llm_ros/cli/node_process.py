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

"""A node started as its own process by a program that will not leave it behind."""

from collections.abc import Iterator
from contextlib import contextmanager
import signal
import subprocess
import sys
from typing import IO

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_S = 5.0


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Raise KeyboardInterrupt for the signals that arrive in the block at its end."""
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        raise KeyboardInterrupt


def end(process: 'subprocess.Popen[bytes]') -> None:
    """
    End a process, by force after a few seconds.

    Only then: who is killed leaves shared memory and its locks behind, which whoever comes into
    the same DDS domain meets.
    """
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class NodeProcess:
    """
    The node ``reflex_llm`` in a process of its own.

    ``parameters`` are the node's, by name; ``log`` is the file that takes what it writes.

    """

    def __init__(self, parameters: dict[str, str], log: IO[bytes]) -> None:
        self._command = [sys.executable, '-m', 'reflex_llm_ros.node', '--ros-args']
        for name, value in parameters.items():
            self._command += ['-p', f'{name}:={value}']
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; ``stop`` must follow, whatever happens in between."""
        with signals_deferred():
            # In a session of its own: a Ctrl-C in the terminal is for the caller to handle.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=self._log,
                stderr=subprocess.STDOUT, start_new_session=True)

    def died(self) -> bool:
        """Return whether the process has ended although nobody asked it to."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End the process, by force after a few seconds; may be called at any time."""
        with signals_deferred():
            if self._process is not None:
                end(self._process)
