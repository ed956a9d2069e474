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

"""Streamed text breaks where whole text would, however it was cut into pieces."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st
from reflex_llm_ros.cli.wrap import WordWrap
from rich.cells import cell_len


def wrapped(pieces, columns):
    wrap = WordWrap(columns)
    return ''.join(wrap.feed(piece) for piece in pieces) + wrap.flush()


@given(st.lists(st.text('abc', min_size=1, max_size=8), max_size=30), st.integers(8, 30))
def test_words_break_as_textwrap_breaks_them(words, columns):
    text = ' '.join(words)
    assert wrapped(text, columns) == textwrap.fill(text, columns)


@given(st.text(' \nab漢é', max_size=80), st.integers(2, 12), st.data())
def test_pieces_make_no_difference(text, columns, data):
    pieces = []
    while text:
        cut = data.draw(st.integers(1, len(text)))
        pieces.append(text[:cut])
        text = text[cut:]
    assert wrapped(pieces, columns) == wrapped([''.join(pieces)], columns)


@given(st.text(' \nab漢é', max_size=80), st.integers(2, 12))
def test_nothing_but_space_changes_and_words_fit(text, columns):
    result = wrapped([text], columns)
    assert ''.join(result.split()) == ''.join(text.split())
    assert all(cell_len(line.strip()) <= columns for line in result.split('\n'))


@given(st.text('\nab ', max_size=40))
def test_wide_enough_text_stays_as_it_is_but_for_its_end(text):
    assert wrapped([text], 100) == text.rstrip()


def test_a_word_is_held_back_until_its_end_is_known():
    wrap = WordWrap(80)
    assert wrap.feed('over the mo') == 'over the'
    assert wrap.feed('on') == ''
    assert wrap.feed(' and') == ' moon'
    assert wrap.flush() == ' and'


def test_characters_that_take_two_cells_break_anywhere():
    assert wrapped(['包裹可以很重'], 5) == '包裹\n可以\n很重'
