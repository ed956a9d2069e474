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

"""
The dense decoders, Qwen3 and Llama: their weights and their forward pass.

Both are pre-norm transformers with grouped-query attention and a SwiGLU feed-forward.
They differ in two places: Qwen3 normalizes each head of q and k (``attn_q_norm``,
``attn_k_norm``), and the rotary embedding pairs other elements
(``ModelConfig.rope.pairing``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reflex_llm_ros.engine.gguf_model import ModelConfig

Array = TypeVar('Array')
Weight = TypeVar('Weight')
Batch_contra = TypeVar('Batch_contra', contravariant=True)


@dataclass(frozen=True)
class DenseLayer(Generic[Weight]):
    """One block's weights; matrices are (out, in)."""

    index: int
    attn_norm: Weight
    attn_q: Weight
    attn_k: Weight
    attn_v: Weight
    attn_q_norm: Weight | None
    attn_k_norm: Weight | None
    attn_output: Weight
    ffn_norm: Weight
    ffn_gate: Weight
    ffn_up: Weight
    ffn_down: Weight


@dataclass(frozen=True)
class DenseWeights(Generic[Weight]):
    """A whole model's weights; ``output`` is ``token_embd`` when the head is tied."""

    token_embd: Weight
    layers: tuple[DenseLayer[Weight], ...]
    output_norm: Weight
    output: Weight


class DenseSteps(Protocol[Array, Weight, Batch_contra]):
    """
    What a backend does in a dense forward pass.

    A batch is N consecutive tokens of one sequence, with ids and positions where the
    backend keeps them. Arrays live where the backend works: x (N, E); q (N, H, D);
    k, v (N, G, D).
    """

    def embed(self, table: Weight, batch: Batch_contra) -> Array:
        """Rows of the embedding, x (N, E)."""

    def norm_qkv(
        self, x: Array, layer: DenseLayer[Weight], batch: Batch_contra
    ) -> tuple[Array, Array, Array]:
        """RMSNorm, then the three projections: q, k, v."""

    def rope_store(
        self, q: Array, k: Array, v: Array, layer: DenseLayer[Weight], batch: Batch_contra
    ) -> Array:
        """Head norms where the layer has them, rotary embedding, k and v to the cache: q."""

    def attention(self, q: Array, layer: DenseLayer[Weight], batch: Batch_contra) -> Array:
        """Causal attention against the cache, (N, H*D)."""

    def linear_add(self, x: Array, weight: Weight, residual: Array, batch: Batch_contra) -> Array:
        """``residual + x @ weight.T``, (N, E)."""

    def norm_gate_up(self, x: Array, layer: DenseLayer[Weight], batch: Batch_contra) -> Array:
        """RMSNorm, then ``silu(gate) * up``, (N, F)."""

    def norm_logits(
        self, x: Array, norm: Weight, output: Weight, batch: Batch_contra
    ) -> Array:
        """Norm and head of the last position: logits (V,) float32."""


def forward(
    steps: DenseSteps[Array, Weight, Batch_contra],
    weights: DenseWeights[Weight],
    batch: Batch_contra,
) -> Array:
    """Logits (V,) of the last of N tokens."""
    x = steps.embed(weights.token_embd, batch)
    for layer in weights.layers:
        q, k, v = steps.norm_qkv(x, layer, batch)
        q = steps.rope_store(q, k, v, layer, batch)
        heads = steps.attention(q, layer, batch)
        x = steps.linear_add(heads, layer.attn_output, x, batch)
        hidden = steps.norm_gate_up(x, layer, batch)
        x = steps.linear_add(hidden, layer.ffn_down, x, batch)
    return steps.norm_logits(x, weights.output_norm, weights.output, batch)


def load_weights(
    config: ModelConfig, place: Callable[[str], Weight]
) -> DenseWeights[Weight]:
    """Place every tensor of the model, in file-independent order, by its GGUF name."""
    token_embd = place('token_embd.weight')
    layers = tuple(_load_layer(config, index, place) for index in range(config.block_count))
    output_norm = place('output_norm.weight')
    output = token_embd if config.tied_output else place('output.weight')
    return DenseWeights(token_embd, layers, output_norm, output)


def weight_names(config: ModelConfig) -> list[str]:
    """Return the names of the model's tensors, in the order in which they are placed."""
    names: list[str] = []
    load_weights(config, names.append)
    return names


def _load_layer(
    config: ModelConfig, index: int, place: Callable[[str], Weight]
) -> DenseLayer[Weight]:
    def block(name: str) -> Weight:
        return place(f'blk.{index}.{name}.weight')

    return DenseLayer(
        index=index,
        attn_norm=block('attn_norm'),
        attn_q=block('attn_q'),
        attn_k=block('attn_k'),
        attn_v=block('attn_v'),
        attn_q_norm=block('attn_q_norm') if config.qk_norm else None,
        attn_k_norm=block('attn_k_norm') if config.qk_norm else None,
        attn_output=block('attn_output'),
        ffn_norm=block('ffn_norm'),
        ffn_gate=block('ffn_gate'),
        ffn_up=block('ffn_up'),
        ffn_down=block('ffn_down'),
    )
