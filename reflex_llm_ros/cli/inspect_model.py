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

"""``reflex_llm_inspect MODEL.gguf``: what a model file holds and what it needs here."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
import math
import sys

from reflex_llm_ros.engine.backends.cuda.matvec import TRIPLES, UINT32_TYPES
from reflex_llm_ros.engine.backends.cuda.opening import open_device
from reflex_llm_ros.engine.backends.cuda.weights import MATRIX_TYPES
from reflex_llm_ros.engine.chat_template import load_chat_template
from reflex_llm_ros.engine.errors import EngineError, OutOfMemoryError
from reflex_llm_ros.engine.gguf_config import expected_shapes
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.memory import host_free_bytes, kv_bytes_per_position, plan
from reflex_llm_ros.engine.tokenizer import Tokenizer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 20

PLACES = (
    ('GPU', 'f16', 'f16'), ('GPU', 'int8', 'int8'), ('CPU', 'f16', 'float32'),
    ('CPU', 'int8', 'int8'))
"""Where a model can run, ``context.kv_cache``, and what the cache then holds."""


def size(count: int) -> str:
    """Say a number of bytes."""
    for unit, scale in (('GiB', 30), ('MiB', 20), ('KiB', 10)):
        if count >= 1 << scale:
            value = count / (1 << scale)
            return f'{value:.1f} {unit}' if value < 100 else f'{value:,.0f} {unit}'
    return f'{count} B'


def printable(text: str) -> Text:
    """Text from a file, without what a terminal would obey."""
    return Text(''.join(char if char.isprintable() else '?' for char in text))


def pairs(rows: Sequence[tuple[str, str | Text]]) -> Table:
    """Lay out names and values side by side."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style='dim')
    grid.add_column()
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def sizes(model: GgufModel) -> RenderableType:
    """Architecture and sizes, in two columns."""
    config = model.config
    weights = sum(math.prod(tensor.shape) for tensor in model.tensors.values())
    grid = Table.grid(padding=(0, 4))
    grid.add_row(
        pairs([
            ('architecture', config.architecture),
            ('weights', f'{weights / 1e6:,.0f} million'),
            ('vocabulary', f'{config.vocab_size:,} tokens'),
            ('file', size(model.file_bytes)),
            ('context', f'{config.context_length:,} tokens'),
        ]),
        pairs([
            ('blocks', f'{config.block_count} of width {config.embedding_length:,}'),
            ('feed-forward', f'{config.feed_forward_length:,}'),
            ('query heads', f'{config.head_count} of width {config.head_dim}'),
            ('key/value heads', str(config.head_count_kv)),
            ('output', 'tied to the embedding' if config.tied_output else 'separate'),
        ]))
    return grid


def tensor_types(model: GgufModel) -> Table:
    """Tensors and bytes by type, the largest share first."""
    counts: dict[str, list[int]] = {}
    for tensor in model.tensors.values():
        entry = counts.setdefault(tensor.type.name, [0, 0, 0])
        entry[0] += 1
        entry[1] += math.prod(tensor.shape)
        entry[2] += tensor.data.nbytes
    total = sum(entry[2] for entry in counts.values())
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style='dim')
    table.add_column('type', style='bold')
    for name in ('tensors', 'weights', 'bits each', 'size'):
        table.add_column(name, justify='right')
    table.add_column('share')
    for name, (tensors, weights, held) in sorted(
            counts.items(), key=lambda item: -item[1][2]):
        share = held / total
        table.add_row(
            name, str(tensors), f'{weights / 1e6:,.2f} M', f'{8 * held / weights:.2f}',
            size(held), Text.assemble(
                f'{share:4.0%} ' if share >= 0.005 else ' <1% ',
                ('█' * round(share * BAR_WIDTH), 'cyan')))
    return table


def text_handling(model: GgufModel) -> Table:
    """Say how text goes in and out: tokenizer, end of turn, chat template, thinking."""
    metadata = model.tokenizer
    tokenizer = Tokenizer(metadata)
    template = load_chat_template('', model.chat_template, tokenizer)
    ends = ', '.join(sorted(tokenizer.token_text(token) for token in tokenizer.end_ids))
    return pairs([
        ('tokenizer', printable(
            f'{metadata.model} ({metadata.pre or "default"}), {len(metadata.merges):,} merges')),
        ('answers end on', printable(ends)),
        ('chat template', 'in the file' if model.chat_template else 'none: plain ChatML is used'),
        ('thinking', 'supported' if template.supports_thinking else 'not supported'),
    ])


