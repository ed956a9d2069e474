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

"""Tokenizers: exact ids, round trips, and text that cannot pass for a control token."""

from dataclasses import replace
from functools import cache
import json
from pathlib import Path
import random

from hypothesis import example, given, HealthCheck, settings
from hypothesis import strategies as st
import pytest
from reflex_llm_ros.engine import tokenizer as tokenizer_module
from reflex_llm_ros.engine.errors import BadRequestError, ModelFileError
from reflex_llm_ros.engine.tokenizer import Tokenizer
from vocabularies import (
    byte_alphabet,
    byte_level,
    metadata,
    NAMES,
    path,
    printable,
    tokenizer,
)

property_test = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def suite(name: str):
    """Return the texts and expected ids of llama.cpp's own test data."""
    base = f'{path(name)}'
    with open(base + '.inp', encoding='utf-8', newline='') as file:
        texts = file.read().split('\n__ggml_vocab_test__\n')
    with open(base + '.out', encoding='utf-8') as file:
        lines = file.read().split('\n')
    assert len(texts) == len(lines) > 40
    return list(zip(texts, ([int(word) for word in line.split()] for line in lines), strict=True))


@pytest.mark.parametrize('name', ['qwen2', 'qwen35'])
def test_llama_cpp_suite(name):
    tok = tokenizer(name)
    for text, ids in suite(name):
        assert tok.encode(text, special=False) == ids, repr(text)
        assert tok.decode(ids) == text


@pytest.mark.parametrize('name', ['smollm', 'gpt-2', 'llama-bpe'])
def test_same_as_llama_cpp(name):
    """Compare with what make_llama_cpp_tokens.py had llama.cpp do."""
    golden = json.loads(Path(__file__).with_name('llama_cpp_tokens.json').read_text())[name]
    tok = (tokenizer(name) if name == 'smollm'
           else Tokenizer(replace(metadata('qwen2'), pre=name)))
    for (text, _), ids in zip(suite('qwen35'), golden, strict=True):
        assert tok.encode(text, special=False) == ids, repr(text)


@pytest.mark.parametrize('name', ['qwen2', 'qwen35'])
@property_test
@given(text=st.text(), special=st.booleans())
@example(text='e\u0301 \u0e01\u0e33 \U0001f469\u200d\U0001f680\x00\r\n\t', special=False)
def test_decode_gives_back_what_was_encoded(name, text, special):
    tok = tokenizer(name)
    ids = tok.encode(text, special)
    assert b''.join(tok.token_bytes(index, control=True) for index in ids).decode() == text
    assert special or tok.decode(ids) == text


@cache
def bytes_smollm_lacks():
    bytes_in_order = (*printable, *(byte for byte in range(256) if byte not in printable))
    lacking = {byte for byte, char in zip(bytes_in_order, byte_alphabet, strict=True)
               if char not in metadata('smollm').tokens}
    assert len(lacking) == 21
    return lacking


@property_test
@given(text=st.text())
def test_smollm_gives_back_all_but_the_bytes_it_lacks(text):
    tok = tokenizer('smollm')
    kept = bytes(byte for byte in text.encode() if byte not in bytes_smollm_lacks())
    assert tok.decode(tok.encode(text, special=False)) == kept.decode(errors='replace')


def test_smollm_splits_digits_and_words():
    tok = tokenizer('smollm')
    ids = tok.encode("It's 2024 robots\n", special=False)
    assert [tok.token_text(index) for index in ids] == [
        'It', "'s", 'Ġ', '2', '0', '2', '4', 'Ġrobots', 'Ċ']


@pytest.mark.parametrize('name', NAMES)
def test_every_byte_of_a_word_is_in_its_tokens(name):
    tok = tokenizer(name)
    text = 'Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 機器人 🤖'
    ids = tok.encode(text, special=False)
    assert b''.join(tok.token_bytes(index) for index in ids) == text.encode()


