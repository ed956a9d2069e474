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

"""What decoding has to reach, beside what a run measured."""

from collections.abc import Iterator, Mapping
import json
from pathlib import Path

from reflex_llm_ros.bench.result import Bar, Decode, Lane, Result

DEFAULT_LANE = 'a8x2'
POSITION = 512
TIMES_LLAMA_CPP = {'0.6B': {'a8x2': 2.5}, '4B': {'a8x2': 2.4}, '8B': {'a8x2': 2.0}}
SHARE_OF_LIMIT = {'4B': 0.45, '8B': 0.55}
Q8_0 = 'Q8_0'
TIMES_LLAMA_CPP_Q8_0 = {'4B': {'a8x2': 1.8, 'a8': 2.0}}
"""Of models whose matrices are all of that type."""
LONG_POSITION = 16_000
LONG_COST = 1.25
HOST_SHARE = 0.03
INSTRUCTIONS = {('q4k', 1): 1.6, ('q4k', 2): 2.2, ('q6k', 1): 2.0, ('q6k', 2): 2.6}
ORIN_GB_PER_S, ORIN_GHZ = 102.0, 1.02
MOST_KL = 1e-3
LOAD_SHARE = 0.6


def read_llama_bench(path: Path) -> dict[int, float]:
    """Read tokens a second by depth from ``llama-bench -o json``, of generation alone."""
    return {int(run['n_depth']): float(run['avg_ts']) for run in json.loads(path.read_text())
            if run['n_prompt'] == 0}


def bars(
    result: Result, llama_cpp: Mapping[int, float], command: str
) -> tuple[Bar, ...]:
    """Return a row for each bar that this run can be held to."""
    return tuple(_bars(result, llama_cpp, command))


def _bars(result: Result, llama_cpp: Mapping[int, float], command: str) -> Iterator[Bar]:
    only_q8 = result.types == Q8_0
    theirs = llama_cpp.get(POSITION, 0.0)
    every_times = (TIMES_LLAMA_CPP_Q8_0 if only_q8 else TIMES_LLAMA_CPP).get(result.size, {})
    for lane in result.lanes:
        ours, least = _at(lane, POSITION), every_times.get(lane.activations, 0.0)
        if ours and theirs and least:
            times = ours.tokens_per_s / theirs
            yield Bar(
                f'{result.size} decode at {POSITION}, {lane.activations}, of llama.cpp',
                f'{times:.2f} times ({ours.tokens_per_s:.0f} against {theirs:.0f} tokens/s)',
                f'at least {least:g} times', times >= least, command)
    default = next((lane for lane in result.lanes if lane.activations == DEFAULT_LANE), None)
    usual = default and _at(default, POSITION)
    if usual:
        share, least = result.share_of_limit(usual), SHARE_OF_LIMIT.get(result.size, 0.0)
        if least and not only_q8:
            yield Bar(
                f'{result.size} decode at {POSITION}, of the read limit', f'{share:.0%}',
                f'at least {least:.0%}', share >= least, command)
        longest = default and _at(default, LONG_POSITION)
        if longest:
            bytes_ms = result.limit_ms(LONG_POSITION) - result.limit_ms(POSITION)
            ratio = (longest.step_ms - usual.step_ms) / bytes_ms
            yield Bar(
                f"{result.size} decode at {LONG_POSITION:,}: time for the cache's bytes",
                f'{ratio:.2f} times', f'at most {LONG_COST:g} times', ratio <= LONG_COST, command)
    if default:
        yield Bar(
            'host share of a token', f'{result.host_share:.1%}', f'under {HOST_SHARE:.0%}',
            result.host_share < HOST_SHARE, command)
    if result.load:
        share, rate = result.load.share_of_read, result.file_bytes / result.load.weights_s / 1e9
        yield Bar(
            'weights loaded, of read() where a cache has the file',
            f'{share:.0%} ({result.load.weights_s:.2f} s, {rate:.1f} GB/s)',
            f'at least {LOAD_SHARE:.0%}', share >= LOAD_SHARE, command)
    for lane in result.lanes:
        if lane.few_blocks_ms and result.clock_ghz:
            rate = result.weight_bytes / lane.few_blocks_ms / 1e6 * ORIN_GHZ / result.clock_ghz
            yield Bar(
                f'a whole step on {lane.few_blocks} multiprocessors at {ORIN_GHZ} GHz, '
                f'{lane.activations}',
                f'{rate:.0f} GB/s', f'at least {ORIN_GB_PER_S:.0f} GB/s', rate >= ORIN_GB_PER_S,
                command)
    for lane in result.lanes:
        if lane.activations != 'fp16':
            yield Bar(
                f'KL(fp16, {lane.activations})'
                + (', the default' if lane.activations == DEFAULT_LANE else ''),
                f'{lane.kl:.1e} nats', f'at most {MOST_KL:g}', lane.kl <= MOST_KL, command)
    for cost in result.costs:
        most = INSTRUCTIONS[cost.kernel_type, cost.words]
        words = 'one word' if cost.words == 1 else 'two words'
        yield Bar(
            f'instructions a weight, {cost.kernel_type.upper()}, {words}', f'{cost.a_weight:.2f}',
            f'at most {most:g}', cost.a_weight <= most,
            'pytest test/kernels/test_instructions.py')


def _at(lane: Lane, position: int) -> Decode | None:
    return next((decode for decode in lane.decode if decode.position == position), None)
