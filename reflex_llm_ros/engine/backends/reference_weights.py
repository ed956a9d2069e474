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

"""A dense model's weights, dequantized once for the reference backend."""

from collections.abc import Callable, Mapping
import math

import numpy as np
import numpy.typing as npt
from reflex_llm_ros.engine.gguf_config import expected_shapes
from reflex_llm_ros.engine.gguf_model import GgufModel, Tensor
from reflex_llm_ros.engine.models.dense import DenseWeights, load_weights

_ROWS_AT_ONCE = 256

# Projections of one input share one matrix: one call into BLAS in place of two or three.
_STACKED_ON = {'attn_k': 'attn_q', 'attn_v': 'attn_q', 'ffn_up': 'ffn_gate'}


class ReferenceWeights:
    """
    All weights as views into one allocation.

    One large allocation gets huge pages while it lives and goes back to the system, whole,
    when it is dropped.

    Matrices (out, in) with more rows than columns lie column by column: a product with one
    token then adds up long columns, which OpenBLAS does up to twice as fast as the many short
    dot products that row order asks for. Wide matrices lie row by row for the same reason.

    Attributes
    ----------
    dense
        Every weight by its place in the model, matrices (out, in).
    qkv
        Per layer, the rows of q, k and v stacked.
    gate_up
        Per layer, the rows of gate and up stacked.
    nbytes
        Bytes of the allocation.

    """

    def __init__(
        self, model: GgufModel, dtype: npt.DTypeLike, on_progress: Callable[[float], None]
    ) -> None:
        shapes = expected_shapes(model.config)
        arena, stacks, parts = _lay_out(shapes, np.dtype(dtype))
        done = 0
        on_progress(0.0)
        for name, part in parts.items():
            _dequantize_into(part, model.tensors[name])
            done += part.size
            on_progress(done / arena.size)
        blocks = range(model.config.block_count)
        self.nbytes = arena.nbytes
        self.dense: DenseWeights[np.ndarray] = load_weights(model.config, parts.__getitem__)
        self.qkv = [stacks[f'blk.{index}.attn_q.weight'] for index in blocks]
        self.gate_up = [stacks[f'blk.{index}.ffn_gate.weight'] for index in blocks]


def weight_bytes(shapes: Mapping[str, tuple[int, ...]], dtype: npt.DTypeLike) -> int:
    """Bytes that tensors of these shapes take once they are dequantized."""
    return sum(map(math.prod, shapes.values())) * np.dtype(dtype).itemsize


def _lay_out(
    shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype
) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """
    Allocate all weights and divide the allocation among them.

    Returns
    -------
    tuple
        The allocation; the stacked matrices, by the name of the tensor that opens each; and
        every tensor by its name.

    """
    members: dict[str, list[str]] = {}
    for name in shapes:
        members.setdefault(_stack_of(name), []).append(name)
    arena: np.ndarray = np.empty(weight_bytes(shapes, dtype) // dtype.itemsize, dtype)
    stacks, parts = {}, {}
    start = 0
    for stack, names in members.items():
        size = sum(math.prod(shapes[name]) for name in names)
        flat = arena[start:start + size]
        start += size
        width = shapes[stack][-1]
        if len(shapes[stack]) == 1:
            stacks[stack] = flat
        elif size > width * width:
            stacks[stack] = flat.reshape(width, -1).T
        else:
            stacks[stack] = flat.reshape(-1, width)
        row = 0
        for name in names:
            rows = shapes[name][0]
            parts[name] = stacks[stack][row:row + rows]
            row += rows
    return arena, stacks, parts


def _stack_of(name: str) -> str:
    """Return the name of the tensor that opens the stack a tensor belongs to."""
    block, _, kind = name[:-len('.weight')].rpartition('.')
    return f'{block}.{_STACKED_ON[kind]}.weight' if kind in _STACKED_ON else name


def _dequantize_into(out: np.ndarray, tensor: Tensor) -> None:
    """Write a tensor's values to ``out``, of its shape, in slabs that keep temporaries small."""
    if out.ndim == 1:
        out[:] = tensor.dequantize(dtype=out.dtype)
        return
    for row in range(0, len(out), _ROWS_AT_ONCE):
        rows = slice(row, row + _ROWS_AT_ONCE)
        out[rows] = tensor.dequantize(rows, out.dtype)
