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

"""The generator of Qwen3-shaped files."""

from dataclasses import replace
import math
import random
import sys
import tracemalloc

from gguf import dequantize, GGML_QUANT_SIZES, GGMLQuantizationType, TokenType
import numpy as np
import pytest
from reflex_llm_ros.engine.gguf_config import expected_shapes
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.tokenizer import Tokenizer
from reflex_llm_ros.synthetic.model_shape import PRESETS, tensor_types, TINY
from reflex_llm_ros.synthetic.qwen3_gguf import generate, main
from reflex_llm_ros.synthetic.vocabulary import vocabulary
from reflex_llm_ros.synthetic.weights import quantized, standard_deviation, synthesized

Q4_K = GGMLQuantizationType.Q4_K
Q6_K = GGMLQuantizationType.Q6_K
Q8_0 = GGMLQuantizationType.Q8_0


@pytest.fixture
def seed() -> int:
    """Return a fresh seed, shown when the test fails."""
    value = random.randrange(1 << 31)
    print(f'seed: {value}')
    return value


# llama.cpp's rule by hand: the first and last eighth, and every third block between them.
@pytest.mark.parametrize(('size', 'more_bits'), [
    ('0.6b', {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27}),
    ('8b', {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33, 34, 35}),
])
def test_q4_k_m_gives_some_blocks_more_bits(size, more_bits):
    shape = PRESETS[size]
    types = tensor_types(shape, 'q4_k_m', {})
    for index in range(shape.block_count):
        wanted = Q6_K if index in more_bits else Q4_K
        assert types[f'blk.{index}.attn_v.weight'] == wanted
        assert types[f'blk.{index}.ffn_down.weight'] == wanted
        for name in ('attn_q', 'attn_k', 'attn_output', 'ffn_gate', 'ffn_up'):
            assert types[f'blk.{index}.{name}.weight'] == Q4_K
        for name in ('attn_norm', 'attn_q_norm', 'attn_k_norm', 'ffn_norm'):
            assert types[f'blk.{index}.{name}.weight'] == GGMLQuantizationType.F32


def test_the_head_has_six_bits_whether_tied_or_not():
    tied = tensor_types(PRESETS['4b'], 'q4_k_m', {})
    assert tied['token_embd.weight'] == Q6_K
    assert 'output.weight' not in tied
    separate = tensor_types(PRESETS['8b'], 'q4_k_m', {})
    assert (separate['token_embd.weight'], separate['output.weight']) == (Q4_K, Q6_K)


# Parameters as the models' cards state them, in 1e8.
@pytest.mark.parametrize(('size', 'hundred_millions'), [
    ('0.6b', 6), ('1.7b', 17), ('4b', 40), ('8b', 82)])
def test_presets_have_the_sizes_they_are_named_for(size, hundred_millions):
    weights = sum(map(math.prod, expected_shapes(PRESETS[size]).values()))
    assert round(weights / 1e8) == hundred_millions


def test_rows_that_k_quants_do_not_fill_fall_back():
    shape = replace(TINY, embedding_length=96, feed_forward_length=80)
    types = tensor_types(shape, 'q4_k_m', {})
    assert types['blk.0.attn_q.weight'] == GGMLQuantizationType.Q5_0
    assert types['token_embd.weight'] == Q8_0
    assert types['blk.1.ffn_down.weight'] == GGMLQuantizationType.F16
    assert types['blk.0.attn_output.weight'] == Q4_K


@pytest.mark.parametrize('mix', ['q8_0', 'f16', 'f32'])
def test_uniform_mixes(tmp_path, mix):
    path = str(tmp_path / 'model.gguf')
    generate(path, TINY, mix=mix)
    wanted = GGMLQuantizationType[mix.upper()]
    for tensor in GgufModel.open(path).tensors.values():
        norm = len(tensor.shape) == 1
        assert tensor.type == (GGMLQuantizationType.F32 if norm else wanted)


