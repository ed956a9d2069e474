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

"""Bytes of a file on their way to the device: threads bring them ahead into pinned memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from reflex_llm_ros.engine.gguf_model import GgufModel

PIECE_BYTES = 2 << 20
READERS = 4
"""Threads that bring pieces out of the page cache: one does not reach what memory gives."""
SLOTS = 2 * READERS
"""Pieces in pinned memory: those being read, those that are there, two on their way on."""

_Rows = tuple[np.ndarray, int, np.ndarray]
"""The matrix, its first row's number and rows of it in pinned memory."""


def piece_bytes(model: GgufModel) -> int:
    """Bytes that are staged at a time."""
    return min(PIECE_BYTES, max(tensor.data.nbytes for tensor in model.tensors.values()))


class Staging:
    """
    Rows of matrices in pinned memory, a piece at a time, read before they are asked for.

    A copy from the file's pages directly would stage them too, but one after the other.

    Parameters
    ----------
    device
        Whose stream copies the pieces.
    size
        Bytes of a piece: no row is longer.
    matrices
        Blocks (rows, bytes) of all matrices that will be asked for, in that order.

    """

    def __init__(self, device: Any, size: int, matrices: Iterable[np.ndarray]) -> None:
        self._device = device
        self.piece_bytes = size
        # Each with what waits for the copy out of it.
        self._free: deque[tuple[np.ndarray, Callable[[], None]]] = deque(
            (device.pinned(size), lambda: None) for _ in range(SLOTS))
        self._unread = (
            (blocks, first) for blocks in matrices
            for first in range(0, len(blocks), self._rows_a_piece(blocks)))
        self._pieces: deque[tuple[np.ndarray, Future[_Rows]]] = deque()
        self._readers = ThreadPoolExecutor(READERS, 'weights')
        for _ in range(SLOTS - 2):
            self._read_ahead()

    def rows(self, blocks: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """
        Yield all rows of the next matrix (N, bytes): the first one's number and pinned rows.

        They may be copied from, in stream order, until the next are asked for.
        """
        for _ in range(0, len(blocks), self._rows_a_piece(blocks)):
            slot, piece = self._pieces.popleft()
            of, first, rows = piece.result()
            assert of is blocks, 'matrices are asked for in another order'
            yield first, rows
            self._free.append((slot, self._device.record()))
            self._read_ahead()

    def close(self) -> None:
        """End the threads and wait for the last copies."""
        self._readers.shutdown(cancel_futures=True)
        self._device.synchronize()

    def _rows_a_piece(self, blocks: np.ndarray) -> int:
        return self.piece_bytes // blocks.shape[1]

    def _read_ahead(self) -> None:
        """Begin to read one more piece, into the memory whose copy began longest ago."""
        unread = next(self._unread, None)
        if unread is None:
            return
        slot, wait_for_copy = self._free.popleft()
        wait_for_copy()
        self._pieces.append((slot, self._readers.submit(self._read, slot, *unread)))

    def _read(self, slot: np.ndarray, blocks: np.ndarray, first: int) -> _Rows:
        source = blocks[first:first + self._rows_a_piece(blocks)]
        rows = slot[:source.nbytes].reshape(source.shape)
        np.copyto(rows, source)
        return blocks, first, rows
