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

"""What an intact GGUF file opens to."""

from dataclasses import replace
from pathlib import Path

from gguf import dequantize, GGMLQuantizationType, GGUFReader
from gguf_files import header_of, rewrite, SMALL, small_model
import numpy as np
import pytest
from reflex_llm_ros.engine.gguf_model import GgufModel, read_tokenizer
from reflex_llm_ros.synthetic.qwen3_gguf import generate


def mapped(path: str) -> bool:
    """Say whether this process has a file in its address space."""
    return any(line.rstrip().endswith(path) for line in Path('/proc/self/maps').open())


def test_header_and_bytes_equal_those_of_the_gguf_package(tiny_qwen3_path):
    reader = GGUFReader(tiny_qwen3_path)
    header = header_of(str(tiny_qwen3_path))
    fields = {key: field for key, field in reader.fields.items() if not key.startswith('GGUF.')}
    assert list(header.metadata) == list(fields)
    for key, field in fields.items():
        value = header.metadata[key]
        wanted = field.contents()
        assert (list(value) if isinstance(wanted, list) else value) == wanted, key
    model = GgufModel.open(str(tiny_qwen3_path))
    assert list(model.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        ours = model.tensors[tensor.name]
        assert ours.type == tensor.tensor_type
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert ours.data.tobytes() == tensor.data.tobytes(), tensor.name


def test_a_qwen3_opens_with_its_sizes(tiny_qwen3_path):
    model = GgufModel.open(str(tiny_qwen3_path))
    config = model.config
    assert (config.architecture, config.block_count, config.context_length) == ('qwen3', 2, 512)
    assert (config.embedding_length, config.feed_forward_length) == (256, 512)
    assert (config.head_count, config.head_count_kv, config.head_dim) == (4, 2, 64)
    assert config.rms_eps == pytest.approx(1e-6)
    assert config.qk_norm and config.tied_output
    assert config.vocab_size == len(model.tokenizer.tokens)
    assert model.tensors['blk.1.attn_q.weight'].shape == (256, 256)
    assert model.tokenizer.tokens[model.tokenizer.eos_token_id] == '<|im_end|>'
    assert 'im_start' in model.chat_template
    assert model.file_bytes == tiny_qwen3_path.stat().st_size


def test_smollm2_opens(smollm2_path):
    model = GgufModel.open(str(smollm2_path))
    config = model.config
    assert (config.architecture, config.block_count, config.head_dim) == ('llama', 30, 64)
    assert (config.head_count, config.head_count_kv, config.vocab_size) == (9, 3, 49152)
    assert config.rope.pairing == 'adjacent'
    assert config.rope.frequencies[1] == pytest.approx(100000 ** (-2 / 64))
    assert not config.qk_norm
    assert config.tied_output
    assert model.tokenizer.pre == 'smollm'


def test_a_llama_with_its_own_head_pairs_neighbours(tmp_path):
    path = small_model(tmp_path / 'llama.gguf', architecture='llama')
    head = np.ones(GgufModel.open(path).tensors['token_embd.weight'].shape, np.float32)
    untied = rewrite(path, tmp_path / 'untied.gguf', more={'output.weight': head})
    config = GgufModel.open(untied).config
    assert config.rope.pairing == 'adjacent'
    assert not config.qk_norm
    assert not config.tied_output


def test_sizes_that_older_files_leave_out_follow_from_the_others(tmp_path):
    prefix = 'qwen3.attention.'
    path = small_model(tmp_path / 'model.gguf', metadata={
        prefix + 'key_length': None, prefix + 'value_length': None,
        'qwen3.rope.dimension_count': None, 'general.name': None,
        'tokenizer.chat_template': None, 'tokenizer.ggml.bos_token_id': None})
    model = GgufModel.open(path)
    assert model.config.head_dim == 64 // 4
    assert model.config.name == ''
    assert model.chat_template is None
    assert model.tokenizer.bos_token_id is None


def test_tensor_data_is_a_read_only_view(tiny_qwen3_path):
    tensor = GgufModel.open(str(tiny_qwen3_path)).tensors['token_embd.weight']
    assert tensor.type == GGMLQuantizationType.Q6_K
    assert tensor.data.shape == (tensor.shape[0], 210)
    assert not tensor.data.flags.writeable
    assert not tensor.data.flags.owndata


@pytest.mark.parametrize('kind', ['F32', 'F16', 'BF16', 'Q4_0', 'Q4_K', 'Q5_K', 'Q6_K', 'Q8_0'])
def test_dequantize_is_the_gguf_packages_for_any_rows(tmp_path, rng, kind):
    kind = GGMLQuantizationType[kind]
    name = 'blk.0.ffn_down.weight'
    path = str(tmp_path / 'model.gguf')
    generate(path, replace(SMALL, feed_forward_length=512), mix='f32', types={name: kind})
    tensor = GgufModel.open(path).tensors[name]
    wanted = dequantize(tensor.data, kind).reshape(tensor.shape)
    np.testing.assert_array_equal(tensor.dequantize(), wanted)
    low, high = sorted(rng.integers(0, 65, 2))
    part = tensor.dequantize(slice(low, high), np.float64)
    assert part.dtype == np.float64
    np.testing.assert_array_equal(part, wanted[low:high])


def test_dequantize_of_a_vector_is_a_vector(tiny_qwen3_path):
    tensor = GgufModel.open(str(tiny_qwen3_path)).tensors['output_norm.weight']
    assert tensor.dequantize().shape == tensor.shape == (256,)


def test_close_unmaps_the_file(tiny_qwen3_path):
    path = str(tiny_qwen3_path)
    model = GgufModel.open(path)
    assert mapped(path)
    kept = model.tensors['token_embd.weight'].data[5]
    before = kept.copy()
    model.close()
    np.testing.assert_array_equal(kept, before)
    del kept
    assert not mapped(path)
    model.close()


def test_a_refused_file_is_unmapped(tmp_path):
    path = small_model(tmp_path / 'model.gguf', metadata={'qwen3.block_count': 3})
    with pytest.raises(Exception, match='blk.2'):
        GgufModel.open(path)
    assert not mapped(path)


def test_opening_and_closing_leaks_no_descriptor(tiny_qwen3_path):
    before = len(list(Path('/proc/self/fd').iterdir()))
    for _ in range(20):
        GgufModel.open(str(tiny_qwen3_path)).close()
    assert len(list(Path('/proc/self/fd').iterdir())) == before


def test_the_tokenizer_of_a_file_without_weights_can_be_read(data_dir):
    path = str(data_dir / 'ggml-vocab-qwen2.gguf')
    tokenizer = read_tokenizer(path)
    assert (tokenizer.model, tokenizer.pre) == ('gpt2', 'qwen2')
    assert len(tokenizer.tokens) == len(tokenizer.token_types) == 151936
    assert len(tokenizer.merges) == 151387
    assert tokenizer.tokens[tokenizer.eos_token_id] == '<|endoftext|>'
    assert tokenizer.add_bos_token is False
    assert not mapped(path)


@pytest.mark.parametrize(('pre', 'adds'), [('llama-bpe', True), ('qwen2', False)])
def test_a_file_that_is_silent_on_the_first_token_means_its_tokenizers_habit(
        tmp_path, pre, adds):
    path = small_model(tmp_path / 'model.gguf', metadata={
        'tokenizer.ggml.pre': pre, 'tokenizer.ggml.add_bos_token': None})
    assert GgufModel.open(path).tokenizer.add_bos_token is adds
