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

"""Activations of the persistent kernel (quantize_hidden.cu) against what they stand for."""

from devices import PlainShim, poisoned
import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.persistent import THREADS, WORDS

KERNEL = 'quantize_hidden'
SHARED_BYTES = 128 << 10


@pytest.mark.parametrize('activations', ['a8', 'a8x2'])
@pytest.mark.parametrize('length', [1024, 12288, 12800, 25600])
def test_activations_of_any_length_are_rounded_alike(
    length: int, activations: str, rng: np.random.Generator
) -> None:
    shim, words = PlainShim(), WORDS[activations]
    shim.define(KERNEL, {
        'DECODE_LAYERS': 1, 'DECODE_EMBEDDING': 512, 'DECODE_FEED_FORWARD': length,
        'DECODE_HEADS': 4, 'DECODE_GROUPS': 4, 'DECODE_VOCAB': 512, 'DECODE_WORDS': words,
        'DECODE_SHARED_BYTES': SHARED_BYTES, 'DECODE_BLOCKS': 8, 'DECODE_PARTS': 2,
        'DECODE_FORMATS': 'PackedQ4K', 'DECODE_KV': 'HalfKv'})
    values = rng.standard_normal((length // 32, 32)).astype(np.float32)
    values *= 10 ** rng.uniform(-3, 3, (length // 32, 1)).astype(np.float32)
    planes, scales = poisoned((2, words, length // 32, 16), np.int8), poisoned(
        (length // 32, 4), np.float32)
    shim.run(KERNEL, KERNEL, 2, THREADS, (
        values, np.zeros(length // 2, np.uint64), planes, scales, np.uint32(5)), SHARED_BYTES,
        together=True)
    parts = planes.astype(np.int64).transpose(1, 2, 0, 3).reshape(words, length // 32, 32)
    units = parts[0] if words == 1 else parts[0] * 127 + parts[1]
    found = units * scales[:, :1].astype(np.float64)
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert np.all(np.abs(found - values) <= largest * (0.501 / 127 ** words + 2.0 ** -16))
    sums = scales[:, 2:].view(np.int32)
    np.testing.assert_array_equal(sums, units.reshape(-1, 2, 16).sum(axis=2))
    np.testing.assert_allclose(scales[:, 1], found.sum(axis=1), rtol=1e-5, atol=1e-6)
