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

"""Embedding rows against the gguf package's dequantization."""

from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest
from test_gemv import every_format, lengths
from weights import BY_SUFFIX, dequantized, Format, random_weights, relative_error


def embed(device: Any, suffix: str, ids: np.ndarray, table: np.ndarray, length: int,
          width: int) -> np.ndarray:
    """Run embed_row in a grid of some width."""
    x = poisoned((len(ids), length), np.float32)
    device.run('embed', f'embed_row_{suffix}', (width, len(ids)), 128, [
        x, constant(ids.astype(np.int32)), table, np.int32(length)])
    return x


@every_format
def test_embed_row(device: Any, rng: np.random.Generator, entry: Format) -> None:
    for length in lengths(entry):
        table = random_weights(rng, entry, 50, length)
        ids = np.append(rng.integers(0, 50, 5), [0, 49])
        x = embed(device, entry.suffix, ids, table, length, (length + 1023) // 1024)
        reference = dequantized(entry, table)[ids]
        # Element by element: no sum hides a wrong one.
        np.testing.assert_allclose(x, reference, rtol=1e-6, atol=2e-5 * np.abs(reference).max())
        assert relative_error(x, reference) <= 1e-6
        for width in (1, 7):
            np.testing.assert_array_equal(
                embed(device, entry.suffix, ids, table, length, width), x)


@pytest.mark.parametrize('suffix', ['q6k', 'q4_1'])
def test_the_last_row_of_a_real_vocabulary(
        device: Any, rng: np.random.Generator, suffix: str) -> None:
    entry, rows = BY_SUFFIX[suffix], 151936
    table = random_weights(rng, entry, rows, 256)
    x = embed(device, suffix, np.array([rows - 1]), table, 256, 1)
    assert relative_error(x, dequantized(entry, table[-1:])) <= 1e-6
