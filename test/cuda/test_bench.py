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

from collections.abc import Callable
from dataclasses import replace
from functools import partial
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reflex_llm_ros.bench import cuda, lanes
from reflex_llm_ros.bench.bars import bars, read_llama_bench
from reflex_llm_ros.bench.cuda import clock_ghz, host_share, measure_kernels, read_bandwidth
from reflex_llm_ros.bench.lanes import divergence, measure_lanes
from reflex_llm_ros.bench.load import measure_load
from reflex_llm_ros.bench.measure import measure_decode, measure_prefill
from reflex_llm_ros.bench.orin import Orin, project
from reflex_llm_ros.bench.report import plot, print_report
from reflex_llm_ros.bench.result import (
    ClockedStep,
    Decode,
    Kernel,
    Lane,
    Load,
    Phases,
    Projection,
    Result,
    Stage,
    StepCost,
)
from reflex_llm_ros.cli import bench
from reflex_llm_ros.cli.bench import main
from reflex_llm_ros.engine import backends
from reflex_llm_ros.engine.backends.cuda import backend as cuda_backend
from reflex_llm_ros.engine.backends.cuda import opening
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import ModelShape
from reflex_llm_ros.synthetic.qwen3_gguf import generate
from rich.console import Console
from shim_device import ShimDevice

LANE = Lane('a8x2', 'PersistentDecode', 5e-5, 1e-3, True, (
    Decode(512, 800.0, 1.25), Decode(16_000, 500.0, 2.0)), 8, 8.0)
RESULT = Result(
    date='2026-01-31', model='m.gguf', size='4B', file_bytes=2_500_000_000,
    weight_bytes=2_000_000_000, position_bytes=100_000, backend='cuda', device='a device',
    choices='', copy_gb_per_s=3900.0, read_gb_per_s=4000.0, clock_ghz=2.04, host_share=0.01,
    decode=(Decode(0, 900.0),), prefill=(), kernels=(Kernel('gemv', 2, 30.0),), lanes=(LANE,),
    load=Load(2.0, 0.5, 0.25),
    costs=(StepCost('q4k', 1, 64, 96, 60), StepCost('q6k', 2, 64, 192, 130)))


