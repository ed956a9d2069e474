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

"""Tokens to text as they come, never half a character."""

import codecs

from reflex_llm_ros.engine.tokenizer import Tokenizer


class Detokenizer:
    """
    Decode a stream of tokens, each of which may end in the middle of a character.

    All that ``push`` and ``flush`` give, concatenated, is what Python's
    ``bytes.decode('utf-8', errors='replace')`` makes of the tokens' bytes: what is no UTF-8
    becomes U+FFFD as soon as no later byte can mend it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder('utf-8')('replace')

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty when it completes none."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return what is left at the end of the stream: U+FFFD for half a character."""
        text = self._decoder.decode(b'', final=True)
        self._decoder.reset()
        return text
