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

"""Sizes of generated models, and which tensor has which type."""

from collections.abc import Mapping
from dataclasses import dataclass

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from reflex_llm_ros.engine.gguf_config import expected_shapes

QWEN3_VOCABULARY = 151936


@dataclass(frozen=True)
class ModelShape:
    """
    Sizes of a model to generate; those that have defaults are Qwen3's.

    ``vocab_size`` 0 means as many rows as the vocabulary has tokens.
    """

    block_count: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    head_dim: int = 128
    vocab_size: int = QWEN3_VOCABULARY
    tied_output: bool = True
    qk_norm: bool = True
    context_length: int = 40960
    rope_base: float = 1e6
    rms_eps: float = 1e-6


TINY = ModelShape(
    block_count=2, embedding_length=256, feed_forward_length=512, head_count=4,
    head_count_kv=2, head_dim=64, vocab_size=0, context_length=512)

PRESETS: dict[str, ModelShape] = {
    'tiny': TINY,
    '0.6b': ModelShape(28, 1024, 3072, 16, 8),
    '1.7b': ModelShape(28, 2048, 6144, 16, 8),
    '4b': ModelShape(36, 2560, 9728, 32, 8),
    '8b': ModelShape(36, 4096, 12288, 32, 8, tied_output=False),
}
"""The Qwen3 family by name, and a model for tests."""

Q4_K = GGMLQuantizationType.Q4_K
Q6_K = GGMLQuantizationType.Q6_K

UNIFORM = {
    'q8_0': GGMLQuantizationType.Q8_0,
    'f16': GGMLQuantizationType.F16,
    'f32': GGMLQuantizationType.F32,
}
MIXES = ('q4_k_m', *UNIFORM)

FALLBACK = {
    Q4_K: GGMLQuantizationType.Q5_0,
    GGMLQuantizationType.Q5_K: GGMLQuantizationType.Q5_1,
    Q6_K: GGMLQuantizationType.Q8_0,
}
"""What takes the place of a K-quant whose blocks of 256 do not fill a row."""


def use_more_bits(block: int, block_count: int) -> bool:
    """Say whether Q4_K_M stores a block's attn_v and ffn_down as Q6_K."""
    eighth = block_count // 8
    return (block < eighth or block >= 7 * block_count // 8
            or (block - eighth) % 3 == 2)


def tensor_types(
    shape: ModelShape, mix: str, overrides: Mapping[str, GGMLQuantizationType]
) -> dict[str, GGMLQuantizationType]:
    """
    Choose the type of every tensor.

    Parameters
    ----------
    shape
        Sizes of the model.
    mix
        One of ``MIXES``. ``q4_k_m`` follows llama.cpp's mix of that name.
    overrides
        Types by tensor name, which go before the mix.

    Returns
    -------
    dict
        Types by tensor name, in the order of the file.

    Raises
    ------
    ValueError
        The mix is unknown, or an override names no tensor of the model.

    """
    if mix not in MIXES:
        raise ValueError(f'mix must be one of {", ".join(MIXES)}, not {mix!r}')
    types = {}
    for name, dimensions in expected_shapes(shape).items():
        if name in overrides:
            types[name] = overrides[name]
        elif len(dimensions) == 1:
            types[name] = GGMLQuantizationType.F32
        elif mix in UNIFORM:
            types[name] = _filling(UNIFORM[mix], dimensions[-1])
        else:
            types[name] = _filling(_q4_k_m(name, shape), dimensions[-1])
    unknown = set(overrides) - set(types)
    if unknown:
        raise ValueError(f'overrides name tensors that the model lacks: {sorted(unknown)}')
    return types


def _q4_k_m(name: str, shape: ModelShape) -> GGMLQuantizationType:
    if name == 'output.weight' or (name == 'token_embd.weight' and shape.tied_output):
        return Q6_K
    if (name.endswith(('.attn_v.weight', '.ffn_down.weight'))
            and use_more_bits(int(name.split('.')[1]), shape.block_count)):
        return Q6_K
    return Q4_K


def _filling(kind: GGMLQuantizationType, columns: int) -> GGMLQuantizationType:
    """Replace a type whose blocks do not fill a row of ``columns``."""
    if columns % GGML_QUANT_SIZES[kind][0]:
        kind = FALLBACK.get(kind, kind)
    if columns % GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType.F16
    return kind
