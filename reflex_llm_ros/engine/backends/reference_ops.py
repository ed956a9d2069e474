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
The operations of a decoder in plain NumPy: the reference that every kernel is checked against.

Each function computes in the dtype of its first argument: float32 arguments give the CPU
backend, float64 arguments the oracle. Nothing here knows a model or keeps a state.

Symbols: N tokens, T cached positions, E embedding, H query heads, G key/value heads,
D head dimension, F feed-forward, V vocabulary.
"""

import numpy as np
import numpy.typing as npt


def embed(table: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Rows (N, E) of a table (V, E) at token ids (N,)."""
    return np.ascontiguousarray(table[tokens])


def rmsnorm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """
    Normalize the last axis of x (..., E) by its root mean square; weight (E,).

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    mean_square = np.square(x).sum(axis=-1, keepdims=True) / x.shape[-1]
    return x / np.sqrt(mean_square + eps) * weight


def linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Product (N, M) of x (N, K) and the transpose of weight (M, K)."""
    return x @ weight.T


def rope_angles(
    positions: np.ndarray, frequencies: np.ndarray, dtype: npt.DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """
    Cosine and sine, both (N, D/2), of every position (N,) times every frequency (D/2,).

    Angles are float64 whatever the dtype of the result: at position 100,000 a float32 angle
    is off by up to 0.004 radians.
    """
    angles = np.multiply.outer(positions.astype(np.float64), frequencies)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def rope(
    x: np.ndarray, cosine: np.ndarray, sine: np.ndarray, pairing: str
) -> np.ndarray:
    """
    Rotate the pairs of every head of x (N, heads, D); cosine and sine (N, D/2).

    Pairs are (i, i + D/2) when ``pairing`` is ``half`` and (2i, 2i + 1) when it is
    ``adjacent``. Su et al., "RoFormer", 2021; GGUF files of the llama architecture hold q
    and k permuted to adjacent pairs.
    """
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    out = np.empty(x.shape, x.dtype)
    a, b = _pairs(x, pairing)
    rotated_a, rotated_b = _pairs(out, pairing)
    np.subtract(a * cosine, b * sine, out=rotated_a)
    np.add(a * sine, b * cosine, out=rotated_b)
    return out


def _pairs(x: np.ndarray, pairing: str) -> tuple[np.ndarray, np.ndarray]:
    if pairing == 'half':
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]
    return x[..., 0::2], x[..., 1::2]


def softmax(x: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis of x."""
    exponentials = x - x.max(axis=-1, keepdims=True)
    np.exp(exponentials, out=exponentials)
    exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return exponentials


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    k_scale: np.ndarray | None = None,
    v_scale: np.ndarray | None = None,
) -> np.ndarray:
    """
    Attend causally from the last N of T positions to all up to and including each.

    Parameters
    ----------
    q
        Queries (N, H, D) at positions T-N to T-1; head h reads key/value head h // (H/G).
    k, v
        Keys and values (T, G, D), of the dtype of q, or int8 with the scales below.
    k_scale, v_scale
        Scales (T, G) of int8 keys and values.

    Returns
    -------
    np.ndarray
        (N, H, D). Scores are scaled by the square root of D.

    """
    tokens, heads, dim = q.shape
    length, groups, _ = k.shape
    share = heads // groups
    by_group = q.reshape(tokens, groups, share, dim).transpose(1, 0, 2, 3)
    queries = by_group.reshape(groups, tokens * share, dim) * q.dtype.type(dim ** -0.5)
    scores = queries @ _as(q.dtype, k).transpose(1, 2, 0)
    if k_scale is not None:
        scores *= k_scale.T[:, None, :]
    if tokens > 1:
        # The first T-N positions are behind every query; only the last N need a mask.
        ahead = np.triu(np.ones((tokens, tokens), bool), 1).repeat(share, axis=0)
        scores[..., length - tokens:][:, ahead] = -np.inf
    weights = softmax(scores)
    if v_scale is not None:
        weights *= v_scale.T[:, None, :]
    mixed = weights @ _as(q.dtype, v).transpose(1, 0, 2)
    by_token = mixed.reshape(groups, tokens, share, dim).transpose(1, 0, 2, 3)
    return by_token.reshape(tokens, heads, dim)


def _as(dtype: np.dtype, x: np.ndarray) -> np.ndarray:
    return x if x.dtype == dtype else x.astype(dtype)


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """
    Product of silu(gate) and up, both (N, F).

    Shazeer, "GLU Variants Improve Transformer", 2020.
    """
    # A large negative gate overflows to infinity, and dividing by that is the right zero.
    with np.errstate(over='ignore'):
        return gate / (1 + np.exp(-gate)) * up


def quantize_kv_int8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Round every head of keys or values x (N, G, D) to int8 with a scale of its own.

    Returns
    -------
    tuple of np.ndarray
        Values (N, G, D) int8 and scales (N, G) of the dtype of x: the largest magnitude
        over 127. Each element is off by at most half its scale; a head of zeros has scale 0.

    """
    scale = np.max(np.abs(x), axis=-1) / 127
    divisor = np.where(scale == 0, 1, scale)
    return np.rint(x / divisor[..., None]).astype(np.int8), scale
