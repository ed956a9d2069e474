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

"""The engine: loading, closing, and what it says about itself."""

from pathlib import Path
import subprocess
import sys

import engines
from engines import answer, ask, text
import pytest
from reflex_llm_ros.engine import Engine, EngineConfig
from reflex_llm_ros.engine.errors import EngineError, ModelFileError, OutOfMemoryError


def test_progress_rises_to_one_with_words(tiny_qwen3_path):
    seen = []
    Engine(EngineConfig(str(tiny_qwen3_path), backend='cpu', context_length=64),
           lambda done, phrase: seen.append((done, phrase))).close()
    fractions = [done for done, _ in seen]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0 and seen[-1] == (1.0, 'ready')
    assert all(phrase for _, phrase in seen)


@pytest.mark.parametrize('at', [0.0, 0.05, 0.5, 0.95, 1.0])
def test_loading_can_be_called_off(tiny_qwen3_path, at):
    def call_off(done, phrase):
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Engine(EngineConfig(str(tiny_qwen3_path), backend='cpu', context_length=64), call_off)
    assert tiny_qwen3_path.name not in Path('/proc/self/maps').read_text()


def test_info_and_memory(tiny_qwen3_path):
    engine = engines.load(tiny_qwen3_path)
    assert engine.info.architecture == 'qwen3'
    assert engine.info.context_length == 256
    assert engine.info.backend == 'cpu'
    assert engine.info.file_bytes == tiny_qwen3_path.stat().st_size
    assert engine.info.model_name
    report = engine.memory()
    assert report.weights > report.kv_cache > 0
    assert engine.counters() == {}
    engine.close()


def test_what_cannot_be_loaded(tiny_qwen3_path, tmp_path):
    with pytest.raises(ModelFileError, match='nowhere'):
        Engine(EngineConfig(str(tmp_path / 'nowhere.gguf')))
    with pytest.raises(EngineError, match='engine.backend'):
        Engine(EngineConfig(str(tiny_qwen3_path), backend='tpu'))
    with pytest.raises(OutOfMemoryError, match='memory_limit_mb'):
        Engine(EngineConfig(str(tiny_qwen3_path), backend='cpu', memory_limit_mb=1))


def test_a_closed_engine_says_so(tiny_qwen3_path):
    engine = engines.load(tiny_qwen3_path)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match='closed'):
        answer(engine, ask('Hello.'))


def test_loading_twenty_times_leaves_nothing_behind(tiny_qwen3_path):
    psutil = pytest.importorskip('psutil')
    process = psutil.Process()

    def cycle():
        engine = engines.load(tiny_qwen3_path)
        text(engine, ask('Hello.', max_tokens=4))
        held = engine.memory().weights
        engine.close()
        return held

    for _ in range(3):
        weights = cycle()
    before, threads = process.memory_info().rss, process.num_threads()
    for _ in range(20):
        cycle()
    # One set of weights left behind a time would be twenty; the allocator's own moods are
    # well below two.
    assert process.memory_info().rss - before < 2 * weights
    assert process.num_threads() == threads
    assert tiny_qwen3_path.name not in Path('/proc/self/maps').read_text()


def test_the_engine_needs_no_ros_and_no_cuda(tiny_qwen3_path):
    program = '; '.join((
        'import sys',
        'sys.modules["rclpy"] = sys.modules["cupy"] = None',
        'from reflex_llm_ros.engine import Engine, EngineConfig, GenerateRequest, Message',
        f'engine = Engine(EngineConfig({str(tiny_qwen3_path)!r}, context_length=64))',
        'request = GenerateRequest((Message("user", "Hi"),))',
        'print(list(engine.generate(request))[-1].finish_reason)',
    ))
    run = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True, check=True,
        cwd=Path(__file__).resolve().parents[2])
    assert run.stdout.strip() in ('stop', 'length')
