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

"""How long loading a model takes, beside reading its file."""

from collections.abc import Callable
from itertools import pairwise
import time

from reflex_llm_ros.bench.result import Load
from reflex_llm_ros.engine.backends.base import Backend, Progress

PART_BYTES = 16 << 20
REPEATS = 2
PLACING = 'weights'
"""How what is done ends in a backend's words while weights are brought to their place."""


def measure_load(
    path: str, open_it: Callable[[Progress], Backend], on_progress: Progress
) -> tuple[Backend, Load]:
    """Open a backend on a model whose file has been read before, so that a cache may have it."""
    read_seconds(path)
    read = min(read_seconds(path) for _ in range(REPEATS))
    times: list[tuple[float, str]] = []

    def note(fraction: float, phrase: str) -> None:
        times.append((time.monotonic(), phrase))
        on_progress(fraction, phrase)

    start = time.monotonic()
    backend = open_it(note)
    times.append((time.monotonic(), ''))
    placing = sum(
        after - before for (before, phrase), (after, _) in pairwise(times)
        if phrase.endswith(PLACING))
    return backend, Load(times[-1][0] - start, placing, read)


def read_seconds(path: str) -> float:
    """Read a file from its beginning to its end, into one buffer."""
    part = bytearray(PART_BYTES)
    start = time.monotonic()
    with open(path, 'rb', buffering=0) as file:
        while file.readinto(part):
            pass
    return time.monotonic() - start
