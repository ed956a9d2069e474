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

"""Which of the kernels that do the same a Q8_0 product takes: by shape and device alone."""

from dataclasses import dataclass, field

from reflex_llm_ros.engine.backends.cuda.q8_activations import Kind, qkv_rows
from reflex_llm_ros.engine.gguf_model import ModelConfig

STEP = 512
"""Weights of a row that a warp takes at a time: a chunk of K is a multiple."""
WARPS = 48
"""Rows in flight on a multiprocessor that keep its memory busy."""
LEAST_CHUNK = 2048
"""Shorter chunks cost more in their sums than they gain."""

USUAL = {'a8': '_u2', 'a8x2': '_r2', 'f32': ''}
USUAL_PAIR = {'a8': '_u2', 'a8x2': '', 'f32': ''}
"""What measured fastest on an H200; gate and up are two rows a warp as they are."""
PAIR = 'q8_gate_up'
TWO_ROWS = '_r2'
SUFFIXES = ('', '_u2', '_u4', TWO_ROWS)
SUFFIXES_PAIR = ('', '_u2', '_u4')
FORCED = {'auto': None, 'u1': '', 'u2': '_u2', 'u4': '_u4', 'r2': TWO_ROWS}


@dataclass(frozen=True)
class Choice:
    """
    The rules for one device and one kind of activations.

    Unrolled kernels give the results of rolled ones to the bit: ``measured`` holds the fastest
    by product, ``forced`` stands before it. Chunks of K do not: they change
    the order of sums, and so depend on the shape and the number of multiprocessors alone.
    """

    kind: Kind
    multiprocessors: int
    forced: str | None = None
    measured: dict[str, str] = field(default_factory=dict)

    def chunk(self, rows: int, columns: int) -> int:
        """Columns that one warp sums: all, unless the rows leave most of the device idle."""
        if not self.kind.words:
            return columns
        chunks = min(self.multiprocessors * WARPS // rows, columns // LEAST_CHUNK)
        if chunks < 2:
            return columns
        return -(-columns // (chunks * STEP)) * STEP

    def chunks(self, rows: int, columns: int) -> int:
        """Count the chunks of a row."""
        return -(-columns // self.chunk(rows, columns))

    def partial_rows(self, config: ModelConfig) -> int:
        """Count the sums that a fused product of this model leaves for its last blocks."""
        width, middle = config.embedding_length, config.feed_forward_length
        heads = config.head_count * config.head_dim
        return max(
            qkv_rows(config) * self.chunks(qkv_rows(config), width),
            width * self.chunks(width, heads), width * self.chunks(width, middle), 2 * middle)

    def suffix(self, product: str) -> str:
        """Say which kernel does a product, such as ``q8_qkv 6144x2560``: the end of its name."""
        if self.forced is not None:
            return self.forced if self.forced in suffixes(product, self.kind) else ''
        usual = USUAL_PAIR if product.startswith(PAIR) else USUAL
        return self.measured.get(product, usual[self.kind.name])


def suffixes(product: str, kind: Kind) -> tuple[str, ...]:
    """Return the ends of the names of the kernels that do a product, with equal results."""
    if not kind.words:
        return ('',)
    return SUFFIXES_PAIR if product.startswith(PAIR) else SUFFIXES


def rows_a_warp(suffix: str) -> int:
    """Rows of one matrix that a warp has."""
    return 2 if suffix == TWO_ROWS else 1


def product_name(kernel: str, rows: int, columns: int) -> str:
    """Name what a kernel does for one shape."""
    return f'{kernel} {rows}x{columns}'
