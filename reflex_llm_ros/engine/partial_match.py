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

"""Suffixes of a text that may yet grow into a string that is looked for."""

from collections.abc import Iterable


def open_suffix(text: str, wanted: Iterable[str]) -> int:
    """
    Return where the longest suffix starts that opens one of the wanted strings.

    A suffix that is a whole wanted string does not count. ``len(text)`` when there is none.
    """
    start = len(text)
    for string in wanted:
        for length in range(min(len(string) - 1, len(text)), len(text) - start, -1):
            if text.endswith(string[:length]):
                start = len(text) - length
                break
    return start
