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

"""The detokenizer gives what decoding all the bytes at once gives, a character at a time."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from reflex_llm_ros.engine.detokenizer import Detokenizer
from vocabularies import tokenizer


class Bytes:
    """A vocabulary of arbitrary byte strings."""

    def __init__(self, tokens):
        self.tokens = tokens

    def token_bytes(self, token_id):
        return self.tokens[token_id]


lead_and_continuation = st.lists(
    st.sampled_from([0x41, 0x80, 0xbf, 0xa0, 0x9f, 0xc0, 0xc3, 0xe2, 0xed, 0xf0, 0xf4, 0xff]),
    max_size=4).map(bytes)
tokens = st.lists(st.one_of(st.binary(max_size=4), lead_and_continuation), max_size=30)


@settings(max_examples=500, deadline=None)
@given(tokens)
@example([b'\xf0', b'\x9f', b'\xa4', b'\x96'])
@example([b'\xf0\x9f', b'A'])
@example([b'\xed', b'\xa0\x80'])
@example([b'\xe2\x82'])
def test_concatenation_is_the_whole_decoded(tokens):
    detokenizer = Detokenizer(Bytes(tokens))
    text = ''.join(map(detokenizer.push, range(len(tokens)))) + detokenizer.flush()
    assert text == b''.join(tokens).decode(errors='replace')
    assert detokenizer.flush() == ''


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_no_piece_of_valid_text_is_broken(text):
    pieces = [bytes([byte]) for byte in text.encode()]
    detokenizer = Detokenizer(Bytes(pieces))
    given_back = ''
    for index in range(len(pieces)):
        given_back += detokenizer.push(index)
        # All that is complete is there already, and nothing else.
        assert given_back == b''.join(pieces[:index + 1]).decode(errors='ignore')
    assert detokenizer.flush() == ''


def test_half_a_character_waits_and_is_replaced_at_the_end():
    tok = tokenizer('qwen2')
    letter = tok.encode('𒀀', special=False)
    assert len(letter) > 1
    detokenizer = Detokenizer(tok)
    assert [detokenizer.push(index) for index in letter] == [''] * (len(letter) - 1) + ['𒀀']
    assert detokenizer.push(letter[0]) == ''
    assert detokenizer.flush() == '\ufffd'
    # And then starts anew.
    assert detokenizer.push(tok.encode('a', special=False)[0]) == 'a'


def test_control_tokens_have_no_text():
    tok = tokenizer('qwen2')
    detokenizer = Detokenizer(tok)
    ids = tok.encode('one<|im_end|> two', special=True)
    assert ''.join(map(detokenizer.push, ids)) == 'one two'
