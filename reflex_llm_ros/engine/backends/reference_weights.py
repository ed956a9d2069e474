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

from typing import Callable, Dict, List, Tuple

import numpy as np
from reflex_llm_ros.engine.gguf_model import GgufModel, ModelConfig, Tensor
from reflex_llm_ros.engine.models.dense import DenseWeights, load_weights

_ALIGNMENT = 64
_ROWS_AT_ONCE = 256

# Projections of one input share one matrix: one call into BLAS in place of two or three.
_STACKED_ON = {'attn_k': 'attn_q', 'attn_v': 'attn_q', 'ffn_up': 'ffn_gate'}


class ReferenceWeights:
    """
    All weights as views into one allocation.

    One large allocation gets huge pages while it lives and goes back to the system, whole,
    when it is dropped. Matrices (out, in) lie column by column: a product with one token
    then reads each column as a stream, which OpenBLAS does up to 1.5 times faster than the
    dot products that row order asks for.

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
        self, model: GgufModel, dtype: type, on_progress: Callable[[float], None]
    ) -> None:
        shapes = {name: model.tensors[name].shape for name in tensor_names(model.config)}
        stacks: Dict[str, List[str]] = {}
        for name in shapes:
            stacks.setdefault(_stack_of(name), []).append(name)

        per_line = _ALIGNMENT // np.dtype(dtype).itemsize
        sizes = {
            stack: sum(int(np.prod(shapes[name])) for name in members)
            for stack, members in stacks.items()
        }
        padded = {stack: -(-size // per_line) * per_line for stack, size in sizes.items()}
        arena: np.ndarray = np.empty(sum(padded.values()), dtype)
        self.nbytes = arena.nbytes

        whole: Dict[str, np.ndarray] = {}
        part: Dict[str, np.ndarray] = {}
        start = 0
        for stack, members in stacks.items():
            flat = arena[start:start + sizes[stack]]
            width = shapes[stack][-1]
            matrix = flat.reshape(width, -1).T if len(shapes[stack]) > 1 else flat
            start += padded[stack]
            row = 0
            for name in members:
                rows = shapes[name][0]
                part[name] = matrix[row:row + rows]
                _dequantize_into(part[name], model.tensors[name])
                row += rows
            whole[stack] = matrix
            on_progress(start / len(arena))

        blocks = range(model.config.block_count)
        self.dense: DenseWeights[np.ndarray] = load_weights(model.config, part.__getitem__)
        self.qkv = [whole[f'blk.{index}.attn_q.weight'] for index in blocks]
        self.gate_up = [whole[f'blk.{index}.ffn_gate.weight'] for index in blocks]


def tensor_names(config: ModelConfig) -> Tuple[str, ...]:
    """Names of the tensors that the forward pass of a model reads."""
    names: List[str] = []
    load_weights(config, names.append)
    return tuple(names)


def _stack_of(name: str) -> str:
    """Return the name of the tensor that opens the stack a tensor belongs to."""
    block, _, rest = name.rpartition('.weight')[0].rpartition('.')
    return f'{block}.{_STACKED_ON[rest]}.weight' if rest in _STACKED_ON else name


def _dequantize_into(out: np.ndarray, tensor: Tensor) -> None:
    """Write a tensor's values to ``out``, of its shape, in slabs that keep temporaries small."""
    if out.ndim == 1:
        out[:] = tensor.dequantize(dtype=out.dtype)
        return
    for row in range(0, len(out), _ROWS_AT_ONCE):
        rows = slice(row, row + _ROWS_AT_ONCE)
        out[rows] = tensor.dequantize(rows, out.dtype)
