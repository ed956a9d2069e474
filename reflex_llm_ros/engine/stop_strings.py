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

"""End a stream of text before a stop string."""

from collections.abc import Sequence

from reflex_llm_ros.engine.errors import BadRequestError
from reflex_llm_ros.engine.partial_match import open_suffix


class StopStrings:
    """
    Pass text on until one of the stop strings is complete, and nothing from there on.

    A stop string may span pushes: text that may be the beginning of one is held back until
    it is none. The stop string that is complete first ends the text; where several are with
    the same character, the longest. How the text is cut into pushes makes no difference.

    Parameters
    ----------
    stops
        The stop strings; none pass everything on at once.

    Raises
    ------
    BadRequestError
        A stop string is empty.

    Attributes
    ----------
    stopped
        Whether a stop string was found; pushes give nothing from then on.

    """

    def __init__(self, stops: Sequence[str]) -> None:
        if '' in stops:
            raise BadRequestError('stop: a stop string is empty; leave it out')
        self._stops = tuple(stops)
        self._held = ''
        self.stopped = False

    def push(self, text: str) -> str:
        """Return the text that is safe to show."""
        if self.stopped:
            return ''
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops
                 if (start := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ''
            return text[:min(found)[1]]
        cut = open_suffix(text, self._stops)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """Return what was held back, at the end of the stream: it was no stop string."""
        text, self._held = self._held, ''
        return text
