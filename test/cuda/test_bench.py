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

"""The benchmark program: what it measures is there and adds up, whatever the speed."""

import json
from pathlib import Path

import pytest
from reflex_llm_ros.bench.cuda import host_share, measure_kernels
from reflex_llm_ros.bench.measure import measure_decode, measure_prefill
from reflex_llm_ros.cli.bench import main
from reflex_llm_ros.engine.gguf_model import GgufModel


def test_cpu_run_is_kept_as_json_and_picture(
    tiny_qwen3_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip('matplotlib')
    kept, picture = tmp_path / 'run.json', tmp_path / 'run.png'
    assert main([str(tiny_qwen3_path), '--backend', 'cpu', '--context', '400', '--prefill', '32',
                 '9999', '--json', str(kept), '--plot', str(picture)]) == 0
    run = json.loads(kept.read_text())
    assert [prefill['tokens'] for prefill in run['prefill']] == [32]
    assert [decode['position'] for decode in run['decode']] == [0, 144]
    assert run['backend'] == 'cpu' and run['kernels'] == []
    assert all(decode['tokens_per_s'] > 0 for decode in run['decode'])
    assert picture.read_bytes().startswith(b'\x89PNG')
    assert 'decode' in capsys.readouterr().out


def test_damaged_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    broken = tmp_path / 'broken.gguf'
    broken.write_bytes(b'nothing')
    assert main([str(broken)]) == 1
    assert 'broken.gguf' in capsys.readouterr().out.replace('\n', '')


def test_kernels_cover_all_matrices(tiny_qwen3_path: Path, open_backend) -> None:
    backend = open_backend(tiny_qwen3_path, context_length=256)
    kernels = measure_kernels(backend, 1e10)
    model = GgufModel.open(str(tiny_qwen3_path))
    matrices = sum(
        tensor.data.nbytes for tensor in model.tensors.values() if len(tensor.shape) == 2)
    covered = sum(
        kernel.gb_per_s * 1e3 * kernel.microseconds * kernel.launches for kernel in kernels)
    assert covered == pytest.approx(matrices, rel=1e-6)
    assert {kernel.role for kernel in kernels} == {
        'qkv', 'attn_output', 'gate_up', 'ffn_down', 'output'}


def test_measured_stream_leaves_a_working_backend(tiny_qwen3_path: Path, open_backend) -> None:
    backend = open_backend(tiny_qwen3_path, context_length=256)
    before = backend.forward([5, 6], 0)
    assert 0 <= host_share(backend, 8) <= 1
    assert measure_decode(backend, 4, 3).position == 4
    assert measure_prefill(backend, 9).tokens == 9
    assert (backend.forward([5, 6], 0) == before).all()
