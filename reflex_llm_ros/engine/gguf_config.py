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

"""Sizes and constants of a model, and the tensors that they ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from reflex_llm_ros.engine.errors import ModelFileError
from reflex_llm_ros.engine.gguf_header import quote, TensorInfo
from reflex_llm_ros.engine.gguf_metadata import Metadata
from reflex_llm_ros.engine.gguf_rope import PAIRINGS, rope_config, RopeConfig

NEUTRAL = {
    'expert_count': 0,
    'use_parallel_residual': False,
    'logit_scale': 1,
    'residual_scale': 1,
    'embedding_scale': 1,
    'attn_logit_softcapping': 0,
    'final_logit_softcapping': 0,
    'nextn_predict_layers': 0,
    'attention.causal': True,
    'attention.scale': 0,
    'attention.clamp_kqv': 0,
    'attention.max_alibi_bias': 0,
    'attention.sliding_window': 0,
    'attention.temperature_scale': 0,
}
"""Keys that change what a model computes, with the one value that does not."""


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


class Sizes(Protocol):
    """What the shapes of a model's tensors follow from; a ModelConfig has it all."""

    @property
    def block_count(self) -> int:
        """L, the blocks."""

    @property
    def embedding_length(self) -> int:
        """E, the hidden size."""

    @property
    def feed_forward_length(self) -> int:
        """F, the feed-forward size."""

    @property
    def head_count(self) -> int:
        """H, the query heads."""

    @property
    def head_count_kv(self) -> int:
        """G, the key and value heads."""

    @property
    def head_dim(self) -> int:
        """D, the elements of a head."""

    @property
    def vocab_size(self) -> int:
        """V, the rows of the embedding."""

    @property
    def qk_norm(self) -> bool:
        """Whether each head of q and k has a norm."""

    @property
    def tied_output(self) -> bool:
        """Whether the embedding is the head as well."""


def check_architecture(metadata: Metadata) -> str:
    """Name the architecture; raises ModelFileError for one that the engine cannot run."""
    architecture = metadata.text('general.architecture')
    if architecture not in PAIRINGS:
        raise ModelFileError(
            f'the architecture {quote(architecture)} is not supported; use a model of '
            f'{" or ".join(PAIRINGS)}')
    if metadata.integer('split.count', 0, 1 << 16, 0) > 1:
        raise ModelFileError(
            'one part of a split model; join the parts with llama-gguf-split --merge')
    return architecture


def model_config(
    metadata: Metadata, tensors: Mapping[str, TensorInfo], divisors: np.ndarray | None
) -> ModelConfig:
    """
    Read the configuration.

    Parameters
    ----------
    metadata
        The file's metadata.
    tensors
        Every tensor of the file: their presence decides on a tied head, and the rows of
        ``token_embd.weight`` are the vocabulary.
    divisors
        The tensor ``rope_freqs.weight``, (D/2,), or None.

    Raises
    ------
    ModelFileError
        A key is missing, out of range or asks for what the engine does not compute.

    """
    architecture = check_architecture(metadata)
    prefix = f'{architecture}.'
    for key, value in NEUTRAL.items():
        _check_neutral(metadata, prefix + key, value)

    embedding = metadata.integer(prefix + 'embedding_length', 1, 1 << 20)
    heads = metadata.integer(prefix + 'attention.head_count', 1, 1 << 16)
    heads_kv = metadata.integer(prefix + 'attention.head_count_kv', 1, 1 << 16, heads)
    if heads % heads_kv:
        raise ModelFileError(
            f'{prefix}attention.head_count {heads} is not a multiple of head_count_kv '
            f'{heads_kv}; get an intact file')
    head_dim = _head_dim(metadata, prefix, embedding, heads)
    if 'token_embd.weight' not in tensors:
        raise ModelFileError(
            'tensor token_embd.weight is missing; give a model with weights, not a '
            'vocabulary or an adapter')
    return ModelConfig(
        architecture=architecture,
        name=metadata.text('general.name', ''),
        block_count=metadata.integer(prefix + 'block_count', 1, 1 << 12),
        context_length=metadata.integer(prefix + 'context_length', 1, 1 << 30),
        embedding_length=embedding,
        feed_forward_length=metadata.integer(prefix + 'feed_forward_length', 1, 1 << 24),
        head_count=heads,
        head_count_kv=heads_kv,
        head_dim=head_dim,
        vocab_size=tensors['token_embd.weight'].shape[0],
        rms_eps=metadata.number(prefix + 'attention.layer_norm_rms_epsilon', 1e-12, 0.1),
        rope=rope_config(metadata, architecture, head_dim, divisors),
        qk_norm=architecture == 'qwen3',
        tied_output='output.weight' not in tensors,
    )