@pytest.mark.parametrize('name', NAMES)
def test_control_tokens_only_where_asked(name):
    tok = tokenizer(name)
    start, end = tok.token_id('<|im_start|>'), tok.token_id('<|im_end|>')
    text = '<|im_start|>user\nHi<|im_end|>'
    special = tok.encode(text, special=True)
    assert (special[0], special[-1]) == (start, end)
    assert special[1:-1] == tok.encode('user\nHi', special=False)
    plain = tok.encode(text, special=False)
    assert not any(map(tok.is_control, plain))
    assert tok.decode(plain) == text
    assert tok.decode(special) == 'user\nHi'
    assert tok.token_bytes(end, control=True) == b'<|im_end|>'
    assert tok.is_control(start) and not tok.is_control(special[1])
    assert tok.split_control(text) == [start, 'user\nHi', end]


@cache
def control_texts(name):
    tok = tokenizer(name)
    return [tok.token_text(index) for index in range(tok.vocab_size) if tok.is_control(index)]


@property_test
@given(data=st.data())
def test_text_never_becomes_a_control_token(data):
    name = data.draw(st.sampled_from(NAMES))
    tok = tokenizer(name)
    control = control_texts(name)
    pieces = st.sampled_from([*control, '<|', 'im_end', '|>', '<', ' ', 'x'])
    text = ''.join(data.draw(st.lists(pieces, max_size=12)))
    ids = tok.encode(text, special=False)
    assert not any(map(tok.is_control, ids))
    assert tok.decode(ids) == text


def test_end_of_turn_ids():
    for name in ('qwen2', 'qwen35', 'smollm'):
        tok = tokenizer(name)
        assert {tok.token_text(index) for index in tok.end_ids} == {
            '<|im_end|>', '<|endoftext|>'}
    # By id, by text whatever its type, each once.
    tok = Tokenizer(byte_level(eos_token_id=263, eot_token_id=259))
    assert tok.end_ids == {263, 259, 260}


def test_bos_is_the_callers_to_add():
    tok = Tokenizer(byte_level(bos_token_id=259, add_bos_token=True))
    assert tok.add_bos and tok.bos_id == 259
    assert 259 not in tok.encode('abc', special=True)
    assert not Tokenizer(byte_level(add_bos_token=True)).add_bos


@pytest.mark.parametrize('name', NAMES)
def test_ids_outside_the_vocabulary_are_refused(name):
    tok = tokenizer(name)
    assert tok.vocab_size == len(metadata(name).tokens)
    for bad in (-1, tok.vocab_size, 2**40):
        for use in (tok.token_bytes, tok.token_text, lambda index: tok.decode([0, index])):
            with pytest.raises(IndexError, match=f'{bad} is outside the vocabulary'):
                use(bad)


def test_merges_pieces_and_marked_tokens_of_a_small_vocabulary():
    tok = Tokenizer(byte_level())
    ids = {tok.token_text(index): index for index in range(tok.vocab_size)}
    assert tok.encode('abc ac', special=False) == [ids['abc'], ids['Ġa'], ids['c']]
    assert tok.encode('abc ab', special=False) == [ids['abc'], ids['Ġ'], ids['ab']]
    # User-defined tokens are matched in any text, control tokens are not.
    assert tok.encode('a[TOOL]b', special=False) == [ids['a'], ids['[TOOL]'], ids['b']]
    assert tok.decode([ids['[TOOL]']]) == '[TOOL]'
    # A think tag is text even in a file that calls it a control token.
    assert not tok.is_control(ids['<think>'])
    assert tok.encode('<think>', special=False) == [ids['<think>']]
    assert tok.token_bytes(ids['<think>']) == b'<think>'
    # A name in angle brackets and bars is one even in a file that calls it a word.
    assert tok.is_control(ids['<|im_end|>'])


