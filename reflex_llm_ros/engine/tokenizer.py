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

"""Text to token ids and back: byte-level BPE built from a GGUF's own metadata."""

from collections.abc import Iterable, Sequence
import re

from reflex_llm_ros.engine.errors import BadRequestError, ModelFileError
from reflex_llm_ros.engine.gguf_header import quote
from reflex_llm_ros.engine.gguf_tokenizer import TokenizerMetadata
from tokenizers import Regex
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

# Values of tokenizer.ggml.token_type (GGUF specification).
_CONTROL = 3
_USER_DEFINED = 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r'\s*[\r\n]+|\s+(?!\S)|\s+'
_QWEN2 = (rf'{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}'
          rf'| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}')
_QWEN35 = (rf'{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}'
           rf'| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}')
_LLAMA3 = (rf'{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}'
           rf'| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}')

# tokenizer.ggml.pre -> the patterns that cut text into words, applied one after the other.
_PRE_TOKENIZERS = {
    'gpt-2': (_GPT2,),
    'smollm': (r'\p{N}', _GPT2),
    'qwen2': (_QWEN2,),
    'deepseek-r1-qwen': (_QWEN2,),
    'qwen35': (_QWEN35,),
    'llama-bpe': (_LLAMA3,),
    'llama3': (_LLAMA3,),
    'llama-v3': (_LLAMA3,),
}
# Llama 3 takes a word that is a token whole, whatever its merges say.
_IGNORE_MERGES = frozenset({'llama-bpe', 'llama3', 'llama-v3'})

# A model may end its turn with any of these, whichever one the file calls eos: files of
# fine-tuned models often still name the base model's.
_END_TEXTS = frozenset({
    '<|im_end|>', '<|endoftext|>', '<|eot_id|>', '<|eom_id|>', '<|end_of_text|>', '<|end|>',
    '<|return|>', '<end_of_turn>', '<end_of_utterance>', '<EOT>', '<｜end▁of▁sentence｜>',
})
# Answers carry these as text, also where a file marks them as control tokens.
_TEXT_TAGS = frozenset({'<think>', '</think>'})

MAX_PIECE = 1 << 20
"""
Characters encoded in one go; a longer text is cut, merges or not.

The regex engine aborts when it backtracks over ten million characters, and no context comes
near that length.
"""


