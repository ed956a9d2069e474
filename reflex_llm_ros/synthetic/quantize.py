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
Quantize real weights into the block formats of ggml, in NumPy.

A block of 32 (``*_0``, ``*_1``) holds one float16 scale, and a float16 minimum where it is
``*_1``. A K-quant super-block of 256 holds float16 scales of its sub-blocks' integer scales.
Layouts: the block structures of https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h

Every quantizer rounds against the scale as the decoder will see it (float16, 6 or 8 bits),
clamps it to what float16 holds, and the K-quants search it for the least squared error.
"""

from collections.abc import Callable

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
import numpy as np

MAX_HALF = 65504.0
BLOCK = 32
CHUNK = 1 << 20

Blocks = np.ndarray
"""Weights by block, (n, 32) or (n, 256) float32."""


def quantize(weights: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """
    Quantize a matrix row by row.

    Parameters
    ----------
    weights
        (rows, K) finite floats; K is a multiple of the type's block.
    kind
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K.

    Returns
    -------
    np.ndarray
        (rows, bytes a row) uint8.

    Raises
    ------
    ValueError
        A weight is not finite, K does not fill whole blocks, or the type is another.

    """
    weights = np.ascontiguousarray(weights, np.float32)
    if not np.isfinite(weights).all():
        raise ValueError('weights must be finite')
    block, block_bytes = GGML_QUANT_SIZES[kind]
    rows, columns = weights.shape
    if columns % block:
        raise ValueError(f'{kind.name} needs rows of a multiple of {block}, not {columns}')
    if kind not in _QUANTIZERS:
        raise ValueError(f'there is no quantizer for {kind.name}')
    blocks = weights.reshape(-1, block)
    out = np.empty((len(blocks), block_bytes), np.uint8)
    step = CHUNK // block
    for start in range(0, len(blocks), step):
        out[start:start + step] = _QUANTIZERS[kind](blocks[start:start + step])
    return out.reshape(rows, -1)


def _f32(blocks: Blocks) -> np.ndarray:
    return blocks.view(np.uint8)


def _f16(blocks: Blocks) -> np.ndarray:
    return _half(blocks).view(np.uint8)


def _bf16(blocks: Blocks) -> np.ndarray:
    """Keep the upper half of a float32, rounded to even."""
    bits = blocks.view(np.uint32)
    rounded = bits + (0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1)))
    # Rounding up past the largest bfloat16 would make an infinity of a finite number.
    largest = (bits & np.uint32(0x80000000)) | np.uint32(0x7F7F0000)
    overflows = (rounded & np.uint32(0x7F800000)) == 0x7F800000
    kept = np.where(overflows, largest, rounded) >> np.uint32(16)
    return kept.astype('<u2').view(np.uint8)


def _half(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -MAX_HALF, MAX_HALF).astype('<f2')


def _divide(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Divide in float64 (a float16 scale may be tiny); 0 where the scale is 0."""
    values, scale = np.broadcast_arrays(
        np.asarray(values, np.float64), np.asarray(scale, np.float64))
    return np.divide(values, scale, out=np.zeros(values.shape), where=scale != 0)


def _level(values: np.ndarray, scale: np.ndarray, low: int, high: int) -> np.ndarray:
    """Nearest of the integers low to high to ``values / scale``."""
    return np.clip(np.rint(_divide(values, scale)), low, high).astype(np.int32)


def _extreme(blocks: Blocks) -> np.ndarray:
    """Largest magnitude of each block with its sign, (n, 1)."""
    at = np.abs(blocks).argmax(axis=-1)[..., None]
    return np.take_along_axis(blocks, at, axis=-1)


def _nibbles(levels: np.ndarray) -> np.ndarray:
    """Pack (n, 32) levels: the first 16 in low nibbles, the others in high ones."""
    return (levels[:, :16] & 15 | (levels[:, 16:] & 15) << 4).astype(np.uint8)


