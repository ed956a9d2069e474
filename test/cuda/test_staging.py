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

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.staging import SLOTS, Staging

PIECE = 1000


@pytest.fixture
def device(make_device: Callable[..., Any]) -> Any:
    """Return the shim, or a GPU."""
    return make_device()


def test_rows_come_in_order_and_as_they_were(device: Any, rng: np.random.Generator) -> None:
    shapes = [(1, 1000), (3, 334), (SLOTS * 40, 34), (2, 999), (1, 1), (5 * SLOTS + 1, 501)]
    matrices = [rng.integers(0, 256, shape, np.uint8) for shape in shapes]
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
    for matrix, copy in zip(matrices, copies, strict=True):
        copied = device.download(copy)
        np.testing.assert_array_equal(copied[1:-1], matrix.reshape(-1))
        assert copied[0] == copied[-1] == 77


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
