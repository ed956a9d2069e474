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

"""The memory budget: what fits is decided before anything is allocated."""

from dataclasses import replace
from pathlib import Path
import random

import numpy as np
import pytest
from reflex_llm_ros.engine.errors import OutOfMemoryError
from reflex_llm_ros.engine.gguf_model import ModelConfig, RopeConfig
from reflex_llm_ros.engine.memory import host_free_bytes, kv_bytes_per_position, MEBIBYTE, plan

CONFIG = ModelConfig(
    architecture='qwen3', name='', block_count=28, context_length=40960,
    embedding_length=1024, feed_forward_length=3072, head_count=16, head_count_kv=8,
    head_dim=128, vocab_size=151936, rms_eps=1e-6,
    rope=RopeConfig('half', np.ones(64)), qk_norm=True, tied_output=True)


def test_cache_bytes_are_keys_and_values_of_all_layers_and_heads():
    values = 2 * 28 * 8 * 128
    assert kv_bytes_per_position(CONFIG, 'f16') == 2 * values
    assert kv_bytes_per_position(CONFIG, 'float32') == 4 * values
    assert kv_bytes_per_position(CONFIG, 'int8') == values + 4 * 2 * 28 * 8


def test_an_automatic_context_is_the_largest_that_fits():
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    for _ in range(200):
        weights, scratch = rng.randrange(1 << 30), rng.randrange(1 << 24)
        position = rng.randrange(1, 1 << 18)
        free = rng.randrange(1 << 33)
        budget = free - free // 16
        largest = max(
            (n for n in (256, 1000, 40960, (budget - weights - scratch) // position)
             if 256 <= n <= 40960 and weights + scratch + n * position <= budget),
            default=0)
        arguments = {'weights': weights, 'position_bytes': position, 'scratch': scratch,
                     'free': free}
        if largest:
            assert plan(CONFIG, **arguments) == largest, f'seed {seed}'
        else:
            with pytest.raises(OutOfMemoryError):
                plan(CONFIG, **arguments)


def test_an_automatic_context_is_at_most_the_models():
    small = replace(CONFIG, context_length=100)
    assert plan(small, weights=0, position_bytes=1, scratch=0, free=1 << 30) == 100


def test_a_context_asked_for_is_given_exactly_or_refused():
    arguments = {'weights': 100 * MEBIBYTE, 'position_bytes': MEBIBYTE, 'scratch': 0,
                 'free': 1600 * MEBIBYTE}
    assert plan(CONFIG, context_length=1400, **arguments) == 1400
    with pytest.raises(OutOfMemoryError) as caught:
        plan(CONFIG, context_length=1401, **arguments)
    message = str(caught.value)
    assert 'needs 1501 MiB' in message
    assert '1500 MiB of 1600 MiB' in message
    assert 'set context.length to 1400 or less' in message
    assert '\n' not in message


def test_the_limit_counts_where_it_is_lower_than_free_memory():
    arguments = {'weights': 100 * MEBIBYTE, 'position_bytes': MEBIBYTE, 'scratch': 0}
    assert plan(CONFIG, limit_mb=500, free=1600 * MEBIBYTE, **arguments) == 400
    assert plan(CONFIG, limit_mb=9000, free=1600 * MEBIBYTE, **arguments) == 1400
    with pytest.raises(OutOfMemoryError, match='memory_limit_mb allows 200 MiB'):
        plan(CONFIG, limit_mb=200, free=1600 * MEBIBYTE, **arguments)


def test_weights_that_do_not_fit_ask_for_a_smaller_model():
    with pytest.raises(OutOfMemoryError, match='use a smaller or more quantized model'):
        plan(CONFIG, weights=1 << 30, position_bytes=1, scratch=0, free=1 << 29)


def machine(root: Path, available_kb: int, cgroup: str, files: dict) -> Path:
    """Lay out the part of a file system that tells of memory."""
    (root / 'proc/self').mkdir(parents=True)
    (root / 'proc/meminfo').write_text(
        f'MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n')
    (root / 'proc/self/cgroup').write_text(cgroup)
    for name, text in files.items():
        path = root / 'sys/fs/cgroup' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_host_memory_without_limits_is_what_the_kernel_calls_available(tmp_path):
    assert host_free_bytes(machine(tmp_path, 2000, '0::/\n', {})) == 2000 * 1024


def test_a_version_2_group_around_the_process_limits_it(tmp_path):
    root = machine(tmp_path, 2000, '0::/robot/brain\n', {
        'robot/brain/memory.max': 'max\n',
        'robot/brain/memory.current': '5\n',
        'robot/brain/memory.stat': 'inactive_file 0\n',
        'robot/memory.max': '1000000\n',
        'robot/memory.current': '600000\n',
        'robot/memory.stat': 'anon 7\ninactive_file 50000\nactive_file 3\n',
    })
    assert host_free_bytes(root) == 450000


def test_a_container_sees_its_version_1_group_as_the_root(tmp_path):
    root = machine(tmp_path, 2000, '5:cpu:/x\n4:memory:/docker/abc\n0::/\n', {
        'memory/memory.limit_in_bytes': '800000\n',
        'memory/memory.usage_in_bytes': '700000\n',
        'memory/memory.stat': 'inactive_file 1\ntotal_inactive_file 20000\n',
    })
    assert host_free_bytes(root) == 120000


def test_a_group_over_its_limit_has_nothing_free(tmp_path):
    root = machine(tmp_path, 2000, '0::/\n', {
        'memory.max': '1000\n', 'memory.current': '5000\n',
        'memory.stat': 'inactive_file 0\n'})
    assert host_free_bytes(root) == 0


def test_this_machine_has_some_memory_free():
    total = int(Path('/proc/meminfo').read_text().split()[1]) * 1024
    assert 0 < host_free_bytes() <= total
