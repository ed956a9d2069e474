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

"""Memory that a forward pass works in."""

import numpy as np
import pytest
from reflex_llm_ros.engine.backends.cuda.buffers import ATTENTION_CHUNK, buffer_bytes, Buffers
from reflex_llm_ros.engine.gguf_model import ModelConfig, RopeConfig
from shim_device import ShimDevice

CONFIG = ModelConfig(
    architecture='qwen3', name='', block_count=2, context_length=4096, embedding_length=96,
    feed_forward_length=160, head_count=6, head_count_kv=2, head_dim=64, vocab_size=300,
    rms_eps=1e-6, rope=RopeConfig('half', np.ones(32)), qk_norm=True, tied_output=True)


@pytest.mark.parametrize('positions', [
    1, ATTENTION_CHUNK, ATTENTION_CHUNK + 1, 5 * ATTENTION_CHUNK])
def test_bytes_are_what_is_allocated(positions: int) -> None:
    allocated = vars(Buffers(ShimDevice(), CONFIG, positions)).values()
    assert buffer_bytes(CONFIG, positions) == sum(array.nbytes for array in allocated)
