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

"""
How fast a model runs on this machine: ``reflex_llm_bench MODEL.gguf``.

Prints how fast it loads, prefill, decode and time to first token, and on a GPU where the time of
a decode step goes and its share of the limit, a token's bytes over the read bandwidth measured in
the same run. ``--bars`` adds every kind of activations, a projection to an Orin, and what has to
be reached.
``--json`` and ``--plot`` keep the run; a kept run in place of a model is shown again.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
import platform
import shlex
import sys

from reflex_llm_ros.bench.bars import bars, LONG_POSITION, POSITION, read_llama_bench
from reflex_llm_ros.bench.load import measure_load
from reflex_llm_ros.bench.measure import measure_decode, measure_prefill
from reflex_llm_ros.bench.report import plot, print_report
from reflex_llm_ros.bench.result import Result, StepCost
from reflex_llm_ros.engine.backends import open_backend
from reflex_llm_ros.engine.backends.base import Backend
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.errors import BadRequestError, EngineError
from reflex_llm_ros.engine.gguf_model import GgufModel, ModelConfig
from reflex_llm_ros.engine.memory import kv_bytes_per_position
from rich.console import Console

PREFILLS = (128, 512, 2048)
DECODE_TOKENS = 64
ROOM = 256
"""Positions that measuring takes beyond the place where it starts."""
SIZES = {(1024, 28): '0.6B', (2560, 36): '4B', (4096, 36): '8B'}
"""Sizes that have bars, by embedding length and layers."""


def matrix_types(model: GgufModel) -> str:
    """Return the names of a model's types of matrices, those with most bytes first."""
    sizes: Counter[str] = Counter()
    for tensor in model.tensors.values():
        if len(tensor.shape) == 2:
            sizes[tensor.type.name] += tensor.data.nbytes
    return ', '.join(name for name, _ in sizes.most_common())


def run(config: EngineConfig, prefills: Sequence[int], console: Console) -> Result:
    """Load a model and measure it."""
    with closing(GgufModel.open(config.model_path)) as model:
        sizes, types = model.config, matrix_types(model)
        file_bytes = model.file_bytes
        # Of an embedding that is not the head as well, a token reads one row.
        weight_bytes = sum(
            tensor.data.nbytes for name, tensor in model.tensors.items()
            if name != 'token_embd.weight' or sizes.tied_output)
        with console.status('loading') as status:
            backend, load = measure_load(
                config.model_path, partial(open_backend, model, config),
                lambda done, step: status.update(f'{done:.0%} {step}'))
    with closing(backend), console.status('measuring') as status:
        last = backend.context_length - ROOM
        if last < 0:
            raise BadRequestError(
                f'{backend.context_length} positions are too few to measure: '
                f'give --context at least {ROOM}')
        fitting = [tokens for tokens in prefills if tokens <= last]
        positions = sorted({0, min(POSITION, last), last})
        prefill, decode = [], []
        for tokens in fitting:
            status.update(f'prefill of {tokens}')
            prefill.append(measure_prefill(backend, tokens))
        for position in positions:
            status.update(f'decode at {position}')
            decode.append(measure_decode(backend, position, DECODE_TOKENS))
        result = Result(
            date=date.today().isoformat(), model=Path(config.model_path).name,
            size=SIZES.get((sizes.embedding_length, sizes.block_count), ''),
            file_bytes=file_bytes, weight_bytes=weight_bytes,
            position_bytes=kv_bytes_per_position(sizes, config.kv_cache), backend=backend.name,
            device=platform.processor() or platform.machine(), choices='', copy_gb_per_s=0.0,
            read_gb_per_s=0.0, clock_ghz=0.0, host_share=0.0, decode=tuple(decode),
            prefill=tuple(prefill), kernels=(), load=load, types=types)
        if backend.name != 'cuda':
            return result
        status.update('where the time goes')
        return _with_device(result, backend, sizes, config, positions)


