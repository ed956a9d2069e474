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

"""Vocabularies for generated models: copied from a file, or made up."""

from dataclasses import dataclass, replace

from gguf import TokenType
from reflex_llm_ros.engine.gguf_model import read_tokenizer

END_OF_TEXT = '<|endoftext|>'
END_OF_TURN = '<|im_end|>'

QWEN3_ADDED_AT = 151643
QWEN3_ADDED = (
    END_OF_TEXT, '<|im_start|>', END_OF_TURN, '<|object_ref_start|>', '<|object_ref_end|>',
    '<|box_start|>', '<|box_end|>', '<|quad_start|>', '<|quad_end|>', '<|vision_start|>',
    '<|vision_end|>', '<|vision_pad|>', '<|image_pad|>', '<|video_pad|>', '<tool_call>',
    '</tool_call>', '<|fim_prefix|>', '<|fim_middle|>', '<|fim_suffix|>', '<|fim_pad|>',
    '<|repo_name|>', '<|file_sep|>', '<tool_response>', '</tool_response>', '<think>',
    '</think>',
)
"""The tokens that Qwen3 adds to Qwen2's 151,643, from its published tokenizer_config.json."""

WORDS = (
    ' the robot can carry a cup and two small boxes to the kitchen table, then it will return '
    'to its charging station and wait for the next command. What is in front of you? There is '
    'a person standing near the door. Please answer with one short sentence.'
)
"""Text whose words become merges of the made-up vocabulary."""

DEFAULT_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML without a default system prompt."""


@dataclass(frozen=True)
class Vocabulary:
    """What goes under ``tokenizer.ggml``; the model is ``gpt2``, byte-level BPE."""

    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]

    def token_id(self, text: str) -> int:
        """Find a token's id."""
        return self.tokens.index(text)

    def padded(self, size: int) -> 'Vocabulary':
        """Fill up with unused tokens, as files do whose embedding has more rows."""
        missing = size - len(self.tokens)
        if missing < 0:
            raise ValueError(
                f'the vocabulary has {len(self.tokens)} tokens, more than the {size} rows of '
                'the embedding')
        padding = tuple(f'[PAD{index}]' for index in range(len(self.tokens), size))
        return replace(
            self, tokens=self.tokens + padding,
            types=self.types + (int(TokenType.UNUSED),) * missing)


def vocabulary(path: str | None) -> Vocabulary:
    """
    Make a vocabulary.

    Parameters
    ----------
    path
        A GGUF file to copy a ``gpt2`` vocabulary from. One of Qwen2 gets the tokens that
        Qwen3 adds, in the place of padding. None for a made-up one of a few hundred tokens.

    Raises
    ------
    ModelFileError
        The file is no GGUF with a tokenizer.
    ValueError
        Its tokenizer is of another kind or lacks the ChatML tokens.

    """
    return _made_up() if path is None else _copied(path)


def _copied(path: str) -> Vocabulary:
    source = read_tokenizer(path)
    if source.model != 'gpt2':
        raise ValueError(f'{path}: needs a gpt2 vocabulary, not {source.model}')
    tokens, types = list(source.tokens), list(source.token_types)
    place = slice(QWEN3_ADDED_AT, QWEN3_ADDED_AT + len(QWEN3_ADDED))
    if source.pre == 'qwen2' and tokens[place][:3] == list(QWEN3_ADDED[:3]):
        tokens[place] = QWEN3_ADDED
        types[place] = [_added_type(token) for token in QWEN3_ADDED]
        types[place.stop:] = [int(TokenType.UNUSED)] * (len(tokens) - place.stop)
    for token in (END_OF_TEXT, END_OF_TURN):
        if token not in tokens:
            raise ValueError(f'{path}: the vocabulary lacks {token}')
    return Vocabulary(source.pre, tuple(tokens), tuple(types), source.merges)


def _added_type(token: str) -> int:
    """``<|x|>`` controls the model and is never shown; ``<x>`` is text."""
    return int(TokenType.CONTROL if token.startswith('<|') else TokenType.USER_DEFINED)


def _byte_symbols() -> dict[int, str]:
    """
    Give every byte a printable character.

    The table of GPT-2's byte-level BPE (Radford et al. 2019): printable bytes stand for
    themselves, the others for the characters from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable}
    symbols.update((byte, chr(256 + index)) for index, byte in enumerate(others))
    return symbols


def _made_up() -> Vocabulary:
    """Bytes, the words of ``WORDS`` merged from left to right, and ChatML's tokens."""
    symbols = _byte_symbols()
    tokens: list[str] = [symbols[byte] for byte in sorted(symbols)]
    merges: list[str] = []
    for word in WORDS.split(' ')[1:]:
        symbol, *rest = (symbols[byte] for byte in f' {word}'.encode())
        for following in rest:
            merged = symbol + following
            if merged not in tokens:
                tokens.append(merged)
                merges.append(f'{symbol} {following}')
            symbol = merged
    types = [int(TokenType.NORMAL)] * len(tokens)
    added = (END_OF_TEXT, '<|im_start|>', END_OF_TURN, '<think>', '</think>')
    return Vocabulary(
        'qwen2', (*tokens, *added), (*types, *map(_added_type, added)), tuple(merges))
