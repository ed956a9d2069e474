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

"""Split a stream of text at its think tags into reasoning and answer."""

from typing import NamedTuple

from reflex_llm_ros.engine.partial_match import open_suffix

_OPEN = '<think>'
_CLOSE = '</think>'


class Piece(NamedTuple):
    """Text of the reasoning or of the answer; never empty."""

    text: str
    reasoning: bool


class ThinkSplitter:
    """
    Tell reasoning from answer.

    What stands between ``<think>`` and ``</think>`` is reasoning, wherever it comes, and also
    when the text ends before the closing tag. Tags are no part of either, not even one that
    opens or closes a second time. Newlines that follow a tag lay it out and are dropped.
    How the text is cut into pushes makes no difference but to where pieces are cut.

    Parameters
    ----------
    thinking
        Whether the text starts as reasoning, because the prompt ended with ``<think>``.

    """

    def __init__(self, thinking: bool = False) -> None:
        self._thinking = thinking
        self._after_tag = thinking
        self._held = ''

    def push(self, text: str) -> list[Piece]:
        """Return what is certain so far, in order."""
        pieces: list[Piece] = []
        text = self._held + text
        while True:
            found = [(start, tag) for tag in (_OPEN, _CLOSE) if (start := text.find(tag)) >= 0]
            if not found:
                break
            start, tag = min(found)
            self._take(text[:start], pieces)
            text = text[start + len(tag):]
            self._thinking = tag == _OPEN
            self._after_tag = True
        cut = open_suffix(text, (_OPEN, _CLOSE))
        self._take(text[:cut], pieces)
        self._held = text[cut:]
        return pieces

    def flush(self) -> list[Piece]:
        """Return what was held back, at the end of the stream: it was no tag."""
        pieces: list[Piece] = []
        text, self._held = self._held, ''
        self._take(text, pieces)
        return pieces

    def _take(self, text: str, pieces: list[Piece]) -> None:
        if self._after_tag:
            text = text.lstrip('\n')
        if text:
            self._after_tag = False
            pieces.append(Piece(text, self._thinking))
