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

"""Break streamed text at spaces, as a terminal by itself does not."""

from rich.cells import cell_len


class WordWrap:
    """
    Text in, wrapped text out.

    A word is held back until its end is known, space until a word follows: text that ends
    in empty lines ends with its last word.

    Parameters
    ----------
    columns
        Width of the terminal in character cells.

    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._column = 0
        self._space = ''
        self._word = ''

    def feed(self, text: str) -> str:
        """Take more text and return what can be printed by now."""
        out = ''
        for character in text:
            if character.isspace():
                out += self.flush()
                self._space += character
            elif cell_len(character) > 1:
                # Chinese and Japanese may break before and after any character.
                out += self.flush()
                self._word = character
                out += self.flush()
            else:
                self._word += character
                # A word wider than the terminal breaks somewhere.
                if cell_len(self._word) >= self._columns:
                    out += self.flush()
        return out

    def flush(self) -> str:
        """Return the word that is held back, with the space before it."""
        if not self._word:
            return ''
        lines, newline, space = self._space.rpartition('\n')
        column = 0 if newline else self._column
        if column and column + cell_len(space + self._word) > self._columns:
            newline, space, column = '\n', '', 0
        self._column = column + cell_len(space + self._word)
        out = lines + newline + space + self._word
        self._space = self._word = ''
        return out
