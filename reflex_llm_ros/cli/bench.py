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

Prints prefill, decode and time to first token, and on a GPU each kernel's share of the
measured copy bandwidth. ``--json`` and ``--plot`` keep the run.
"""

import argparse
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
import platform
import sys

from reflex_llm_ros.bench.measure import measure_decode, measure_prefill
from reflex_llm_ros.bench.report import plot, print_report
from reflex_llm_ros.bench.result import Result
from reflex_llm_ros.engine.backends import open_backend
from reflex_llm_ros.engine.backends.base import Backend
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.errors import EngineError
from reflex_llm_ros.engine.gguf_model import GgufModel
from rich.console import Console

PREFILLS = (128, 512, 2048)
DECODE_TOKENS = 64
ROOM = 256
"""Positions that measuring takes beyond the place where it starts."""


def run(config: EngineConfig, prefills: Sequence[int], console: Console) -> Result:
    """Load a model and measure it."""
    with closing(GgufModel.open(config.model_path)) as model:
        file_bytes = model.file_bytes
        # Of an embedding that is not the head as well, a token reads one row.
        read_bytes = sum(
            tensor.data.nbytes for name, tensor in model.tensors.items()
            if name != 'token_embd.weight' or model.config.tied_output)
        with console.status('loading') as status:
            backend = open_backend(
                model, config, lambda done, step: status.update(f'{done:.0%} {step}'))
    with closing(backend), console.status('measuring') as status:
        last = backend.context_length - ROOM
        fitting = [tokens for tokens in prefills if tokens <= last]
        positions = sorted({0, min(512, last), last})
        prefill, decode = [], []
        for tokens in fitting:
            status.update(f'prefill of {tokens}')
            prefill.append(measure_prefill(backend, tokens))
        for position in positions:
            status.update(f'decode at {position}')
            decode.append(measure_decode(backend, position, DECODE_TOKENS))
        status.update('kernels')
        device, copy, share, kernels = _device(backend, positions[len(positions) // 2])
        return Result(
            date=date.today().isoformat(), model=Path(config.model_path).name,
            file_bytes=file_bytes,
            read_bytes=read_bytes, backend=backend.name, device=device,
            copy_gb_per_s=copy / 1e9, host_share=share, decode=tuple(decode),
            prefill=tuple(prefill), kernels=kernels)


def _device(backend: Backend, position: int) -> tuple:  # type: ignore[type-arg]
    """Name, copy bandwidth in bytes/s, host share and kernels, where the backend has them."""
    if backend.name != 'cuda':
        return platform.processor() or platform.machine(), 0.0, 0.0, ()
    from reflex_llm_ros.bench.cuda import host_share, measure_kernels
    from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend

    assert isinstance(backend, CudaBackend)
    copy = backend.device.copy_bandwidth()
    return (backend.device.info.name, copy, host_share(backend, position),
            measure_kernels(backend, copy))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 when the model cannot be loaded."""
    parser = argparse.ArgumentParser(
        prog='reflex_llm_bench', description='Measure how fast a model runs on this machine.')
    parser.add_argument('model', help='GGUF file')
    parser.add_argument('--backend', choices=('auto', 'cuda', 'cpu'), default='auto')
    parser.add_argument('--context', type=int, default=4096, help='positions of the KV cache')
    parser.add_argument('--prefill', type=int, nargs='*', default=PREFILLS, metavar='TOKENS')
    parser.add_argument('--json', type=Path, metavar='FILE')
    parser.add_argument('--plot', type=Path, metavar='FILE.png')
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    try:
        result = run(
            EngineConfig(options.model, backend=options.backend,
                         context_length=options.context), options.prefill, console)
    except EngineError as error:
        console.print(f'reflex_llm_bench: {error}', style='red', markup=False)
        return 1
    print_report(result, console)
    if options.json:
        options.json.write_text(result.to_json() + '\n')
    if options.plot:
        plot(result, options.plot)
    return 0


if __name__ == '__main__':
    sys.exit(main())