def _fifth_bits(levels: np.ndarray) -> np.ndarray:
    return np.packbits((levels >> 4).astype(np.uint8), axis=-1, bitorder='little')


def _symmetric(blocks: Blocks, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale (n, 1) float16 and levels (n, 32) with the zero in the middle of the range."""
    zero = 1 << (bits - 1)
    scale = _half(_extreme(blocks) / -zero)
    return scale, _level(blocks, scale, -zero, zero - 1) + zero


def _affine(blocks: Blocks, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale and minimum (n, 1) float16 and levels (n, 32) above the minimum."""
    top = (1 << bits) - 1
    low = blocks.min(axis=-1, keepdims=True).astype(np.float64)
    scale = _half((blocks.max(axis=-1, keepdims=True) - low) / top)
    minimum = _half(low)
    return scale, minimum, _level(blocks - minimum.astype(np.float64), scale, 0, top)


def _q4_0(blocks: Blocks) -> np.ndarray:
    scale, levels = _symmetric(blocks, 4)
    return np.hstack([scale.view(np.uint8), _nibbles(levels)])


def _q4_1(blocks: Blocks) -> np.ndarray:
    scale, minimum, levels = _affine(blocks, 4)
    return np.hstack([scale.view(np.uint8), minimum.view(np.uint8), _nibbles(levels)])


def _q5_0(blocks: Blocks) -> np.ndarray:
    scale, levels = _symmetric(blocks, 5)
    return np.hstack([scale.view(np.uint8), _fifth_bits(levels), _nibbles(levels)])


def _q5_1(blocks: Blocks) -> np.ndarray:
    scale, minimum, levels = _affine(blocks, 5)
    return np.hstack([
        scale.view(np.uint8), minimum.view(np.uint8), _fifth_bits(levels), _nibbles(levels)])


def _q8_0(blocks: Blocks) -> np.ndarray:
    scale = _half(np.abs(_extreme(blocks)) / 127)
    levels = _level(blocks, scale, -127, 127)
    return np.hstack([scale.view(np.uint8), levels.astype(np.int8).view(np.uint8)])


def _search_affine(sub: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Scale and minimum of least squared error for levels 0 to top.

    Returns
    -------
    scale, minimum : np.ndarray
        (..., 1); the minimum is at most 0, as the format stores its negative unsigned.

    """
    low = np.minimum(sub.min(axis=-1, keepdims=True), 0.0)
    span = np.maximum(sub.max(axis=-1, keepdims=True), 0.0) - low
    best_scale, best_low = span / top, low
    best_error = np.full(low.shape, np.inf)
    # Levels from a slightly narrower range, then the line that fits them best.
    for shrink in np.linspace(1.0, 0.8, 9):
        levels = _level(sub - low, span / top * shrink, 0, top).astype(np.float64)
        mean_level = levels.mean(axis=-1, keepdims=True)
        mean = sub.mean(axis=-1, keepdims=True)
        spread = ((levels - mean_level) ** 2).sum(axis=-1, keepdims=True)
        slope = _divide(
            ((levels - mean_level) * (sub - mean)).sum(axis=-1, keepdims=True), spread)
        offset = mean - slope * mean_level
        through_zero = _divide(
            (levels * sub).sum(axis=-1, keepdims=True),
            (levels ** 2).sum(axis=-1, keepdims=True))
        slope = np.where(offset > 0, through_zero, slope)
        offset = np.minimum(offset, 0.0)
        error = ((slope * levels + offset - sub) ** 2).sum(axis=-1, keepdims=True)
        better = (error < best_error) & (slope >= 0)
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, slope, best_scale)
        best_low = np.where(better, offset, best_low)
    return best_scale, best_low


def _affine_super(blocks: Blocks, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Head bytes (d, dmin, 6-bit scales and minima) and levels (n, 8, 32) of Q4_K, Q5_K."""
    top = (1 << bits) - 1
    sub = blocks.reshape(-1, 8, BLOCK).astype(np.float64)
    scale, low = _search_affine(sub, top)
    d = _half(scale.max(axis=1) / 63)
    dmin = _half((-low).max(axis=1) / 63)
    scales = _level(scale[..., 0], d, 0, 63)
    minima = _level(-low[..., 0], dmin, 0, 63)
    step = d.astype(np.float64) * scales
    floor = dmin.astype(np.float64) * minima
    levels = _level(sub + floor[..., None], step[..., None], 0, top)
    return np.hstack([
        d.view(np.uint8), dmin.view(np.uint8), pack_scales(scales, minima)]), levels


def pack_scales(scales: np.ndarray, minima: np.ndarray) -> np.ndarray:
    """Pack 6-bit scales and minima (n, 8) of Q4_K and Q5_K into (n, 12) uint8."""
    return np.concatenate([
        scales[:, :4] | (scales[:, 4:] >> 4) << 6,
        minima[:, :4] | (minima[:, 4:] >> 4) << 6,
        scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4,
    ], axis=1).astype(np.uint8)


def _paired_nibbles(levels: np.ndarray) -> np.ndarray:
    """Pack (n, 8, 32): sub-block 2j in the low nibbles of 32 bytes, 2j + 1 in the high."""
    pairs = levels[:, 0::2] & 15 | (levels[:, 1::2] & 15) << 4
    return pairs.astype(np.uint8).reshape(len(levels), -1)


def _q4_k(blocks: Blocks) -> np.ndarray:
    head, levels = _affine_super(blocks, 4)
    return np.hstack([head, _paired_nibbles(levels)])


def _q5_k(blocks: Blocks) -> np.ndarray:
    head, levels = _affine_super(blocks, 5)
    fifth = np.packbits((levels >> 4).astype(np.uint8), axis=1, bitorder='little')
    return np.hstack([head, fifth[:, 0], _paired_nibbles(levels)])


def _search_symmetric(sub: np.ndarray, zero: int) -> np.ndarray:
    """Signed scale (..., 1) of least squared error for levels -zero to zero - 1."""
    extreme = _extreme(sub)
    best = extreme / -zero
    best_error = np.full(best.shape, np.inf)
    for shrink in np.linspace(1.0, 0.8, 9):
        levels = _level(sub, extreme / -zero * shrink, -zero, zero - 1).astype(np.float64)
        slope = _divide(
            (levels * sub).sum(axis=-1, keepdims=True),
            (levels ** 2).sum(axis=-1, keepdims=True))
        error = ((slope * levels - sub) ** 2).sum(axis=-1, keepdims=True)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best = np.where(better, slope, best)
    return best


def _q6_k(blocks: Blocks) -> np.ndarray:
    sub = blocks.reshape(-1, 16, 16).astype(np.float64)
    scale = _search_symmetric(sub, 32)[..., 0]
    d = _half(_extreme(scale) / -128)
    scales = _level(scale, d, -128, 127)
    step = d.astype(np.float64) * scales
    levels = (_level(sub, step[..., None], -32, 31) + 32).reshape(-1, 2, 4, 32)
    low = levels[:, :, :2] & 15 | (levels[:, :, 2:] & 15) << 4
    high = (levels >> 4) << np.array([0, 2, 4, 6]).reshape(4, 1)
    return np.hstack([
        low.astype(np.uint8).reshape(len(blocks), -1),
        high.sum(axis=2).astype(np.uint8).reshape(len(blocks), -1),
        scales.astype(np.int8).view(np.uint8),
        d.view(np.uint8),
    ])


_QUANTIZERS: dict[GGMLQuantizationType, Callable[[Blocks], np.ndarray]] = {
    GGMLQuantizationType.F32: _f32,
    GGMLQuantizationType.F16: _f16,
    GGMLQuantizationType.BF16: _bf16,
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q5_1: _q5_1,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
}