def test_the_same_seed_gives_the_same_file_and_another_another(tmp_path, seed):
    paths = [tmp_path / f'{name}.gguf' for name in 'abc']
    for path, number in zip(paths, (seed, seed, seed + 1), strict=True):
        generate(str(path), TINY, mix='q8_0', seed=number)
    contents = [path.read_bytes() for path in paths]
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def test_mixes_are_one_model_quantized_several_ways(tmp_path, seed):
    models = []
    for mix in ('f32', 'q8_0', 'q4_k_m'):
        path = str(tmp_path / f'{mix}.gguf')
        generate(path, TINY, mix=mix, seed=seed)
        models.append(GgufModel.open(path))
    exact, *others = models
    for name, tensor in exact.tensors.items():
        weights = tensor.dequantize()
        for model, tolerance in zip(others, (0.01, 0.1), strict=True):
            error = np.linalg.norm(model.tensors[name].dequantize() - weights)
            assert error <= tolerance * np.linalg.norm(weights), name


def test_norms_are_near_one_and_matrices_scaled_by_their_fan_in(tiny_qwen3_path):
    model = GgufModel.open(str(tiny_qwen3_path))
    norm = model.tensors['blk.0.attn_norm.weight'].dequantize()
    assert 0.8 <= norm.min() < norm.max() <= 1.2
    assert norm.std() > 0.05
    for name in ('attn_q', 'attn_v', 'ffn_up'):
        weights = model.tensors[f'blk.1.{name}.weight'].dequantize()
        assert weights.std() == pytest.approx(256 ** -0.5, rel=0.05)


@pytest.mark.parametrize('name', [
    'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q4_K', 'Q5_K', 'Q6_K', 'F16', 'BF16', 'F32'])
def test_synthesized_blocks_are_spread_like_quantized_weights(seed, name):
    kind = GGMLQuantizationType[name]
    tensor, dimensions = 'blk.3.ffn_up.weight', (300, 1024)
    shape = PRESETS['0.6b']
    deviation = standard_deviation(tensor, shape)
    for source in ([quantized(tensor, dimensions, kind, shape, seed)],
                   synthesized(tensor, dimensions, kind, shape, seed)):
        raw = np.concatenate([piece.reshape(-1) for piece in source])
        block, size = GGML_QUANT_SIZES[kind]
        assert raw.nbytes == 300 * 1024 // block * size
        weights = dequantize(raw.reshape(-1, size), kind).ravel()
        assert weights.std() == pytest.approx(deviation, rel=0.05)
        assert abs(weights.mean()) < 0.01 * deviation
        assert np.abs(weights).max() < 8 * deviation
        assert len(np.unique(raw)) > 200


@pytest.mark.parametrize('name', [
    'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q4_K', 'Q5_K', 'Q6_K'])
def test_synthesized_weights_are_zero_on_average(seed, name):
    """Four million of them: their mean is known to 0.0006 of their deviation."""
    tensor, shape = 'blk.3.ffn_up.weight', PRESETS['0.6b']
    kind = GGMLQuantizationType[name]
    size = GGML_QUANT_SIZES[kind][1]
    means = [
        dequantize(piece.reshape(-1, size), kind).mean(dtype=np.float64)
        for piece in synthesized(tensor, (4096, 1024), kind, shape, seed)]
    assert abs(np.mean(means)) < 0.004 * standard_deviation(tensor, shape)


def test_a_large_tensor_is_written_in_pieces(seed):
    """Two hundred million weights in little memory."""
    tracemalloc.start()
    size = sum(piece.nbytes for piece in synthesized(
        'token_embd.weight', (200_000, 1024), Q6_K, PRESETS['0.6b'], seed))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 200_000 * 1024 // 256 * 210
    assert peak < 100 << 20


