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

"""The part of a GGUF file's metadata that describes its tokenizer."""

from dataclasses import dataclass

import numpy as np
from reflex_llm_ros.engine.errors import ModelFileError
from reflex_llm_ros.engine.gguf_metadata import Metadata

NORMAL_TOKEN = 1


@dataclass(frozen=True)
class TokenizerMetadata:
    """The ``tokenizer.ggml.*`` keys that the tokenizer is built from."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    merges: tuple[str, ...]
    bos_token_id: int | None
    eos_token_id: int | None
    eot_token_id: int | None
    add_bos_token: bool
    add_space_prefix: bool


def tokenizer_metadata(metadata: Metadata) -> TokenizerMetadata:
    """
    Read the ``tokenizer.ggml.*`` keys.

    Defaults are those of the files that leave a key out: a ``llama-bpe`` text opens with the
    beginning-of-text token, a SentencePiece (``llama``) text with a space.

    Raises
    ------
    ModelFileError
        A key is missing, of the wrong kind, or an id lies outside the vocabulary.

    """
    prefix = 'tokenizer.ggml.'
    model = metadata.text(prefix + 'model')
    pre = metadata.text(prefix + 'pre', '')
    tokens = metadata.texts(prefix + 'tokens')
    if not tokens:
        raise ModelFileError(f'{prefix}tokens is empty; get an intact file')
    if metadata.has(prefix + 'token_type'):
        types = metadata.integers(prefix + 'token_type')
    else:
        types = np.full(len(tokens), NORMAL_TOKEN)
    if len(types) != len(tokens):
        raise ModelFileError(
            f'{prefix}token_type has {len(types)} entries for {len(tokens)} tokens; '
            'get an intact file')

    def token_id(name: str) -> int | None:
        key = f'{prefix}{name}_token_id'
        return metadata.integer(key, 0, len(tokens) - 1) if metadata.has(key) else None

    return TokenizerMetadata(
        model=model,
        pre=pre,
        tokens=tokens,
        token_types=tuple(types.tolist()),
        merges=metadata.texts(prefix + 'merges', ()),
        bos_token_id=token_id('bos'),
        eos_token_id=token_id('eos'),
        eot_token_id=token_id('eot'),
        add_bos_token=metadata.boolean(prefix + 'add_bos_token', pre == 'llama-bpe'),
        add_space_prefix=metadata.boolean(prefix + 'add_space_prefix', model == 'llama'),
    )
