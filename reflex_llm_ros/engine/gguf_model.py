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

"""A GGUF file opened over one memory map: configuration, tensors, tokenizer metadata."""

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

import numpy as np
from gguf import GGMLQuantizationType


@dataclass(frozen=True)
class RopeConfig:
    """
    Rotary position embedding.

    ``pairing`` is ``half`` for pairs (i, i + D/2) and ``adjacent`` for pairs (2i, 2i + 1);
    the angle of pair i at a position is ``position * frequencies[i]`` with frequencies (D/2,)
    float64, all scaling folded in.
    """

    pairing: str
    frequencies: np.ndarray


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a model, from the file's metadata."""

    architecture: str
    name: str
    block_count: int
    context_length: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    head_dim: int
    vocab_size: int
    rms_eps: float
    rope: RopeConfig
    qk_norm: bool
    tied_output: bool


@dataclass(frozen=True)
class Tensor:
    """
    One tensor as it lies in the file.

    ``shape`` is row-major, (out, in) for a matrix; ``data`` (rows, bytes a row) uint8 is a
    read-only view into the map.
    """

    name: str
    type: GGMLQuantizationType
    shape: Tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True)
class TokenizerMetadata:
    """The ``tokenizer.ggml.*`` keys that the tokenizer is built from."""

    model: str
    pre: str
    tokens: Tuple[str, ...]
    token_types: Tuple[int, ...]
    merges: Tuple[str, ...]
    bos_token_id: Optional[int]
    eos_token_id: Optional[int]
    eot_token_id: Optional[int]
    add_bos_token: bool
    add_space_prefix: bool


class GgufModel:
    """An open file; ``close`` gives the map back."""

    config: ModelConfig
    tensors: Dict[str, Tensor]
    tokenizer: TokenizerMetadata
    chat_template: Optional[str]
    file_bytes: int

    @classmethod
    def open(cls, path: str) -> 'GgufModel':
        """Open and check a file; raises ModelFileError with one line naming the fault."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop every view into the map and the map itself."""