@dataclass(frozen=True)
class Gpu:
    """The first GPU: what it is, or why there is none, and its free bytes."""

    description: str
    free: int | None


def find_gpu() -> Gpu:
    """Look at the first GPU."""
    try:
        device = open_device(0)
    except EngineError as error:
        return Gpu(f'none: {str(error).split(";")[0]}', None)
    info = device.info
    found = Gpu(
        f'{info.name}, {info.multiprocessors} multiprocessors, compute capability '
        f'{info.capability[0]}.{info.capability[1]}', device.free_bytes())
    device.close()
    return found


def kernels(model: GgufModel, gpu: Gpu) -> Table:
    """Say which kernels a GPU runs this model on."""
    def kind(name: str) -> str:
        return MATRIX_TYPES.get(model.tensors[name].type, 'f16')

    blocks = range(model.config.block_count)
    matrices = [name for name, tensor in model.tensors.items() if len(tensor.shape) == 2]
    products = sorted({kind(name) for name in matrices})
    fused = sum(
        tuple(kind(f'blk.{block}.attn_{part}.weight') for part in 'qkv') in TRIPLES
        for block in blocks)
    paired = sum(
        kind(f'blk.{block}.ffn_gate.weight') == kind(f'blk.{block}.ffn_up.weight')
        for block in blocks)
    return pairs([
        ('GPU', printable(gpu.description)),
        ('kernels', ', '.join(
            f'gemv_{name}_uint32' if name in UINT32_TYPES else f'gemv_{name}'
            for name in products)),
        ('one launch for', f'q, k and v in {fused}, gate and up in {paired} of '
                           f'{len(blocks)} blocks'),
    ])


def memory(model: GgufModel, gpu: Gpu) -> Table:
    """Lay out what weights and cache take, and the context that fits into free memory."""
    config, host_free = model.config, host_free_bytes()
    gpu_free = host_free if gpu.free is None else gpu.free
    as_floats = 4 * sum(map(math.prod, expected_shapes(config).values()))
    as_stored = sum(tensor.data.nbytes for tensor in model.tensors.values())
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style='dim',
        caption=f'{size(host_free)} free here' + (
            ". A GPU's own memory has to hold all of it." if gpu.free is None
            else f', {size(gpu.free)} on the GPU.'),
        caption_justify='left')
    table.add_column('runs on', style='bold')
    table.add_column('cache')
    for name in ('weights', 'per 1,000 tokens', 'fitting context'):
        table.add_column(name, justify='right')
    for device, cache, element in PLACES:
        weights = as_stored if device == 'GPU' else as_floats
        position = kv_bytes_per_position(config, element)
        try:
            fits = plan(
                config, weights=weights, position_bytes=position, scratch=0,
                free=gpu_free if device == 'GPU' else host_free)
        except OutOfMemoryError:
            context = Text('none', style='red')
        else:
            whole = fits == config.context_length
            context = Text(
                f'all {fits:,}' if whole else f'about {fits // 100 * 100:,}',
                style='green' if whole else 'yellow')
        table.add_row(
            device, cache if cache == element else f'{cache}, as {element}', size(weights),
            size(1000 * position), context)
    return table


def report(model: GgufModel) -> RenderableType:
    """Lay out everything as one panel."""
    gpu = find_gpu()
    title = printable(model.config.name or 'Model')
    title.stylize('bold')
    return Panel(
        Group(
            sizes(model), '', tensor_types(model), '', text_handling(model), '',
            kernels(model, gpu), '', memory(model, gpu)),
        title=title, title_align='left', padding=(1, 2), expand=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog='reflex_llm_inspect',
        description='Show what a GGUF model holds and what it needs on this machine.')
    parser.add_argument('model', metavar='MODEL.gguf')
    options = parser.parse_args(arguments)
    try:
        model = GgufModel.open(options.model)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        Console(highlight=False).print(report(model))
    except EngineError as error:
        print(f'{options.model}: {error}', file=sys.stderr)
        return 1
    finally:
        model.close()
    return 0


if __name__ == '__main__':
    sys.exit(main())
