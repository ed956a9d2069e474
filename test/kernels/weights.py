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

"""Weights for kernel tests: random blocks of every format, and what they mean."""

from dataclasses import dataclass

import gguf
from gguf import GGMLQuantizationType as Type
import numpy as np


@dataclass(frozen=True)
class Format:
    """
    A weight format: what the kernels' names say, its GGUF type, and its fp16 fields.

    ``halves`` are the byte offsets in a block of numbers that must be finite; every other
    byte of a block may be anything.
    """

    suffix: str
    ggml_type: Type
    halves: tuple

    @property
    def block(self) -> int:
        """Weights in a block: a row's length is a multiple of it."""
        return gguf.GGML_QUANT_SIZES[self.ggml_type][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return gguf.GGML_QUANT_SIZES[self.ggml_type][1]


FORMATS = (
    Format('q4k', Type.Q4_K, (0, 2)),
    Format('q4k_uint32', Type.Q4_K, (0, 2)),
    Format('q5k', Type.Q5_K, (0, 2)),
    Format('q6k', Type.Q6_K, (208,)),
    Format('q4_0', Type.Q4_0, (0,)),
    Format('q4_1', Type.Q4_1, (0, 2)),
    Format('q5_0', Type.Q5_0, (0,)),
    Format('q5_1', Type.Q5_1, (0, 2)),
    Format('q8_0', Type.Q8_0, (0,)),
    Format('f16', Type.F16, (0,)),
    Format('bf16', Type.BF16, ()),
    Format('f32', Type.F32, ()),
)
BY_SUFFIX = {entry.suffix: entry for entry in FORMATS}


def random_weights(
    rng: np.random.Generator, entry: Format, rows: int, length: int
) -> np.ndarray:
    """Return a matrix (rows, bytes a row) of random blocks; read-only."""
    blocks = length // entry.block
    if entry.ggml_type == Type.F32:
        data = rng.standard_normal((rows, length)).astype(np.float32).view(np.uint8)
    elif entry.ggml_type == Type.BF16:
        bits = rng.standard_normal((rows, length)).astype(np.float32).view(np.uint32)
        data = (bits >> 16).astype(np.uint16).view(np.uint8)
    else:
        data = rng.integers(0, 256, (rows, blocks, entry.block_bytes), np.uint8)
        for offset in entry.halves:
            scale = rng.standard_normal((rows, blocks, 1)).astype(np.float16)
            data[..., offset:offset + 2] = scale.view(np.uint8)
    data = data.reshape(rows, -1)
    data.flags.writeable = False
    return data


def dequantized(entry: Format, data: np.ndarray) -> np.ndarray:
    """Return the matrix (rows, length) in float64, as the gguf package reads it."""
    if entry.ggml_type in (Type.F16, Type.F32):  # the package leaves these as they are
        stored = np.float16 if entry.ggml_type == Type.F16 else np.float32
        return data.view(stored).astype(np.float64)
    return gguf.dequantize(data, entry.ggml_type).astype(np.float64)


def relative_error(result: np.ndarray, reference: np.ndarray) -> float:
    """Return ||result - reference|| / ||reference||, NaN where the result has one."""
    difference = result.astype(np.float64) - reference
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))


def product_error(result: np.ndarray, x: np.ndarray, matrix: np.ndarray) -> float:
    """
    Return the error of x (..., K) times the transpose of a matrix (M, K), against float64.

    It is relative to the norm of the product, or to what that norm is on average for terms of
    this size and random signs: a single sum may by chance be next to nothing.
    """
    x = x.astype(np.float64)
    reference = x @ matrix.T
    typical = np.sqrt((x * x) @ (matrix * matrix).T)
    difference = result.astype(np.float64) - reference
    return float(np.linalg.norm(difference) / max(
        np.linalg.norm(reference), np.linalg.norm(typical)))
