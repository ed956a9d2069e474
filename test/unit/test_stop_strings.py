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

"""Stop strings end the text at the same place however it is cut, and never show."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest
from reflex_llm_ros.engine.errors import BadRequestError
from reflex_llm_ros.engine.stop_strings import StopStrings

letters = st.text('ab\n', max_size=30)
stop_lists = st.lists(st.text('ab\n', min_size=1, max_size=6), max_size=4)


def until_first_stop(text, stops):
    """Grow the text a character at a time and look at its end."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[:min(starts)], True
    return text, False


def chunks_of(data, text):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=800, deadline=None)
@given(text=letters, stops=stop_lists, data=st.data())
@example(text='aabab', stops=['aabb', 'ab'], data=None)
def test_same_as_looking_at_the_whole_text(text, stops, data):
    chunks = chunks_of(data, text) if data else list(text)
    expected, stopped = until_first_stop(text, stops)
    stop_strings = StopStrings(stops)
    shown = ''
    for chunk in chunks:
        shown += stop_strings.push(chunk)
        assert expected.startswith(shown)
    assert stop_strings.stopped == stopped
    assert shown + stop_strings.flush() == expected
    assert not any(stop in expected for stop in stops)


@settings(max_examples=300, deadline=None)
@given(text=letters, stops=stop_lists)
def test_holds_back_only_what_may_become_a_stop_string(text, stops):
    stop_strings = StopStrings(stops)
    seen = shown = ''
    for character in text:
        seen += character
        shown += stop_strings.push(character)
        if stop_strings.stopped:
            break
        held = seen[len(shown):]
        assert seen == shown + held
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_several_tokens():
    stop_strings = StopStrings(['\nUser:'])
    given_out = [stop_strings.push(text) for text in ['Hello', '\n', 'Us', 'er', ':', ' more']]
    assert given_out == ['Hello', '', '', '', '', '']
    assert stop_strings.stopped
    assert stop_strings.flush() == ''


def test_a_false_start_is_given_back():
    stop_strings = StopStrings(['END'])
    assert stop_strings.push('the EN') == 'the '
    assert stop_strings.push('GINE') == 'ENGIN'
    assert stop_strings.flush() == 'E'
    assert not stop_strings.stopped


def test_without_stop_strings_nothing_is_held():
    assert StopStrings([]).push('text') == 'text'


def test_an_empty_stop_string_is_refused():
    with pytest.raises(BadRequestError, match='^stop: '):
        StopStrings(['a', ''])