def _check_neutral(metadata: Metadata, key: str, neutral: float) -> None:
    if not metadata.has(key):
        return
    if isinstance(neutral, bool):
        value: float = metadata.boolean(key, neutral)
    else:
        value = metadata.number(key, -1e12, 1e12)
    if value != neutral:
        raise ModelFileError(f'{key} {value:g} is not supported; use another model')


def _head_dim(metadata: Metadata, prefix: str, embedding: int, heads: int) -> int:
    key = prefix + 'attention.key_length'
    if not metadata.has(key) and embedding % heads:
        raise ModelFileError(
            f'{prefix}embedding_length {embedding} is not a multiple of attention.head_count '
            f'{heads} and {key} is missing; get an intact file')
    head_dim = metadata.integer(key, 2, 1 << 12, embedding // heads)
    value_length = metadata.integer(
        prefix + 'attention.value_length', 1, 1 << 12, head_dim)
    if head_dim % 2 or value_length != head_dim:
        raise ModelFileError(
            f'{key} {head_dim} with value_length {value_length} is not supported: they must '
            'be equal and even; use another model')
    return head_dim


def expected_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that the forward pass reads, by name; matrices are (out, in)."""
    e, f, d = sizes.embedding_length, sizes.feed_forward_length, sizes.head_dim
    q, kv = sizes.head_count * d, sizes.head_count_kv * d
    block: dict[str, tuple[int, ...]] = {
        'attn_norm': (e,), 'attn_q': (q, e), 'attn_k': (kv, e), 'attn_v': (kv, e),
        'attn_output': (e, q),
        'ffn_norm': (e,), 'ffn_gate': (f, e), 'ffn_up': (f, e), 'ffn_down': (e, f),
    }
    if sizes.qk_norm:
        block.update(attn_q_norm=(d,), attn_k_norm=(d,))
    shapes: dict[str, tuple[int, ...]] = {'token_embd.weight': (sizes.vocab_size, e)}
    for index in range(sizes.block_count):
        for name, shape in block.items():
            shapes[f'blk.{index}.{name}.weight'] = shape
    shapes['output_norm.weight'] = (e,)
    if not sizes.tied_output:
        shapes['output.weight'] = (sizes.vocab_size, e)
    return shapes


def check_tensors(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> None:
    """
    Compare the tensors of a file with those that the forward pass reads.

    Raises
    ------
    ModelFileError
        One is missing or has another shape, or there is one that the forward pass does not
        read: a bias or an expert left out would change every answer without a word.

    """
    shapes = expected_shapes(config)
    for name, shape in shapes.items():
        info = tensors.get(name)
        if info is None:
            raise ModelFileError(f'tensor {name} is missing; get an intact file')
        if info.shape != shape:
            raise ModelFileError(
                f'tensor {name} has the shape {list(info.shape)} where the metadata asks for '
                f'{list(shape)}; get an intact file')
    for name in tensors:
        if name not in shapes and name != 'rope_freqs.weight':
            raise ModelFileError(
                f'tensor {quote(name)} is no part of a dense {config.architecture} model; '
                'use a model without it')