def _with_device(
    result: Result, backend: Backend, sizes: ModelConfig, config: EngineConfig,
    positions: Sequence[int]
) -> Result:
    """Add what only the CUDA backend can be asked."""
    from reflex_llm_ros.bench import cuda
    from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
    from reflex_llm_ros.engine.backends.cuda.persistent import PersistentDecode
    from reflex_llm_ros.engine.backends.cuda.q8_activations import KINDS
    from reflex_llm_ros.engine.backends.cuda.q8_choice import Choice
    from reflex_llm_ros.engine.backends.cuda.q8_steps import Q8Steps

    assert isinstance(backend, CudaBackend)
    loaded, device = backend.loaded(), backend.device
    choices = f'decode: {type(loaded.decode).__name__}'
    if isinstance(loaded.steps, Q8Steps):
        choice = Choice(KINDS[config.q8_activations], device.info.multiprocessors)
        columns = sizes.feed_forward_length
        choices += (
            f'; Q8_0 products: {config.q8_activations} activations, rows of ffn_down in '
            f'{choice.chunks(sizes.embedding_length, columns)} chunks')
        for product, kernel in backend.variants().items():
            choices += f'; {product}: {kernel}'
    usual = min(POSITION, positions[-1])
    result = replace(
        result, device=device.info.name, choices=choices,
        copy_gb_per_s=device.copy_bandwidth() / 1e9,
        read_gb_per_s=cuda.read_bandwidth(device) / 1e9, clock_ghz=cuda.clock_ghz(device),
        host_share=cuda.host_share(backend, usual))
    if not isinstance(loaded.decode, PersistentDecode):
        return replace(result, kernels=cuda.measure_kernels(backend, usual))
    return replace(result, clocked=tuple(
        cuda.measure_clocked(backend, position, result.position_bytes)
        for position in positions))


def with_bars(
    result: Result, config: EngineConfig, llama_bench: Path | None, command: str
) -> Result:
    """Add every kind of activations, what an Orin would do, and the bars."""
    from reflex_llm_ros.bench.lanes import measure_lanes
    from reflex_llm_ros.bench.orin import ORINS, project
    from reflex_llm_ros.bench.sass import find_nvdisasm, step_costs
    from reflex_llm_ros.engine.backends.cuda.compiler import compile_cubin
    from reflex_llm_ros.engine.backends.cuda.opening import open_device

    positions = [POSITION]
    if config.context_length >= LONG_POSITION + ROOM:
        positions.append(LONG_POSITION)
    lanes = measure_lanes(
        config, ('fp16', 'a8', 'a8x2'), positions, lambda: open_device(config.device))
    costs: tuple[StepCost, ...] = ()
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        print('no instructions counted: there is no nvdisasm (pip install nvidia-cuda-nvdisasm)',
              file=sys.stderr)
    else:
        try:
            costs = step_costs(lambda source: compile_cubin(source, (8, 7)), nvdisasm)
        except ValueError as error:
            print(f'no instructions counted: {error} (pip install nvidia-cuda-nvdisasm '
                  'brings another)', file=sys.stderr)
    with closing(GgufModel.open(config.model_path)) as model:
        projected = (project(model, costs, 2, POSITION, orin) for orin in ORINS)
        projections = tuple(found for found in projected if found)
    result = replace(result, lanes=lanes, costs=costs, projections=projections)
    return replace(result, bars=bars(result, _llama_cpp(llama_bench), command))


def _llama_cpp(llama_bench: Path | None) -> dict[int, float]:
    return read_llama_bench(llama_bench) if llama_bench else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 when the model cannot be loaded."""
    parser = argparse.ArgumentParser(
        prog='reflex_llm_bench', description='Measure how fast a model runs on this machine.')
    parser.add_argument('model', help='GGUF file, or what --json kept of one')
    parser.add_argument('--backend', choices=('auto', 'cuda', 'cpu'), default='auto')
    parser.add_argument('--context', type=int, default=4096, help='positions of the KV cache')
    parser.add_argument('--prefill', type=int, nargs='*', default=PREFILLS, metavar='TOKENS')
    parser.add_argument(
        '--bars', action='store_true', help='hold decoding on a GPU to what it has to reach')
    parser.add_argument(
        '--llama-bench', type=Path, metavar='FILE',
        help='output of llama-bench -o json for the same file, to compare with')
    parser.add_argument('--json', type=Path, metavar='FILE')
    parser.add_argument('--plot', type=Path, metavar='FILE.png')
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    config = EngineConfig(
        options.model, backend=options.backend, context_length=options.context)
    kept = Path(options.model)

    def keep(result: Result) -> None:
        if options.json:
            options.json.write_text(result.to_json() + '\n')

    try:
        if kept.suffix == '.json':
            result = Result.from_json(kept.read_text())
            command = result.bars[0].command if result.bars else ''
            result = replace(
                result, bars=bars(result, _llama_cpp(options.llama_bench), command))
        else:
            result = run(config, options.prefill, console)
        if options.bars and kept.suffix != '.json' and result.backend == 'cuda':
            given = sys.argv[1:] if arguments is None else arguments
            command = shlex.join([parser.prog, *given])
            keep(result)  # the bars take minutes more
            result = with_bars(result, config, options.llama_bench, command)
    except EngineError as error:
        console.print(f'reflex_llm_bench: {error}', style='red', markup=False)
        return 1
    print_report(result, console)
    keep(result)
    if options.plot:
        plot(result, options.plot)
    return 0


if __name__ == '__main__':
    sys.exit(main())
