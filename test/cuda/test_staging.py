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

"""Rows come through pinned memory as they were, however many pieces a matrix has."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.staging import SLOTS, Staging
from shim_device import ShimDevice

PIECE = 1000
SHAPES = [(1, 1000), (3, 334), (SLOTS * 40, 34), (2, 999), (1, 1), (5 * SLOTS + 1, 501)]


@pytest.fixture
def device(make_device: Callable[..., Any]) -> Any:
    """Return the shim, or a GPU."""
    return make_device()


def staged(device: Any, matrices: Sequence[np.ndarray]) -> list[Any]:
    """Bring matrices to the device; each has a byte of 77 before it and one behind."""
    copies = [device.upload(np.full(matrix.size + 2, 77, np.uint8)) for matrix in matrices]
    with closing(Staging(device, PIECE, iter(matrices))) as staging:
        for matrix, copy in zip(matrices, copies, strict=True):
            end = 0
            for first, rows in staging.rows(matrix):
                assert first == end
                assert len(rows) == min(PIECE // matrix.shape[1], len(matrix) - first)
                end += len(rows)
                at = 1 + first * matrix.shape[1]
                device.write_pinned(copy[at:at + rows.nbytes], rows.reshape(-1))
            assert end == len(matrix)
    return copies


def assert_staged_as_they_were(device: Any, rng: np.random.Generator) -> None:
    matrices = [rng.integers(0, 256, shape, np.uint8) for shape in SHAPES]
    for matrix, copy in zip(matrices, staged(device, matrices), strict=True):
        copied = device.download(copy)
        np.testing.assert_array_equal(copied[1:-1], matrix.reshape(-1))
        assert copied[0] == copied[-1] == 77


def test_rows_come_in_order_and_as_they_were(device: Any, rng: np.random.Generator) -> None:
    assert_staged_as_they_were(device, rng)


def test_memory_is_read_into_only_after_the_copy_out_of_it(rng: np.random.Generator) -> None:
    assert_staged_as_they_were(LateDevice(), rng)


def test_no_more_than_is_asked_for_is_read(device: Any, rng: np.random.Generator) -> None:
    asked = []

    def matrices() -> Any:
        for number in range(100):
            asked.append(number)
            yield rng.integers(0, 256, (1, PIECE), np.uint8)

    with closing(Staging(device, PIECE, matrices())):
        assert len(asked) < SLOTS


def test_another_order_is_refused(device: Any, rng: np.random.Generator) -> None:
    first, second = rng.integers(0, 256, (2, 4, 100), np.uint8)
    with closing(Staging(device, PIECE, [first, second])) as staging:
        with pytest.raises(AssertionError, match='another order'):
            next(staging.rows(second))


class LateDevice(ShimDevice):
    """Copies out of pinned memory when something waits for that, as late as a device may."""

    def __init__(self) -> None:
        super().__init__()
        self._late: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._asked = self._done = 0

    def write_pinned(self, destination: np.ndarray, source: np.ndarray) -> None:
        self._late.append((destination, source))
        self._asked += 1

    def record(self) -> Callable[[], None]:
        mark = self._asked
        return lambda: self._copy(mark)

    def synchronize(self) -> None:
        self._copy(self._asked)

    def _copy(self, mark: int) -> None:
        while self._done < mark:
            super().write_pinned(*self._late.popleft())
            self._done += 1
