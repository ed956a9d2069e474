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

"""Token ids of an answer to the events that carry its text."""

from collections.abc import Iterator, Sequence

from reflex_llm_ros.engine.detokenizer import Detokenizer
from reflex_llm_ros.engine.request import Reasoning, Token
from reflex_llm_ros.engine.stop_strings import StopStrings
from reflex_llm_ros.engine.think_splitter import Piece, ThinkSplitter
from reflex_llm_ros.engine.tokenizer import Tokenizer


class AnswerText:
    """
    Detokenizes, sets reasoning apart and ends the answer before a stop string.

    Parameters
    ----------
    tokenizer
        The model's.
    stop
        Stop strings; they are looked for in the answer, not in the reasoning.
    opens_thinking
        Whether the answer starts inside a think block.

    Attributes
    ----------
    text
        The answer so far, without reasoning.

    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], opens_thinking: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._splitter = ThinkSplitter(opens_thinking)
        self._stops = StopStrings(stop)
        self._token_id = -1
        self.text = ''

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stops.stopped

    def push(self, token_id: int) -> Iterator[Token | Reasoning]:
        """Take the next token; what it completes."""
        self._token_id = token_id
        yield from self._split(self._splitter.push(self._detokenizer.push(token_id)))

    def flush(self) -> Iterator[Token | Reasoning]:
        """Take the end of the answer; what was held back."""
        yield from self._split(self._splitter.push(self._detokenizer.flush()))
        yield from self._split(self._splitter.flush())
        yield from self._say(self._stops.flush())

    def _split(self, pieces: Sequence[Piece]) -> Iterator[Token | Reasoning]:
        for piece in pieces:
            if self.stopped:
                return
            if piece.reasoning:
                yield Reasoning(piece.text)
            else:
                yield from self._say(self._stops.push(piece.text))

    def _say(self, text: str) -> Iterator[Token]:
        if text:
            self.text += text
            yield Token(text, self._token_id)