def test_a_large_model_opens(tmp_path):
    shape = replace(
        TINY, block_count=1, embedding_length=1024, feed_forward_length=16384,
        vocab_size=2000)
    path = str(tmp_path / 'large.gguf')
    told = []
    generate(path, shape, progress=lambda done, total: told.append((done, total)))
    model = GgufModel.open(path)
    weights = model.tensors['blk.0.ffn_gate.weight'].dequantize(slice(0, 64))
    assert weights.std() == pytest.approx(1 / 32, rel=0.05)
    size = sum(tensor.data.nbytes for tensor in model.tensors.values())
    assert told[-1] == (size, size)
    assert told == sorted(told)
    assert len(model.tokenizer.tokens) == 2000


def test_types_of_single_tensors_go_before_the_mix(tmp_path):
    path = str(tmp_path / 'model.gguf')
    names = {f'blk.{i}.{part}.weight': GGMLQuantizationType[kind] for i, part, kind in [
        (0, 'attn_q', 'Q4_0'), (1, 'attn_k', 'BF16'), (0, 'ffn_up', 'Q5_1'),
        (0, 'attn_norm', 'F16')]}
    generate(path, TINY, types=names)
    tensors = GgufModel.open(path).tensors
    assert {name: tensors[name].type for name in names} == names
    with pytest.raises(ValueError, match='blk.9'):
        generate(path, TINY, types={'blk.9.attn_q.weight': Q4_K})
    with pytest.raises(ValueError, match='do not fill Q4_K blocks'):
        generate(path, replace(TINY, embedding_length=64), types={'blk.0.attn_q.weight': Q4_K})


def test_the_made_up_vocabulary_is_one_that_tokenizes(tiny_qwen3_path):
    tokenizer = Tokenizer(GgufModel.open(str(tiny_qwen3_path)).tokenizer)
    for text in (' the robot can carry a cup', 'Grüße, 机器人 🤖\n\n\tx = 1;'):
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
    assert len(tokenizer.encode(' the robot', special=False)) == 2


def test_a_copied_qwen2_vocabulary_becomes_qwen3s(data_dir):
    source = str(data_dir / 'ggml-vocab-qwen2.gguf')
    words = vocabulary(source)
    assert len(words.tokens) == len(words.types) == 151936
    ids = {text: words.token_id(text) for text in ('<|im_end|>', '<tool_call>', '</think>')}
    assert ids == {'<|im_end|>': 151645, '<tool_call>': 151657, '</think>': 151668}
    assert words.types[151645] == TokenType.CONTROL
    assert words.types[151668] == TokenType.USER_DEFINED
    assert words.types[151669] == words.types[-1] == TokenType.UNUSED
    padded = words.padded(151940)
    assert padded.tokens[-1] == '[PAD151939]'
    assert padded.types[-1] == TokenType.UNUSED
    with pytest.raises(ValueError, match='more than the 1000 rows'):
        words.padded(1000)


def test_command_line(tmp_path, capsys, data_dir):
    out = tmp_path / 'model.gguf'
    template = data_dir / 'qwen3-chat-template.jinja'
    assert main([str(out), '--size', 'tiny', '--mix', 'q8_0', '--architecture', 'llama',
                 '--chat-template', str(template)]) == 0
    model = GgufModel.open(str(out))
    assert model.config.architecture == 'llama'
    assert model.chat_template == template.read_text(encoding='utf-8')
    assert main([str(out), '--vocab', str(tmp_path / 'none.gguf')]) == 1
    assert 'none.gguf: no such file' in capsys.readouterr().err


def test_progress_is_shown_on_a_terminal_only(tmp_path, capsys, monkeypatch):
    assert main([str(tmp_path / 'model.gguf'), '--mix', 'q8_0']) == 0
    assert capsys.readouterr().err == ''
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    assert main([str(tmp_path / 'model.gguf'), '--mix', 'q8_0']) == 0
    assert ' MB' in capsys.readouterr().err
