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
Generate GGUF files that are shaped like Qwen3 models, of any size, with random weights.

``python -m reflex_llm_ros.synthetic.qwen3_gguf --size 0.6b --mix q4_k_m OUT.gguf``
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
import math
from pathlib import Path
import sys

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter
import numpy as np
from reflex_llm_ros.engine.errors import ModelFileError
from reflex_llm_ros.engine.gguf_config import expected_shapes
from reflex_llm_ros.synthetic.model_shape import MIXES, ModelShape, PRESETS, tensor_types
from reflex_llm_ros.synthetic.vocabulary import (
    DEFAULT_CHAT_TEMPLATE,
    END_OF_TEXT,
    END_OF_TURN,
    Vocabulary,
    vocabulary,
)
from reflex_llm_ros.synthetic.weights import quantized, synthesized

ARCHITECTURES = ('qwen3', 'llama')

LARGE_MODEL = 50_000_000
LARGE_TENSOR = 4_000_000
"""From these counts of weights on, blocks are written directly instead of quantized."""

ALIGNMENT = 32

Value = str | int | float | bool | Sequence[str] | Sequence[int]

Progress = Callable[[int, int], None]
"""Called with the bytes of tensors written and the bytes in all."""


def generate(
    path: str,
    shape: ModelShape,
    *,
    mix: str = 'q4_k_m',
    architecture: str = 'qwen3',
    seed: int = 0,
    vocabulary_file: str | None = None,
    chat_template: str = DEFAULT_CHAT_TEMPLATE,
    types: Mapping[str, GGMLQuantizationType] | None = None,
    metadata: Mapping[str, Value | None] | None = None,
    progress: Progress = lambda done, total: None,
) -> None:
    """
    Write a model with random weights.

    The weights of a small model depend on the seed, the name of the tensor and the sizes
    alone, so that files of several mixes are one model, quantized several ways.

    Parameters
    ----------
    path
        The file to write.
    shape
        Sizes, such as one of ``PRESETS``.
    mix
        One of ``MIXES``.
    architecture
        ``qwen3`` or ``llama``; the latter has no head norms.
    seed
        Same seed, same file.
    vocabulary_file
        GGUF file to copy the tokenizer from; None for a small made-up one.
    chat_template
        Jinja text; empty for none.
    types
        Types of single tensors by name, before the mix.
    metadata
        Keys that are added to the file or replace its own; None leaves a key out.
    progress
        Told after every piece written.

    Raises
    ------
    ValueError
        Sizes, types or vocabulary do not fit together.
    ModelFileError
        The vocabulary file is damaged.
    OSError
        The file cannot be written.

    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f'architecture must be qwen3 or llama, not {architecture!r}')
    words = vocabulary(vocabulary_file)
    words = words.padded(shape.vocab_size or len(words.tokens))
    shape = replace(
        shape, vocab_size=len(words.tokens), qk_norm=architecture == 'qwen3')
    chosen = tensor_types(shape, mix, types or {})
    shapes = expected_shapes(shape)

    values = _metadata(shape, architecture, mix, words, chat_template)
    values.update(metadata or {})
    writer = GGUFWriter(path, architecture)
    for key, value in values.items():
        if value is not None:
            writer.add_key_value(key, value, _value_type(value))
    sizes = {name: _bytes(name, shapes[name], chosen[name]) for name in shapes}
    for name, size in sizes.items():
        writer.add_tensor_info(
            name, shapes[name], np.dtype(np.float32), size, raw_dtype=chosen[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()

    total, done = sum(sizes.values()), 0
    with open(path, 'ab') as file:
        for name in shapes:
            file.write(bytes(-file.tell() % ALIGNMENT))
            for piece in _pieces(name, shapes, chosen[name], shape, seed):
                piece.tofile(file)
                done += piece.nbytes
                progress(done, total)
        file.write(bytes(-file.tell() % ALIGNMENT))


def _metadata(
    shape: ModelShape, architecture: str, mix: str, words: Vocabulary, chat_template: str
) -> dict[str, Value | None]:
    a, t = f'{architecture}.', 'tokenizer.ggml.'
    return {
        'general.name': f'Random {architecture} {mix}',
        'general.quantization_version': 2,
        a + 'block_count': shape.block_count,
        a + 'context_length': shape.context_length,
        a + 'embedding_length': shape.embedding_length,
        a + 'feed_forward_length': shape.feed_forward_length,
        a + 'vocab_size': shape.vocab_size,
        a + 'attention.head_count': shape.head_count,
        a + 'attention.head_count_kv': shape.head_count_kv,
        a + 'attention.key_length': shape.head_dim,
        a + 'attention.value_length': shape.head_dim,
        a + 'attention.layer_norm_rms_epsilon': shape.rms_eps,
        a + 'rope.freq_base': shape.rope_base,
        a + 'rope.dimension_count': shape.head_dim,
        t + 'model': 'gpt2',
        t + 'pre': words.pre,
        t + 'tokens': words.tokens,
        t + 'token_type': words.types,
        t + 'merges': words.merges,
        t + 'bos_token_id': words.token_id(END_OF_TEXT),
        t + 'eos_token_id': words.token_id(END_OF_TURN),
        t + 'padding_token_id': words.token_id(END_OF_TEXT),
        t + 'add_bos_token': False,
        'tokenizer.chat_template': chat_template or None,
    }


def _value_type(value: Value) -> GGUFValueType:
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    if isinstance(value, int):
        return GGUFValueType.UINT32
    if isinstance(value, float):
        return GGUFValueType.FLOAT32
    return GGUFValueType.STRING if isinstance(value, str) else GGUFValueType.ARRAY


def _bytes(name: str, dimensions: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if dimensions[-1] % block:
        raise ValueError(
            f'{name}: rows of {dimensions[-1]} do not fill {kind.name} blocks of {block}')
    return math.prod(dimensions) // block * block_bytes


def _pieces(
    name: str, shapes: Mapping[str, tuple[int, ...]], kind: GGMLQuantizationType,
    shape: ModelShape, seed: int,
) -> Iterator[np.ndarray]:
    """Bytes of one tensor, in pieces."""
    dimensions = shapes[name]
    large = (math.prod(dimensions) > LARGE_TENSOR
             or sum(map(math.prod, shapes.values())) > LARGE_MODEL)
    if large and len(dimensions) > 1:
        yield from synthesized(name, dimensions, kind, shape, seed)
    else:
        yield quantized(name, dimensions, kind, shape, seed)


def _show(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(
            f'\r{done / 1e6:,.0f} of {total / 1e6:,.0f} MB' + ('\n' if done == total else ''))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog='qwen3_gguf', description='Write a Qwen3-shaped GGUF with random weights.')
    parser.add_argument('out', metavar='OUT.gguf')
    parser.add_argument('--size', choices=PRESETS, default='tiny')
    parser.add_argument('--mix', choices=MIXES, default='q4_k_m')
    parser.add_argument('--architecture', choices=ARCHITECTURES, default='qwen3')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--vocab', metavar='VOCAB.gguf', help='copy the tokenizer of this file')
    parser.add_argument(
        '--chat-template', metavar='FILE', help='Jinja chat template in place of plain ChatML')
    options = parser.parse_args(arguments)
    try:
        template = DEFAULT_CHAT_TEMPLATE
        if options.chat_template:
            template = Path(options.chat_template).read_text(encoding='utf-8')
        generate(
            options.out, PRESETS[options.size], mix=options.mix,
            architecture=options.architecture, seed=options.seed,
            vocabulary_file=options.vocab, chat_template=template, progress=_show)
    except (ModelFileError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
