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
Random weights for generated models.

Their scales keep a forward pass sane at any depth: every projection maps unit vectors to
about unit vectors, what the blocks add to the residual stream sums to a few, and logits
spread enough that a greedy choice has a margin.
"""

from collections.abc import Iterator
import math
import zlib

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
import numpy as np
from reflex_llm_ros.synthetic.model_shape import ModelShape
from reflex_llm_ros.synthetic.quantize import pack_scales, quantize

LOGIT_SPREAD = 3.0
ADDED_RMS = 4.0
"""RMS of what all blocks add: well above the embedding's, or a tied head would answer every
token with itself."""

SWIGLU_RMS = 0.6
"""RMS of silu(gate) * up for gate and up of unit variance."""

CHUNK_BYTES = 1 << 24

FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


def standard_deviation(name: str, shape: ModelShape) -> float:
    """Spread of a matrix's weights."""
    part = name.split('.')[-2]
    e, f = shape.embedding_length, shape.feed_forward_length
    added = ADDED_RMS / math.sqrt(2 * shape.block_count)
    if part in ('token_embd', 'output'):
        return LOGIT_SPREAD / math.sqrt(e)
    if part == 'attn_output':
        return added / math.sqrt(shape.head_count * shape.head_dim)
    if part == 'ffn_down':
        return added / (SWIGLU_RMS * math.sqrt(f))
    return 1.0 / math.sqrt(e)


def _generator(seed: int, name: str) -> np.random.Generator:
    """Random numbers of one tensor: the same whatever else the file holds."""
    return np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))


def quantized(
    name: str, dimensions: tuple[int, ...], kind: GGMLQuantizationType, shape: ModelShape,
    seed: int,
) -> np.ndarray:
    """
    Draw real weights and quantize them, (rows, bytes a row) uint8.

    A vector is a norm's and lies in 0.8 to 1.2.
    """
    random = _generator(seed, name)
    if len(dimensions) == 1:
        weights = random.uniform(0.8, 1.2, (1, *dimensions)).astype(np.float32)
    else:
        weights = random.standard_normal(dimensions, np.float32)
        weights *= np.float32(standard_deviation(name, shape))
    return quantize(weights, kind)


def synthesized(
    name: str, dimensions: tuple[int, ...], kind: GGMLQuantizationType, shape: ModelShape,
    seed: int,
) -> Iterator[np.ndarray]:
    """
    Write a matrix's blocks directly, in pieces: random levels under plausible scales.

    The weights are spread evenly, not normally, with mean zero and the standard deviation
    that ``quantized`` has. Several hundred MB/s, where a quantizer does one or two.
    """
    random = _generator(seed, name)
    deviation = standard_deviation(name, shape)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    left = math.prod(dimensions) // block
    step = CHUNK_BYTES // block_bytes
    while left:
        count = min(left, step)
        if kind in FLOATS:
            floats = random.standard_normal((1, count), np.float32)
            yield quantize(floats * np.float32(deviation), kind)
        else:
            yield _blocks(random, count, kind, deviation)
        left -= count


def _blocks(
    random: np.random.Generator, count: int, kind: GGMLQuantizationType, deviation: float
) -> np.ndarray:
    """Make blocks (count, bytes a block) of one type."""
    block_bytes = GGML_QUANT_SIZES[kind][1]
    words = random.integers(0, 1 << 64, -(-count * block_bytes // 8), np.uint64)
    blocks = words.view(np.uint8)[:count * block_bytes].reshape(count, block_bytes)
    unit = (deviation * random.uniform(0.9, 1.1, (count, 1))).astype(np.float32)

    def put_half(at: int, values: np.ndarray) -> None:
        blocks[:, at:at + 2] = values.astype('<f2').view(np.uint8)

    def levels(number: int) -> float:
        """Return the standard deviation of that many equally likely levels."""
        return math.sqrt((number ** 2 - 1) / 12)

    name = kind.name
    if name in ('Q4_0', 'Q5_0', 'Q8_0'):
        # Levels reach one further below zero than above: either sign of the scale, evenly.
        signs = random.choice(np.array([-1, 1], np.float32), (count, 1))
        put_half(0, signs * unit / levels({'Q4_0': 16, 'Q5_0': 32, 'Q8_0': 256}[name]))
    elif name in ('Q4_1', 'Q5_1'):
        number = 16 if name == 'Q4_1' else 32
        put_half(0, unit / levels(number))
        put_half(2, unit / levels(number) * -(number - 1) / 2)
    elif name in ('Q4_K', 'Q5_K'):
        number = 16 if name == 'Q4_K' else 32
        scales = random.integers(33, 63, (count, 8), np.uint8)
        minima = scales - 1 + random.integers(0, 3, (count, 8), np.uint8)
        blocks[:, 4:16] = pack_scales(scales, minima)
        put_half(0, unit / (levels(number) * 48))
        put_half(2, unit / (levels(number) * 48) * (number - 1) / 2)
    elif name == 'Q6_K':
        scales = random.integers(64, 128, (count, 16), np.uint8).view(np.int8)
        signs = np.where(blocks[:, 192:208] & 1, np.int8(-1), np.int8(1))
        blocks[:, 192:208] = (scales * signs).view(np.uint8)
        put_half(208, unit / (levels(64) * 97))
    else:
        raise ValueError(f'there are no synthetic blocks of {name}')
    return blocks
