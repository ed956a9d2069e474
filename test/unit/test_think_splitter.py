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

"""Reasoning and answer are told apart the same however the text is cut."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from reflex_llm_ros.engine.think_splitter import Piece, ThinkSplitter

parts = st.lists(st.sampled_from(
    ['<think>', '</think>', '\n', 'a', 'b ', '<', '</', 'think', '>', '<think', '</thin']),
    max_size=14).map(''.join)


def split_whole(text, thinking):
    """Split a finished text with one regular expression: (reasoning, answer)."""
    text = ('<think>' if thinking else '') + text
    spans = re.split(r'(</?think>)\n*', text)
    answer, reasoning = spans[0], ''
    for tag, span in zip(spans[1::2], spans[2::2], strict=True):
        if tag == '<think>':
            reasoning += span
        else:
            answer += span
    return reasoning, answer


def split_stream(chunks, thinking):
    splitter = ThinkSplitter(thinking)
    pieces = [piece for chunk in chunks for piece in splitter.push(chunk)] + splitter.flush()
    assert all(piece.text for piece in pieces)
    return tuple(
        ''.join(piece.text for piece in pieces if piece.reasoning == kind)
        for kind in (True, False))


@settings(max_examples=800, deadline=None)
@given(text=parts, thinking=st.booleans(), data=st.data())
@example(text='\n</think>\n\nHi', thinking=True, data=None)
@example(text='<<think>x</</think>y', thinking=False, data=None)
def test_any_cut_gives_what_the_whole_text_gives(text, thinking, data):
    cuts = (sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
            if data else range(len(text)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split_stream(chunks, thinking) == split_whole(text, thinking)


def test_a_thought_then_an_answer():
    splitter = ThinkSplitter()
    pieces = []
    for token in ['<th', 'ink>', '\n', 'Hmm', '.\n', '</', 'think', '>\n', '\n', 'Yes', '.']:
        pieces += splitter.push(token)
    assert pieces == [
        Piece('Hmm', True), Piece('.\n', True), Piece('Yes', False), Piece('.', False)]
    assert splitter.flush() == []


def test_a_prompt_that_opened_the_thought():
    assert split_stream(['so', '</think>\n\nOk'], thinking=True) == ('so', 'Ok')


def test_a_thought_without_an_end_is_reasoning():
    assert split_stream(['<think>on and on </thi'], thinking=False) == ('on and on </thi', '')


def test_an_empty_thought_leaves_no_trace():
    assert split_stream(['<think>\n\n</think>\n\nOk'], thinking=False) == ('', 'Ok')


def test_an_answer_without_tags_is_untouched():
    assert split_stream(['\n a < b', ' </'], thinking=False) == ('', '\n a < b </')


def test_a_stray_closing_tag_does_not_show():
    assert split_stream(['Ok</think>\n!'], thinking=False) == ('', 'Ok!')
