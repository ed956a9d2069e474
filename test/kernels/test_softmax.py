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

"""Logits to probabilities."""

from typing import Any

from devices import constant, poisoned
import numpy as np
import pytest
from reflex_llm_ros.engine.backends import reference_ops


@pytest.mark.parametrize('size', [1, 255, 256, 1000, 151936])
def test_softmax(device: Any, rng: np.random.Generator, size: int) -> None:
    logits = constant(rng.standard_normal(size, np.float32) * 10 + rng.uniform(-1e4, 1e4))
    out = poisoned(size, np.float32)
    device.run('softmax', 'softmax', 1, 256, [out, logits, np.int32(size)])
    np.testing.assert_allclose(
        out, reference_ops.softmax(logits.astype(np.float64)), rtol=1e-5, atol=1e-37)


def test_masked_tokens_get_nothing_in_place(device: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal(999, np.float32)
    x[rng.random(999) < 0.7] = -np.inf
    expected = reference_ops.softmax(x.astype(np.float64))
    device.run('softmax', 'softmax', 1, 256, [x, x, np.int32(999)])
    np.testing.assert_allclose(x, expected, rtol=1e-5)
    assert np.all((x == 0) == (expected == 0))
