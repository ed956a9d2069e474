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

"""Damaged, hostile and unsuitable files: one line that names the fault, and no harm done."""

import os
from pathlib import Path
import struct
import tracemalloc

from gguf import GGUFEndian, GGUFWriter
from gguf_files import header_of, rewrite, small_model
import numpy as np
import pytest
from reflex_llm_ros.engine.errors import ModelFileError
from reflex_llm_ros.engine.gguf_model import GgufModel

ALLOCATED_AT_MOST = 16 << 20
"""Bytes for refusing or opening the small model, whose file has a few hundred kB."""


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    """Path of an intact small model."""
    return small_model(tmp_path_factory.mktemp('intact') / 'model.gguf')


def refused(path) -> str:
    """Open a file that must be refused; the message without the path."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as caught:
            GgufModel.open(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert peak < ALLOCATED_AT_MOST
    assert len(message.splitlines()) == 1
    assert message.isprintable()
    assert message.startswith(f'{path}: ')
    return message[len(f'{path}: '):]


def patched(small: str, target: Path, *patches: tuple) -> Path:
    """Copy a file with bytes written over at offsets."""
    content = bytearray(Path(small).read_bytes())
    for offset, raw in patches:
        content[offset:offset + len(raw)] = raw
    target.write_bytes(content)
    return target


def after(small: str, text: bytes) -> int:
    """Offset behind the first occurrence of a text."""
    content = Path(small).read_bytes()
    return content.index(text) + len(text)


def u32(value: int) -> bytes:
    return struct.pack('<I', value)


def u64(value: int) -> bytes:
    return struct.pack('<Q', value)


def test_missing(tmp_path):
    assert refused(tmp_path / 'none.gguf') == 'no such file; check the path'


def test_directory(tmp_path):
    assert 'a directory' in refused(tmp_path)


def test_empty(tmp_path):
    path = tmp_path / 'empty.gguf'
    path.touch()
    assert 'the file is empty' in refused(path)


def test_pipe_without_a_writer(tmp_path):
    path = tmp_path / 'pipe'
    os.mkfifo(path)
    assert 'no regular file' in refused(path)


def test_path_that_no_file_can_have():
    with pytest.raises(ModelFileError, match='null byte') as caught:
        GgufModel.open('model\0\n.gguf')
    assert str(caught.value).isprintable()


def test_a_line_break_in_the_path_stays_out_of_the_message(tmp_path):
    with pytest.raises(ModelFileError) as caught:
        GgufModel.open(str(tmp_path / 'a\nb'))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(('content', 'fault'), [
    (b'no model at all, just a text', 'not a GGUF file'),
    (b'GG', 'not a GGUF file'),
    (b'ggjt\3\0\0\0' * 9, 'not a GGUF file'),
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:0\n', 'git lfs pull'),
    (b'GGUF', 'truncated within its first 24 bytes'),
    (b'GGUF' + u32(1) + u64(0) * 2, 'GGUF version 1'),
    (b'GGUF' + u32(77) + u64(0) * 2, 'GGUF version 77'),
    (b'GGUF' + u32(3) + u64(0) * 2, 'general.architecture is missing'),
])
def test_not_a_gguf(tmp_path, content, fault):
    path = tmp_path / 'model.gguf'
    path.write_bytes(content)
    assert fault in refused(path)


def test_big_endian(tmp_path):
    path = tmp_path / 'big.gguf'
    writer = GGUFWriter(path, 'qwen3', endianess=GGUFEndian.BIG)
    writer.add_tensor('output_norm.weight', np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert 'big-endian' in refused(path)


def test_truncated_anywhere(small, tmp_path, rng):
    content = Path(small).read_bytes()
    last = max(info.start + info.nbytes for info in header_of(small).tensors.values())
    path = tmp_path / 'cut.gguf'
    header_bytes = after(small, b'output_norm.weight')
    cuts = [*rng.integers(1, header_bytes, 10), *rng.integers(1, last, 10), last - 1]
    for cut in cuts:
        path.write_bytes(content[:cut])
        message = refused(path)
        assert any(text in message for text in (
            'truncated', 'not a GGUF', 'more than it can')), (cut, message)


def test_counts_and_lengths_past_the_end(small, tmp_path):
    tokens = after(small, b'tokenizer.ggml.tokens')
    types = after(small, b'tokenizer.ggml.token_type')
    architecture = after(small, b'general.architecture')
    faults = {}
    for value in (1 << 60, (1 << 64) - 1, 1 << 40, 1 << 31):
        for name, offset in {
            'tensors': 8, 'metadata keys': 16, 'a metadata key': 24,
            "the value of 'general.architecture'": architecture + 4,
            "elements of 'tokenizer.ggml.tokens'": tokens + 8,
            "a string of 'tokenizer.ggml.tokens'": tokens + 16,
            "elements of 'tokenizer.ggml.token_type'": types + 8,
        }.items():
            faults[name] = refused(
                patched(small, tmp_path / 'model.gguf', (offset, u64(value))))
            assert name in faults[name]
            assert str(value) in faults[name]


def test_tensors_that_cannot_be(small, tmp_path):
    path = tmp_path / 'model.gguf'
    at = after(small, b'blk.0.ffn_up.weight')  # dimensions, two of them, type, offset
    label = "tensor 'blk.0.ffn_up.weight'"

    def fault(offset: int, raw: bytes) -> str:
        return refused(patched(small, path, (at + offset, raw)))

    assert f'{label} states 4294967295 dimensions' in fault(0, u32((1 << 32) - 1))
    assert f'{label} states 0 dimensions' in fault(0, u32(0))
    assert f'{label} ends at byte' in fault(12, u64(1 << 60))
    assert f'{label} has the shape [96, 0]' in fault(4, u64(0))
    assert f'{label} has the shape [96, 33]' in fault(4, u64(33))
    assert f'{label} has the type 9999' in fault(20, u32(9999))
    assert f'{label} is not aligned' in fault(24, u64(31))
    assert f'{label} ends at byte' in fault(24, u64(1 << 60))
    assert 'overlap' in fault(24, u64(0))


def test_integer_tensors_are_no_weights(small, tmp_path):
    path = rewrite(small, tmp_path / 'model.gguf', without=['output_norm.weight'],
                   more={'output_norm.weight': np.ones(64, np.int32)})
    assert 'has the type I32' in refused(path)


def test_names_that_stand_twice(small, tmp_path):
    content = Path(small).read_bytes()
    path = tmp_path / 'model.gguf'
    path.write_bytes(content.replace(b'blk.0.attn_k.weight', b'blk.0.attn_q.weight'))
    assert "tensor 'blk.0.attn_q.weight' stands twice" in refused(path)
    path.write_bytes(content.replace(b'ggml.bos_token_id', b'ggml.eos_token_id'))
    assert "'tokenizer.ggml.eos_token_id' stands twice" in refused(path)


def test_control_characters_in_names_stay_out_of_the_message(small, tmp_path):
    content = Path(small).read_bytes()
    path = tmp_path / 'model.gguf'
    path.write_bytes(content.replace(b'blk.0.attn_k.weight', b'blk.0\n\x1b[2Jn_k.weigh'))
    assert 'attn_k.weight is missing' in refused(path)
    more = rewrite(small, path, more={'evil\n\x1b[2J': np.ones(4, np.float32)})
    assert r"'evil\n\x1b[2J' is no part" in refused(more)


def test_text_that_is_not_utf8(small, tmp_path):
    tokens = after(small, b'tokenizer.ggml.tokens')
    path = patched(small, tmp_path / 'model.gguf', (tokens + 24, b'\xff'))
    assert "a string of 'tokenizer.ggml.tokens' is not UTF-8" in refused(path)


@pytest.mark.parametrize('key', [
    'general.architecture', 'qwen3.block_count', 'qwen3.context_length',
    'qwen3.embedding_length', 'qwen3.feed_forward_length', 'qwen3.attention.head_count',
    'qwen3.attention.layer_norm_rms_epsilon', 'tokenizer.ggml.model', 'tokenizer.ggml.tokens',
])
def test_missing_key(small, tmp_path, key):
    raw = key.encode()
    path = tmp_path / 'model.gguf'
    path.write_bytes(Path(small).read_bytes().replace(raw, raw[:-1] + b'X', 1))
    assert f'{key} is missing' in refused(path)


@pytest.mark.parametrize(('key', 'value', 'fault'), [
    ('general.architecture', 'mamba', "architecture 'mamba' is not supported"),
    ('general.alignment', 12, 'general.alignment must be a power of two'),
    ('qwen3.block_count', 0, 'qwen3.block_count is 0'),
    ('qwen3.block_count', 3, 'blk.2.attn_norm.weight is missing'),
    ('qwen3.block_count', 'two', "must be one integer but is 'two'"),
    ('qwen3.block_count', 2.0, "must be one integer but is '2.0'"),
    ('qwen3.attention.head_count', [4, 4], 'must be one integer but is an array of 2'),
    ('qwen3.attention.head_count', 3, 'not a multiple of head_count_kv 2'),
    ('qwen3.attention.key_length', 8, 'they must be equal and even'),
    ('qwen3.attention.layer_norm_rms_epsilon', float('nan'), 'epsilon is nan'),
    ('qwen3.attention.layer_norm_rms_epsilon', float('inf'), 'epsilon is inf'),
    ('qwen3.attention.layer_norm_rms_epsilon', -1e-6, 'epsilon is -1e-06'),
    ('qwen3.feed_forward_length', 97, 'the metadata asks for [97, 64]'),
    ('qwen3.embedding_length', 128, 'token_embd.weight has the shape'),
    ('qwen3.expert_count', 8, 'qwen3.expert_count 8 is not supported'),
    ('qwen3.attention.sliding_window', 4096, 'sliding_window 4096 is not supported'),
    ('qwen3.attention.causal', False, 'attention.causal 0 is not supported'),
    ('qwen3.final_logit_softcapping', 30.0, 'softcapping 30 is not supported'),
    ('split.count', 3, 'llama-gguf-split --merge'),
    ('tokenizer.ggml.token_type', [1, 1], 'token_type has 2 entries'),
    ('tokenizer.ggml.eos_token_id', 1 << 31, 'eos_token_id is 2147483648'),
    ('tokenizer.chat_template', 7, 'chat_template must be a string'),
])
def test_metadata_that_the_engine_cannot_run(tmp_path, key, value, fault):
    path = small_model(tmp_path / 'model.gguf', metadata={key: value})
    assert fault in refused(path)


def test_more_rows_than_tokens(tmp_path):
    path = small_model(tmp_path / 'model.gguf', metadata={
        'tokenizer.ggml.tokens': ['a', 'b'], 'tokenizer.ggml.token_type': [1, 1],
        'tokenizer.ggml.bos_token_id': 0, 'tokenizer.ggml.eos_token_id': 1})
    assert 'the tokenizer has 2 tokens and token_embd.weight' in refused(path)


@pytest.mark.parametrize('name', [
    'blk.0.attn_q.bias', 'blk.1.ffn_gate_inp.weight', 'blk.1.ffn_gate_exps.weight',
    'blk.0.attn_qkv.weight', 'blk.2.attn_q.weight', 'rope_factors_long.weight',
    'cls.output.weight',
])
def test_a_tensor_that_would_be_left_out_is_refused_by_name(small, tmp_path, name):
    path = rewrite(small, tmp_path / 'model.gguf', more={name: np.ones(64, np.float32)})
    assert f"tensor '{name}' is no part of a dense qwen3 model" in refused(path)


@pytest.mark.parametrize('name', [
    'token_embd.weight', 'output_norm.weight', 'blk.1.attn_k_norm.weight',
    'blk.0.ffn_down.weight'])
def test_a_missing_tensor_is_named(small, tmp_path, name):
    assert f'tensor {name} is missing' in refused(
        rewrite(small, tmp_path / 'model.gguf', without=[name]))


def test_head_norms_are_no_part_of_a_llama(small, tmp_path):
    path = small_model(tmp_path / 'llama.gguf', architecture='llama')
    more = {'blk.0.attn_q_norm.weight': np.ones(16, np.float32)}
    assert 'attn_q_norm' in refused(rewrite(path, tmp_path / 'model.gguf', more=more))


def test_mutations_open_or_are_refused(small, tmp_path, rng):
    """Write random bytes over the header: no other exception, no allocation storm."""
    content = Path(small).read_bytes()
    header_bytes = after(small, b'output_norm.weight') + 40
    # Most of the header is vocabulary; faults that matter are around it.
    dense = [*range(after(small, b'tokenizer.ggml.tokens') + 64),
             *range(after(small, b'tokenizer.ggml.merges') - 40, header_bytes)]
    path = tmp_path / 'mutated.gguf'
    opened = 0
    tracemalloc.start()
    for _ in range(300):
        mutated = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.choice(dense))
            kind = rng.integers(3)
            if kind == 0:
                mutated[at] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                mutated[at] = int(rng.integers(256))
            else:
                raw = rng.choice([b'\xff' * 8, b'\0' * 8, u64(1 << 60), u64(1 << 31)])
                mutated[at:at + 8] = raw.ljust(8, b'\0')
        path.write_bytes(mutated)
        try:
            model = GgufModel.open(str(path))
        except ModelFileError as error:
            assert str(error).isprintable()
            continue
        opened += 1
        for tensor in model.tensors.values():
            assert tensor.dequantize().shape == tensor.shape
        model.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 < opened < 300
    assert peak < ALLOCATED_AT_MOST