def test_cpu_run_is_kept_as_json_and_picture(
    tiny_qwen3_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip('matplotlib')
    kept, picture = tmp_path / 'run.json', tmp_path / 'run.png'
    assert main([str(tiny_qwen3_path), '--backend', 'cpu', '--context', '400', '--prefill', '32',
                 '9999', '--bars', '--json', str(kept), '--plot', str(picture)]) == 0
    run = json.loads(kept.read_text())
    assert [prefill['tokens'] for prefill in run['prefill']] == [32]
    assert [decode['position'] for decode in run['decode']] == [0, 144]
    assert run['backend'] == 'cpu' and run['kernels'] == []
    assert all(decode['tokens_per_s'] > 0 for decode in run['decode'])
    assert picture.read_bytes().startswith(b'\x89PNG')
    load = run['load']
    assert load['seconds'] >= load['weights_s'] > 0 and load['read_s'] > 0
    shown = capsys.readouterr().out
    assert 'decode' in shown and 'of read()' in shown


def test_damaged_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    broken = tmp_path / 'broken.gguf'
    broken.write_bytes(b'nothing')
    assert main([str(broken)]) == 1
    assert 'broken.gguf' in capsys.readouterr().out.replace('\n', '')


def test_too_few_positions_are_one_line(
    tiny_qwen3_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main([str(tiny_qwen3_path), '--backend', 'cpu', '--context', '100']) == 1
    shown = ' '.join(capsys.readouterr().out.split())
    assert '100 positions are too few to measure: give --context at least 256' in shown


def matrix_bytes(model: GgufModel) -> int:
    """Return the bytes of matrices that a token reads: of an embedding alone, a row."""
    return sum(
        tensor.data.nbytes for name, tensor in model.tensors.items()
        if len(tensor.shape) == 2 and (name != 'token_embd.weight' or model.config.tied_output))


def test_planes_that_kernels_read_are_counted(small_q8_path: Path, open_backend) -> None:
    kernels = measure_kernels(open_backend(small_q8_path), 8)
    assert sum(kernel.read_bytes for kernel in kernels) == matrix_bytes(
        GgufModel.open(str(small_q8_path)))


def test_kernels_of_a_step_are_all_timed(tiny_qwen3_path: Path, open_backend) -> None:
    backend = open_backend(tiny_qwen3_path, context_length=256)
    before = backend.forward([5, 6], 0)
    kernels = measure_kernels(backend, 8)
    model = GgufModel.open(str(tiny_qwen3_path))
    assert all(kernel.microseconds > 0 for kernel in kernels)
    assert max(kernel.launches for kernel in kernels) >= model.config.block_count
    assert sum(kernel.read_bytes for kernel in kernels) == matrix_bytes(model)
    assert (backend.forward([5, 6], 0) == before).all()


def test_measured_stream_leaves_a_working_backend(tiny_qwen3_path: Path, open_backend) -> None:
    backend = open_backend(tiny_qwen3_path, context_length=256)
    before = backend.forward([5, 6], 0)
    assert 0 <= host_share(backend, 8, 3) <= 1
    assert measure_decode(backend, 4, 3).position == 4
    assert measure_prefill(backend, 9).tokens == 9
    assert (backend.forward([5, 6], 0) == before).all()


def test_bandwidth_and_clock_are_measured(make_device: Callable[..., Any]) -> None:
    device = make_device()
    assert read_bandwidth(device, 1 << 14) > 0
    assert 0.1 < clock_ghz(device, 100_000) < 10


def test_fp16_is_its_own_measure(
    tiny_qwen3_path: Path, make_device: Callable[..., Any]
) -> None:
    config = EngineConfig(str(tiny_qwen3_path), context_length=64)
    lane, = measure_lanes(config, ('fp16',), (20,), make_device, compared=2)
    assert (lane.activations, lane.kl, lane.repeats, lane.few_blocks) == ('fp16', 0, True, 0)
    assert lane.decode[0].position == 20 and lane.decode[0].step_ms > 0


def test_kinds_are_those_of_q8_matrices_too(
    small_q8_path: Path, make_device: Callable[..., Any]
) -> None:
    config = EngineConfig(str(small_q8_path), context_length=64)
    exact, one_word, two_words = measure_lanes(
        config, ('fp16', 'a8', 'a8x2'), (20,), make_device, compared=2)
    assert exact.kl == 0 < 20 * two_words.kl < one_word.kl


def test_divergence_is_that_of_the_distributions() -> None:
    p, q = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    assert divergence(p + 3, q - 7) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(0.5 / 0.75))


def test_bars_are_met_or_missed_by_what_was_measured() -> None:
    rows = {bar.what: bar for bar in bars(RESULT, {512: 400.0}, 'the command')}
    assert {bar.command for bar in rows.values()} == {
        'the command', 'pytest test/kernels/test_instructions.py'}
    expected = {
        '4B decode at 512, a8x2, of llama.cpp': (
            '2.00 times (800 against 400 tokens/s)', False),
        # (2e9 + 512 * 1e5) bytes at 4 TB/s are 0.5128 ms, of 1.25.
        '4B decode at 512, of the read limit': ('41%', False),
        # 15,488 positions of 1e5 bytes take 0.3872 ms; the step 0.75 ms longer.
        "4B decode at 16,000: time for the cache's bytes": ('1.94 times', False),
        'host share of a token': ('1.0%', True),
        'instructions a weight, Q4K, one word': ('1.50', True),
        'instructions a weight, Q6K, two words': ('3.00', False),
        # 0.25 s by read(), 0.5 s into place: 2.5e9 bytes.
        'weights loaded, of read() where a cache has the file': ('50% (0.50 s, 5.0 GB/s)', False),
        # 2e9 bytes in 8 ms at half the clock.
        'a whole step on 8 multiprocessors at 1.02 GHz, a8x2': ('125 GB/s', True),
        'KL(fp16, a8x2), the default': ('5.0e-05 nats', True)}
    assert {what: (bar.measured, bar.met) for what, bar in rows.items()} == expected
    assert not any('llama' in bar.what for bar in bars(RESULT, {}, ''))
    small = bars(replace(RESULT, size=''), {512: 1.0}, '')
    assert not any('decode at 512' in bar.what for bar in small)
    one_word = replace(LANE, activations='a8')
    q8 = bars(replace(RESULT, types='Q8_0', lanes=(one_word, LANE)), {512: 420.0}, '')
    # 1.90 times: of two words 1.8 are asked for, of one 2.
    assert [bar.met for bar in q8 if 'llama' in bar.what] == [False, True]
    assert not any('of the read limit' in bar.what for bar in q8)
    fast = bars(replace(RESULT, load=Load(9.0, 0.4, 0.25)), {}, '')
    assert [bar.met for bar in fast if 'loaded' in bar.what] == [True]


def test_llama_bench_is_read_by_depth(tmp_path: Path) -> None:
    path = tmp_path / 'llama.json'
    path.write_text(json.dumps([
        {'n_prompt': 512, 'n_gen': 0, 'n_depth': 0, 'avg_ts': 9000.0},
        {'n_prompt': 0, 'n_gen': 128, 'n_depth': 0, 'avg_ts': 335.5},
        {'n_prompt': 0, 'n_gen': 128, 'n_depth': 512, 'avg_ts': 326.25}]))
    assert read_llama_bench(path) == {0: 335.5, 512: 326.25}


def test_projection_takes_the_slower_of_memory_and_arithmetic(tiny_qwen3_path: Path) -> None:
    model = GgufModel.open(str(tiny_qwen3_path))
    names = {tensor.type.name for name, tensor in model.tensors.items() if 'attn_q.w' in name}
    assert names == {'Q4_K'}
    costs = [StepCost(kind, 2, 64, 100, 60) for kind in ('q4k', 'q5k', 'q6k')]
    fast, slow = (project(model, costs, 2, 10, Orin('o', 8, bandwidth))
                  for bandwidth in (1e15, 1e9))
    assert fast is not None and slow is not None
    assert project(model, [], 2, 10, Orin('', 8, 1)) is None
    output = fast.stages[2]
    assert output.name == 'attention output'
    # 120 cycles a step of 1,152 bytes, 32 schedulers at 1.02 GHz.
    assert output.issue_us == pytest.approx(output.read_bytes / 1152 * 120 / 32 / 1020, rel=1e-6)
    assert output.microseconds == output.issue_us + output.waits_us
    assert slow.stages[2].memory_us == pytest.approx(output.read_bytes / 1e3)
    assert slow.tokens_per_s < fast.tokens_per_s


def test_picture_shows_what_a_token_is_made_of(tmp_path: Path) -> None:
    pytest.importorskip('matplotlib')
    stage = Stage('down', 10, 5.0, 4.0, 1.0)
    projection = Projection('Orin', '', (stage, stage))
    plot(replace(RESULT, projections=(projection,)), tmp_path / 'a.png')
    plot(RESULT, tmp_path / 'b.png')
    pixels = [(tmp_path / name).read_bytes() for name in ('a.png', 'b.png')]
    assert pixels[0] != pixels[1] and all(png.startswith(b'\x89PNG') for png in pixels)


STEP = ClockedStep(512, 100.0, 120.0, (
    Phases('query, key, value', 1.0, 2.0, 3.0, 4.0),
    Phases('attention', 30.0, 0.0, 20.0, 10.0, 117_000_000),
    Phases('head', 5.0, 6.0, 7.0, 8.0)), 1.9)


def test_parts_of_a_step_are_shown_beside_the_step(tmp_path: Path) -> None:
    run = replace(RESULT, clocked=(STEP, replace(STEP, position=16_000)))
    assert Result.from_json(run.to_json()) == run
    assert STEP.launch_us == 24.0  # of 120: 10, 60 and 26 are the parts'
    console = Console(width=120, record=True, file=(tmp_path / 'shown').open('w'))
    print_report(run, console)
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ['step', 'at', '512', '36', '8', '30', '22', '120', '100%', '25%'] in rows
    assert ['attention', '30', '0', '20', '10', '60', '50%', '50%'] in rows
    assert ['launch', '24', '20%'] in rows
    assert ['its', 'clock:', '1.90', 'GHz', 'at', '512,', '1.90', 'GHz', 'at', '16,000'] in rows
    assert ['without', 'counting', '100'] in rows
    assert ['step', 'at', '16,000', '36', '8', '30', '22', '120', '100%', '25%'] in rows


def test_picture_shows_where_a_step_of_the_persistent_kernel_goes(tmp_path: Path) -> None:
    pytest.importorskip('matplotlib')
    slower = replace(STEP, parts=(replace(STEP.parts[0], wait=50.0), *STEP.parts[1:]))
    for name, step in (('a.png', STEP), ('b.png', STEP), ('c.png', slower)):
        plot(replace(RESULT, clocked=(step,)), tmp_path / name)
    first, same, other = ((tmp_path / name).read_bytes() for name in ('a.png', 'b.png', 'c.png'))
    assert first == same and first != other


def test_load_is_timed_by_what_the_backend_says(tmp_path: Path) -> None:
    path = tmp_path / 'file'
    path.write_bytes(bytes(100_000))
    told: list[tuple[float, str]] = []
    clock = iter(range(100))

    def open_it(progress: Callable[[float, str], None]) -> Any:
        for phrase in ('on a device: weights 3 MiB, of 8 MiB free', 'compiling',
                       'copying 3 MiB of weights', 'copying 3 MiB of weights', 'warming up'):
            progress(0.5, phrase)
        return 'backend'

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('reflex_llm_ros.bench.load.time.monotonic', lambda: next(clock))
        backend, load = measure_load(str(path), open_it, lambda *step: told.append(step))
    # Every look at the clock is a second: at both ends of a read and of loading, at each phrase.
    assert load == Load(seconds=6, weights_s=2, read_s=1) and load.share_of_read == 0.5
    assert backend == 'backend' and [phrase for _, phrase in told][-1] == 'warming up'


@pytest.fixture
def shim_machine(monkeypatch: pytest.MonkeyPatch) -> ShimDevice:
    """Make the shim this machine's GPU, and the program's measurements short."""
    device = ShimDevice()
    monkeypatch.setattr(backends, 'open_device', lambda ordinal: device)
    monkeypatch.setattr(bench, 'ROOM', 24)
    monkeypatch.setattr(bench, 'DECODE_TOKENS', 2)
    for name, short in (('read_bandwidth', {'size': 1 << 14}), ('host_share', {'steps': 2}),
                        ('clock_ghz', {'nanoseconds': 100_000}),
                        ('measure_clocked', {'steps': 2})):
        monkeypatch.setattr(cuda, name, partial(getattr(cuda, name), **short))
    return device


def test_program_prints_which_q8_kernels_were_chosen(
    tmp_path: Path, shim_machine: ShimDevice, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / 'q8.gguf'
    generate(str(path), ModelShape(
        block_count=1, embedding_length=96, feed_forward_length=160, head_count=2,
        head_count_kv=1, head_dim=32, vocab_size=0, context_length=128), mix='q8_0', seed=3)
    ends = {'q8_qkv': '_u4', 'q8_add_norm': '', 'q8_gate_up': '_u2', 'q8_head': '_r2'}
    monkeypatch.setattr(
        cuda_backend, 'fastest_variants', lambda device, kind, products: {
            product: ends[product.split()[0]] for product in products})
    kept = tmp_path / 'run.json'
    assert main([str(path), '--context', '64', '--prefill', '4', '--json', str(kept)]) == 0
    shown = ''.join(capsys.readouterr().out.split())
    # Rows of a product: those of both query heads, the key's and the value's for the first.
    for choice in ('q8_qkv128x96:q8_qkv_a8x2_u4', 'q8_gate_up160x96:q8_gate_up_a8x2_u2',
                   'q8_add_norm96x64:q8_add_norm_a8x2', 'q8_add_norm96x160:q8_add_norm_a8x2'):
        assert f';{choice};' in f'{shown};', choice
    run = json.loads(kept.read_text())
    assert 'q8_head_a8x2_r2' in run['choices'] and run['kernels'] and not run['clocked']


@pytest.fixture
def wide_model(tmp_path: Path, shim_machine: ShimDevice) -> Path:
    """Write a model that the persistent kernel decodes, on one multiprocessor."""
    path = tmp_path / 'wide.gguf'
    generate(str(path), ModelShape(
        block_count=1, embedding_length=512, feed_forward_length=512, head_count=4,
        head_count_kv=2, head_dim=128, vocab_size=512, context_length=128), seed=4)
    shim_machine.info = replace(shim_machine.info, multiprocessors=1, shared_bytes=163 << 10)
    return path


def test_program_shows_where_a_persistent_step_goes(
    tmp_path: Path, wide_model: Path, capsys: pytest.CaptureFixture
) -> None:
    kept = tmp_path / 'run.json'
    assert main([str(wide_model), '--context', '40', '--prefill', '4', '--json', str(kept)]) == 0
    run = Result.from_json(kept.read_text())
    assert [step.position for step in run.clocked] == [0, 16] and not run.kernels
    sizes = matrix_bytes(GgufModel.open(str(wide_model)))
    for step in run.clocked:
        rows = step.position * run.position_bytes
        assert sum(part.read_bytes for part in step.parts) == sizes + rows
        assert 0 < step.step_us and 0 <= step.launch_us < step.clocked_us
        assert [part.name for part in step.parts][1] == 'attention'
    assert 'step at 16' in capsys.readouterr().out


def test_program_holds_a_persistent_model_to_the_bars(
    tmp_path: Path, wide_model: Path, shim_machine: ShimDevice, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture
) -> None:
    kept = tmp_path / 'run.json'
    arguments = [
        str(wide_model), '--context', '64', '--prefill', '4', '--bars', '--json', str(kept)]
    monkeypatch.setattr(opening, 'open_device', lambda ordinal: shim_machine)
    # What was measured before the bars is kept where they cannot be.
    assert main(arguments) == 1
    assert 'give --context at least 552' in ' '.join(capsys.readouterr().out.split())
    assert Result.from_json(kept.read_text()).clocked
    monkeypatch.setattr(bench, 'POSITION', 8)
    monkeypatch.setattr(bench, 'LONG_POSITION', 16)
    monkeypatch.setattr(lanes, 'REPEATED', 2)
    monkeypatch.setattr(
        lanes, 'measure_lanes', partial(measure_lanes, few_blocks=2, compared=2))
    assert main(arguments) == 0
    run = Result.from_json(kept.read_text())
    assert [lane.activations for lane in run.lanes] == ['fp16', 'a8', 'a8x2']
    for lane in run.lanes:
        persistent = lane.activations != 'fp16'
        assert lane.repeats and lane.kl < 0.1
        assert [at.position for at in lane.decode] == [8, 16]
        assert lane.route == ('PersistentDecode' if persistent else 'DecodeStep')
        assert lane.few_blocks == (2 if persistent else 0)
    assert {bar.what for bar in run.bars} >= {
        'host share of a token', 'KL(fp16, a8)', 'KL(fp16, a8x2), the default'}


def test_kept_run_is_shown_again_beside_llama_cpp(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    stage = Stage('down', 10, 5.0, 4.0, 1.0)
    kept, theirs = tmp_path / 'run.json', tmp_path / 'llama.json'
    run = replace(
        RESULT, projections=(Projection('Orin', 'none', (stage,)),), bars=bars(RESULT, {}, 'this'))
    kept.write_text(run.to_json())
    assert Result.from_json(kept.read_text()) == run
    theirs.write_text(json.dumps([{'n_prompt': 0, 'n_depth': 512, 'avg_ts': 320.0}]))
    assert main([str(kept), '--llama-bench', str(theirs), '--json', str(tmp_path / 'b.json')]) == 0
    again = Result.from_json((tmp_path / 'b.json').read_text())
    assert len(again.bars) == len(run.bars) + 1 and again.bars[0].command == 'this'
    assert again.bars[0].measured.startswith('2.50 times') and again.bars[0].met
    assert 'Orin' in capsys.readouterr().out
