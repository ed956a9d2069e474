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

"""The dense forward pass, said in steps: which weights it takes, and in which order it runs."""

from dataclasses import replace

import pytest
from reflex_llm_ros.engine.gguf_config import expected_shapes
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.models import dense


@pytest.fixture
def sizes(tiny_qwen3_path):
    return GgufModel.open(str(tiny_qwen3_path)).config


@pytest.mark.parametrize('qk_norm', [True, False])
@pytest.mark.parametrize('tied', [True, False])
def test_every_tensor_is_placed_once_and_where_its_name_says(sizes, qk_norm, tied):
    sizes = replace(sizes, qk_norm=qk_norm, tied_output=tied)
    placed = []

    def place(name):
        placed.append(name)
        return name

    weights = dense.load_weights(sizes, place)
    assert sorted(placed) == sorted(expected_shapes(sizes))
    assert weights.output == ('token_embd.weight' if tied else 'output.weight')
    assert [layer.index for layer in weights.layers] == list(range(sizes.block_count))
    for layer in weights.layers:
        for part, name in vars(layer).items():
            if part in ('attn_q_norm', 'attn_k_norm') and not qk_norm:
                assert name is None
            elif part != 'index':
                assert name == f'blk.{layer.index}.{part}.weight'


class Script:
    """Steps that write down what is done to what."""

    def embed(self, table, batch):
        return f'{table}[{batch}]'

    def norm_qkv(self, x, layer, batch):
        return [f'{part}({layer.index}, {x})' for part in 'qkv']

    def rope_store(self, q, k, v, layer, batch):
        return f'rope({q}; {k}; {v})'

    def attention(self, q, layer, batch):
        return f'attention({layer.index}, {q})'

    def linear_add(self, x, weight, residual, batch):
        return f'{residual} + {weight}·{x}'

    def norm_gate_up(self, x, layer, batch):
        return f'ffn({layer.index}, {x})'

    def norm_logits(self, x, norm, output, batch):
        return f'{output}·{norm}({x})'


def test_a_block_adds_attention_and_then_the_feed_forward(sizes):
    weights = dense.load_weights(replace(sizes, block_count=1), lambda name: name)
    x = 'token_embd.weight[batch]'
    attended = (
        f'{x} + blk.0.attn_output.weight·attention(0, rope(q(0, {x}); k(0, {x}); v(0, {x})))')
    fed = f'{attended} + blk.0.ffn_down.weight·ffn(0, {attended})'
    assert dense.forward(Script(), weights, 'batch') == (
        f'token_embd.weight·output_norm.weight({fed})')
