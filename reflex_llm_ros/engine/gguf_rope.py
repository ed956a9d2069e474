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
Rotary position embedding: the frequencies that a GGUF file's metadata asks for.

Sources: Su et al. 2021, RoFormer (base frequencies); Peng et al. 2023, YaRN: Efficient
Context Window Extension of Large Language Models (``yarn``); the Llama 3.1 model card, whose
scaling arrives as the tensor ``rope_freqs.weight`` of divisors.
"""

from dataclasses import dataclass
import math

import numpy as np
from reflex_llm_ros.engine.errors import ModelFileError
from reflex_llm_ros.engine.gguf_header import quote
from reflex_llm_ros.engine.gguf_metadata import Metadata

PAIRINGS = {'qwen3': 'half', 'llama': 'adjacent'}
"""Which elements of a head turn together, by architecture."""


@dataclass(frozen=True)
class RopeConfig:
    """
    Rotary position embedding.

    ``pairing`` is ``half`` for pairs (i, i + D/2) and ``adjacent`` for pairs (2i, 2i + 1);
    the angle of pair i at a position is ``position * frequencies[i]`` with frequencies (D/2,)
    float64, all scaling folded in. Sine and cosine are multiplied by ``magnitude``, for
    queries and keys alike; it is 1 except under YaRN scaling.
    """

    pairing: str
    frequencies: np.ndarray
    magnitude: float = 1.0


def rope_config(
    metadata: Metadata, architecture: str, head_dim: int, divisors: np.ndarray | None
) -> RopeConfig:
    """
    Build the rotary embedding of a head of ``head_dim``.

    Parameters
    ----------
    metadata
        The file's metadata; keys ``<architecture>.rope.*`` are read.
    architecture
        A key of ``PAIRINGS``.
    head_dim
        Elements of a head, all of which turn.
    divisors
        The tensor ``rope_freqs.weight``, (D/2,), or None.

    Raises
    ------
    ModelFileError
        The scaling is of a kind that is not implemented, or its numbers make no sense.

    """
    prefix = f'{architecture}.rope.'
    turned = metadata.integer(prefix + 'dimension_count', 1, 1 << 16, head_dim)
    if turned != head_dim:
        raise ModelFileError(
            f'{prefix}dimension_count is {turned} with heads of {head_dim}: partial rotation '
            'is not supported; use another model')
    base = metadata.number(prefix + 'freq_base', 1.0, 1e12, 10000.0)
    frequencies = base ** (-2.0 * np.arange(head_dim // 2) / head_dim)
    if divisors is not None:
        if divisors.shape != frequencies.shape:
            raise ModelFileError(
                f'tensor rope_freqs.weight has the shape {list(divisors.shape)}, heads of '
                f'{head_dim} need {list(frequencies.shape)}; get an intact file')
        if not np.all(np.isfinite(divisors)) or np.any(divisors <= 0):
            raise ModelFileError(
                'tensor rope_freqs.weight holds divisors that are not positive; '
                'get an intact file')
        frequencies = frequencies / divisors
    return _scaled(metadata, prefix, PAIRINGS[architecture], base, frequencies)


def _scaled(
    metadata: Metadata, prefix: str, pairing: str, base: float, frequencies: np.ndarray
) -> RopeConfig:
    """Apply ``rope.scaling.*``; a factor without a type means linear, as in older files."""
    factor_key = prefix + 'scaling.factor'
    if not metadata.has(factor_key) and metadata.has(prefix + 'scale_linear'):
        factor_key = prefix + 'scale_linear'
    factor = metadata.number(factor_key, 0.0, 1e4, 0.0) or 1.0
    kind = metadata.text(prefix + 'scaling.type', 'linear')
    attention = metadata.number(prefix + 'scaling.attn_factor', 1e-3, 1e3, 1.0)
    if kind != 'yarn' and attention != 1.0:
        raise ModelFileError(
            f'{prefix}scaling.attn_factor is supported with yarn scaling only; '
            'use another model')
    if kind == 'none':
        return RopeConfig(pairing, frequencies)
    if kind == 'linear':
        return RopeConfig(pairing, frequencies / factor)
    if kind == 'yarn':
        return _yarn(metadata, prefix, pairing, base, frequencies, factor, attention)
    raise ModelFileError(
        f'{prefix}scaling.type {quote(kind)} is not supported (none, linear and yarn are); '
        'use another model')


def _yarn(
    metadata: Metadata, prefix: str, pairing: str, base: float, frequencies: np.ndarray,
    factor: float, attention: float,
) -> RopeConfig:
    """
    Scale by parts (YaRN, section 3.2) and temper attention (section 3.4).

    A pair that turns more than ``beta_fast`` times within the original context keeps its
    frequency, one that turns less than ``beta_slow`` times is interpolated, those between
    are mixed. The paper mixes linearly in the number of turns; its authors' code and every
    runtime that models are tested with mix linearly in the pair's index, between bounds
    rounded outwards, and so does this.
    """
    original = metadata.integer(prefix + 'scaling.original_context_length', 1, 1 << 30)
    fast = metadata.number(prefix + 'scaling.yarn_beta_fast', 1e-3, 1e6, 32.0)
    slow = metadata.number(prefix + 'scaling.yarn_beta_slow', 1e-3, 1e6, 1.0)
    attention *= metadata.number(prefix + 'scaling.yarn_attn_factor', 1e-3, 1e3, 1.0)
    extrapolation = metadata.number(prefix + 'scaling.yarn_ext_factor', 0.0, 1.0, 1.0)
    if extrapolation != 1.0 or metadata.number(
            prefix + 'scaling.yarn_log_multiplier', -1e3, 1e3, 0.0) != 0.0:
        raise ModelFileError(
            f'{prefix}scaling.yarn_ext_factor and yarn_log_multiplier are not supported; '
            'use another model')
    if factor < 1.0 or base <= 1.0:
        raise ModelFileError(
            f'{prefix}scaling.factor is {factor:g} and freq_base {base:g}: yarn needs at '
            'least 1 and more than 1; get an intact file')
    pairs = len(frequencies)

    def pair_turning(turns: float) -> float:
        return pairs * math.log(original / (turns * 2.0 * math.pi)) / math.log(base)

    low = max(0, math.floor(pair_turning(fast)))
    high = min(2 * pairs - 1, math.ceil(pair_turning(slow)))
    interpolated = np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0.0, 1.0)
    return RopeConfig(
        pairing,
        frequencies * (1.0 - interpolated) + frequencies / factor * interpolated,
        attention * (1.0 + 0.1 * math.log(factor)))
