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

"""What reflex_llm_inspect says of a model file."""

import re

from gguf_files import small_model
import pytest
from reflex_llm_ros.cli import inspect_model
from reflex_llm_ros.cli.inspect_model import main, size
from reflex_llm_ros.engine.gguf_model import GgufModel


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """Say how wide the terminal is that output goes to."""
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.delenv('FORCE_COLOR', raising=False)


def lines_of(capsys, path) -> list[str]:
    """Inspect a file; the lines without the frame, blanks collapsed."""
    assert main([str(path)]) == 0
    output = capsys.readouterr()
    assert output.err == ''
    assert all(len(line) <= 80 for line in output.out.splitlines())
    return [re.sub(r'\s+', ' ', line.strip('│╭╮╰╯─ ')) for line in output.out.splitlines()]


def test_sizes_and_types(tiny_qwen3_path, capsys):
    lines = lines_of(capsys, tiny_qwen3_path)
    assert lines[0] == 'Random qwen3 q4_k_m'
    assert 'architecture qwen3 blocks 2 of width 256' in lines
    assert 'context 512 tokens output tied to the embedding' in lines
    # Of seven matrices a layer, the second of the two layers has attn_v and ffn_down in Q6_K,
    # which is also the embedding's type. There are four norms a layer and one at the end.
    counts = [' '.join(line.split()[:2]) for line in lines]
    assert {'Q4_K 12', 'Q6_K 3', 'F32 9'} <= set(counts)
    # All but the 256 bytes and 5 special tokens come from merges.
    merges = len(GgufModel.open(str(tiny_qwen3_path)).tokenizer.tokens) - 261
    assert f'tokenizer gpt2 (qwen2), {merges} merges' in lines
    assert 'answers end on <|endoftext|>, <|im_end|>' in lines
    assert 'chat template in the file' in lines
    assert 'kernels gemv_q4k_uint32, gemv_q6k' in lines
    assert 'one launch for q, k and v in 2, gate and up in 2 of 2 blocks' in lines
    assert len(lines) <= 34


def test_thinking_is_what_the_template_can(tmp_path, capsys, data_dir):
    template = (data_dir / 'qwen3-chat-template.jinja').read_text(encoding='utf-8')
    assert 'thinking supported' in lines_of(
        capsys, small_model(tmp_path / 'a.gguf', chat_template=template))
    lines = lines_of(capsys, small_model(tmp_path / 'b.gguf', chat_template=''))
    assert 'thinking not supported' in lines
    assert 'chat template none: plain ChatML is used' in lines


def test_contexts_that_fit(tiny_qwen3_path, capsys, monkeypatch):
    # Keys and values of 2 layers, 2 heads, 64 elements: 1,024 bytes in float16, a kibibyte.
    # 16/15 of what is needed must be free.
    def contexts(free: int) -> dict[str, str]:
        monkeypatch.setattr(inspect_model, 'host_free_bytes', lambda: free)
        lines = lines_of(capsys, tiny_qwen3_path)
        start = next(i for i, line in enumerate(lines) if line.startswith('runs on'))
        rows = [line.split() for line in lines[start + 2:start + 6]]
        return {f'{row[0]} {row[1].rstrip(",")}': ' '.join(row[-2:]) for row in rows}

    assert set(contexts(1 << 30).values()) == {'all 512'}
    assert set(contexts(1 << 16).values()) == {'MiB none', 'KiB none'}
    file_bytes = tiny_qwen3_path.stat().st_size
    tight = contexts((file_bytes + 300 * 1024) * 16 // 15)
    assert tight['GPU f16'] == 'about 300'
    assert tight['GPU int8'] == 'all 512'
    assert tight['CPU f16'].endswith('none')


def test_a_bad_file_is_one_line(tmp_path, capsys):
    path = tmp_path / 'bad.gguf'
    path.write_bytes(b'nothing of the kind')
    assert main([str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == ''
    assert output.err.startswith(f'{path}: not a GGUF file')
    assert output.err.count('\n') == 1


def test_a_tokenizer_that_is_not_supported_is_one_line_with_the_path(tmp_path, capsys):
    path = small_model(tmp_path / 'model.gguf', metadata={'tokenizer.ggml.pre': 'klingon'})
    assert main([path]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f'{path}: ')
    assert 'klingon' in error
    assert error.count('\n') == 1


def test_names_in_the_file_cannot_reach_the_terminal(tmp_path, capsys):
    path = small_model(tmp_path / 'model.gguf', metadata={
        'general.name': '[bold]\x1b[2J\nname'})
    assert lines_of(capsys, path)[0] == '[bold]?[2J?name'


@pytest.mark.parametrize(('count', 'text'), [
    (0, '0 B'), (1023, '1023 B'), (1536, '1.5 KiB'), (200 << 20, '200 MiB'),
    (int(2.25 * 2 ** 30), '2.2 GiB'), (3 << 40, '3,072 GiB')])
def test_sizes_are_short(count, text):
    assert size(count) == text