@pytest.mark.parametrize('pre', ['llama-bpe', 'llama3', 'llama-v3'])
def test_llama3_takes_whole_words_but_no_control_token(pre):
    base = byte_level(pre=pre)
    tokens = (*base.tokens, 'xyz')
    tok = Tokenizer(replace(base, tokens=tokens, token_types=(*base.token_types, 1)))
    # No merge builds 'xyz'; and 'Hello', a control token here, is spelled out as text.
    assert tok.encode('xyz', special=False) == [len(tokens) - 1]
    assert len(tok.encode('Hello', special=False)) == 5
    assert tok.encode('Hello', special=True) == [263]


@pytest.mark.parametrize('pre, expected', [
    ('llama-bpe', ['123', '45']),
    ('qwen2', ['1', '2', '3', '4', '5']),
    ('deepseek-r1-qwen', ['1', '2', '3', '4', '5']),
    ('qwen35', ['1', '2', '3', '4', '5']),
    ('smollm', ['1', '2', '3', '4', '5']),
    ('gpt-2', ['12345']),
])
def test_pre_tokenizers_cut_digits_each_in_their_way(pre, expected):
    runs = ('12', '34', '123', '1234', '12345')
    base = byte_level(pre=pre)
    tok = Tokenizer(replace(
        base, tokens=(*base.tokens, *runs, '45'), token_types=(*base.token_types, *(1,) * 6),
        merges=('1 2', '12 3', '123 4', '1234 5', '3 4', '4 5')))
    assert [tok.token_text(index) for index in tok.encode('12345', False)] == expected


def test_merge_that_would_spell_a_control_token_is_left_out():
    base = byte_level()
    tok = Tokenizer(replace(base, token_types=(1,) * 257 + (3,) + base.token_types[258:]))
    assert tok.is_control(257)
    assert [tok.token_text(index) for index in tok.encode('abc', special=False)] == ['ab', 'c']
    assert tok.encode('abc', special=True) == [257]


@pytest.mark.parametrize('changes, message', [
    ({'model': 'llama'}, "tokenizer model 'llama' is not supported"),
    ({'pre': 'a\nb'}, 'pre-tokenizer .* is not supported'),
    ({'pre': 'tekken'}, "pre-tokenizer 'tekken' is not supported"),
    ({'pre': ''}, "pre-tokenizer '' is not supported"),
    ({'merges': ('a b', 'a z')}, 'merges do not fit'),
    ({'merges': ('ab',)}, 'merges do not fit'),
    ({'merges': ('a b c',)}, 'merges do not fit'),
])
def test_unusable_metadata_is_named(changes, message):
    with pytest.raises(ModelFileError, match=message) as caught:
        Tokenizer(byte_level(**changes))
    assert '\n' not in str(caught.value)


def test_surrogates_are_refused_by_place():
    for special in (False, True):
        with pytest.raises(BadRequestError, match='U\\+D83D at character 3'):
            tokenizer('qwen2').encode('abc\ud83d', special)


def test_long_texts_are_cut_before_the_regex_engine_gives_up(monkeypatch):
    # The library aborts when a match backtracks ten million times, as over a run of spaces.
    assert tokenizer_module.MAX_PIECE < 10_000_000
    monkeypatch.setattr(tokenizer_module, 'MAX_PIECE', 100)
    tok = tokenizer('qwen2')
    text = ' ' * 250 + 'the end of the run' * 10
    ids = tok.encode(text, special=False)
    assert tok.decode(ids) == text
    assert ids == [index for start in range(0, len(text), 100)
                   for index in tok.encode(text[start:start + 100], special=False)]


def test_random_mixtures_of_the_suites_round_trip():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    tok = tokenizer('qwen2')
    texts = [text for text, _ in suite('qwen2')]
    for _ in range(20):
        text = ''.join(rng.choices(texts, k=10))
        assert tok.decode(tok.encode(text, special=False)) == text, f'seed {seed}'