def _byte_alphabet() -> tuple[str, ...]:
    """Return the character that stands for each byte in a byte-level vocabulary (GPT-2)."""
    printable = {*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return tuple(chr(byte if byte in printable else 256 + others.index(byte))
                 for byte in range(256))


_BYTE_OF = {ord(char): byte for byte, char in enumerate(_byte_alphabet())}


class Tokenizer:
    """
    Byte-level BPE with control tokens kept apart from text.

    Nothing normalizes the text, so decoding gives back what was encoded, as long as the
    vocabulary has all 256 bytes; bytes that it lacks (SmolLM2 lacks 21, rare ones) are left out.

    Parameters
    ----------
    metadata
        The file's ``tokenizer.ggml.*`` keys.

    Raises
    ------
    ModelFileError
        The tokenizer is of a kind that is not supported, or a merge does not fit its tokens.

    Attributes
    ----------
    vocab_size
        Number of token ids.
    bos_id
        Beginning of sequence, None where the model has none.
    eos_id
        End of sequence, None where the model has none.
    add_bos
        Whether a prompt starts with ``bos_id``; ``encode`` leaves that to its caller.
    end_ids
        Every id that ends an answer.
    control_texts
        The control tokens as the vocabulary spells them.

    """

    def __init__(self, metadata: TokenizerMetadata) -> None:
        if metadata.model != 'gpt2':
            raise ModelFileError(
                f'tokenizer model {quote(metadata.model)} is not supported, only gpt2 '
                '(byte-level BPE)')
        if metadata.pre not in _PRE_TOKENIZERS:
            raise ModelFileError(
                f'pre-tokenizer {quote(metadata.pre)} is not supported, only '
                f'{", ".join(sorted(_PRE_TOKENIZERS))}')
        tokens = metadata.tokens
        types = metadata.token_types
        self.vocab_size = len(tokens)
        self.bos_id = metadata.bos_token_id
        self.eos_id = metadata.eos_token_id
        self.add_bos = metadata.add_bos_token and self.bos_id is not None
        self._tokens = tokens
        self._ids = {text: index for index, text in enumerate(tokens) if text}
        # Converters do not mark every control token as one.
        control = {text for text, kind in zip(tokens, types, strict=True)
                   if kind == _CONTROL or text.startswith('<|') and text.endswith('|>')}
        control |= _END_TEXTS.intersection(self._ids)
        control -= _TEXT_TAGS | {''}
        user_defined = {text for text, kind in zip(tokens, types, strict=True)
                        if kind == _USER_DEFINED}
        user_defined |= _TEXT_TAGS.intersection(self._ids)
        user_defined -= control | {''}
        self._control = frozenset(self._ids[text] for text in control)
        self._control_pattern = _any_of(control)
        self.control_texts = frozenset(control)
        self._user_defined = frozenset(self._ids[text] for text in user_defined)
        self._user_defined_pattern = _any_of(user_defined)
        ends = {self.eos_id, metadata.eot_token_id}
        ends.update(self._ids.get(text) for text in _END_TEXTS)
        self.end_ids: frozenset[int] = frozenset(end for end in ends if end is not None)
        self._bpe = self._build_bpe(metadata, control)

    def _build_bpe(self, metadata: TokenizerMetadata, control: set[str]) -> BpeTokenizer:
        # Text must not become a control token, be it whole (ignore_merges) or by merging.
        vocab = {text: index for text, index in self._ids.items() if text not in control}
        pairs = (merge.partition(' ') for merge in metadata.merges)
        merges = [(left, right) for left, _, right in pairs if left + right not in control]
        try:
            model = BPE(vocab=vocab, merges=merges,
                        ignore_merges=metadata.pre in _IGNORE_MERGES)
        except Exception as error:  # What the Rust library raises has no narrower type.
            raise ModelFileError(
                f'the tokenizer merges do not fit its tokens: {quote(str(error))}; '
                'get an intact file') from error
        bpe = BpeTokenizer(model)
        steps: list[PreTokenizer] = [
            Split(Regex(pattern), 'isolated') for pattern in _PRE_TOKENIZERS[metadata.pre]]
        steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
        bpe.pre_tokenizer = PreTokenizers(steps)
        return bpe

    def encode(self, text: str, special: bool) -> list[int]:
        """
        Return the token ids of a text.

        Parameters
        ----------
        text
            Any Unicode text.
        special
            True where control tokens spelled out in the text stand for themselves (a rendered
            chat template); False where they are characters like any other (what users say).

        Raises
        ------
        BadRequestError
            The text has a surrogate code point, which no UTF-8 text can have.

        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(
                f'text is not valid Unicode: surrogate U+{ord(text[error.start]):04X} at '
                f'character {error.start}') from None
        if not special:
            return self._encode_text(text)
        ids: list[int] = []
        for part in self.split_control(text):
            ids += self._encode_text(part) if isinstance(part, str) else [part]
        return ids

    def split_control(self, text: str) -> list[str | int]:
        """Cut a text at its control tokens, which become ids."""
        return self._split(text, self._control_pattern)

    def _split(self, text: str, pattern: 're.Pattern[str]') -> list[str | int]:
        parts: list[str | int] = []
        start = 0
        for match in pattern.finditer(text):
            if match.start() > start:
                parts.append(text[start:match.start()])
            parts.append(self._ids[match.group()])
            start = match.end()
        if start < len(text):
            parts.append(text[start:])
        return parts

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._split(text, self._user_defined_pattern):
            if isinstance(part, int):
                ids.append(part)
                continue
            pieces = [part[start:start + MAX_PIECE]
                      for start in range(0, len(part), MAX_PIECE)]
            # Unlike encode, encode_batch_fast lets other threads run meanwhile.
            for encoding in self._bpe.encode_batch_fast(pieces, add_special_tokens=False):
                ids += encoding.ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; control tokens have none, broken UTF-8 becomes U+FFFD."""
        return b''.join(map(self.token_bytes, ids)).decode('utf-8', errors='replace')

    def token_bytes(self, token_id: int, control: bool = False) -> bytes:
        """
        Return the bytes that a token stands for: a part of a character at times.

        Parameters
        ----------
        token_id
            In [0, ``vocab_size``); IndexError otherwise.
        control
            Whether a control token gives its name; it gives nothing otherwise.

        """
        text = self.token_text(token_id)
        if token_id in self._control:
            return text.encode() if control else b''
        if token_id not in self._user_defined:
            try:
                return bytes(map(_BYTE_OF.__getitem__, map(ord, text)))
            except KeyError:
                pass  # Not in the byte alphabet: a token added as it reads.
        return text.encode()

    def token_text(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it; IndexError for an id outside of it."""
        if not 0 <= token_id < self.vocab_size:
            raise IndexError(
                f'token id {token_id} is outside the vocabulary of {self.vocab_size}')
        return self._tokens[token_id]

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that the vocabulary spells so, None when there is none."""
        return self._ids.get(text)

    def is_control(self, token_id: int) -> bool:
        """Whether a token steers the model and is no text."""
        return token_id in self._control


def _any_of(texts: Iterable[str]) -> 're.Pattern[str]':
    """Match any of these, the longest where several do; nothing where there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile('|'.join(map(re.escape, longest_first)) if longest_first else r'(?!)')
