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

"""The engine: requests in, events out, and a cache that stays right whatever happens."""

from itertools import repeat
import json
from pathlib import Path
from types import SimpleNamespace

import engines
from engines import answer, ask, FakeSampler, put_into_mouth, text
import pytest
from reflex_llm_ros.engine import engine as engine_module
from reflex_llm_ros.engine import (
    GenerateRequest,
    Message,
    Reasoning,
    SamplingParams,
    Token,
)
from reflex_llm_ros.engine.errors import (
    BadRequestError,
    ContextOverflowError,
)
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.tokenizer import Tokenizer

GOLDEN = Path(__file__).resolve().parents[1] / 'golden'
SAMPLED = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0)
LONG = 'the robot can carry a cup and two small boxes to the kitchen table, ' * 2


@pytest.fixture(scope='module')
def engine(tiny_qwen3_path):
    engine = engines.load(tiny_qwen3_path, prefill_chunk=8)
    yield engine
    engine.close()


@pytest.fixture
def fresh(tiny_qwen3_path):
    """Load the same model anew: its cache has seen nothing."""
    engine = engines.load(tiny_qwen3_path, prefill_chunk=8)
    yield engine
    engine.close()


@pytest.fixture(scope='module')
def tokenizer(tiny_qwen3_path):
    return Tokenizer(GgufModel.open(str(tiny_qwen3_path)).tokenizer)


@pytest.fixture
def says(monkeypatch, tokenizer):
    """Make the model answer a given text."""
    def says(said):
        put_into_mouth(
            monkeypatch, [*tokenizer.encode(said, special=False), min(tokenizer.end_ids)])
    return says


@pytest.fixture
def says_bytes(monkeypatch, tokenizer):
    """Make the model answer a text with one token a byte."""
    def says_bytes(said, ends=True):
        ids = [token for byte in said.encode() for token in range(tokenizer.vocab_size)
               if tokenizer.token_bytes(token) == bytes([byte])]
        put_into_mouth(monkeypatch, [*ids, min(tokenizer.end_ids)] if ends else ids)
    return says_bytes


def tokens_of(events):
    return [event.text for event in events if isinstance(event, Token)]


# --- answers

def test_smollm2_gives_the_golden_answers(smollm2_path):
    engine = engines.load(smollm2_path)
    for golden in json.loads((GOLDEN / 'smollm2_greedy.json').read_text()):
        start, events, done = answer(engine, ask(golden['prompt'], max_tokens=48))
        assert start.prompt_tokens == done.prompt_tokens == len(golden['prompt_ids'])
        assert done.text == golden['text']
        assert done.finish_reason == golden['finish_reason']
        assert done.completion_tokens == len(golden['ids'])
        assert [event.token_id for event in events] == golden['ids']
        assert ''.join(tokens_of(events)) == done.text


def test_numbers_of_an_answer(fresh, says_bytes, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(engine_module, 'time', SimpleNamespace(monotonic=clock.__next__))
    says_bytes('four')
    start, events, done = answer(fresh, ask('Name a number.'))
    # The clock is read when asked, around prefill, and at each token: 0; 1, 2; 3, 4, 5, 6.
    assert done.completion_tokens == len(events) == 4
    assert done.ttft_ms == 3000
    assert done.tokens_per_s == 1
    assert done.prefill_tokens_per_s == start.prompt_tokens > 8


def test_an_answer_without_tokens_has_no_rates(engine, says):
    says('')
    _, events, done = answer(engine, ask('Say nothing.'))
    assert events == []
    assert (done.text, done.finish_reason, done.completion_tokens) == ('', 'stop', 0)
    assert done.ttft_ms == done.tokens_per_s == 0


def test_characters_come_whole(engine, says_bytes):
    says_bytes('a é 🤖!')
    _, events, done = answer(engine, ask('Speak.'))
    assert tokens_of(events) == ['a', ' ', 'é', ' ', '🤖', '!']
    assert done.completion_tokens == 10


def test_half_a_character_at_the_end_is_marked(engine, says_bytes):
    says_bytes('ok🤖')
    _, events, done = answer(engine, ask('Speak.', max_tokens=4))
    assert done.text == 'ok\N{REPLACEMENT CHARACTER}' == ''.join(tokens_of(events))
    assert done.finish_reason == 'length'


def test_reasoning_is_set_apart(engine, says):
    says('<think>\nA cup is light.</think>\n\nA cup.')
    _, events, done = answer(engine, ask('What can you carry?'))
    reasoning = [event.text for event in events if isinstance(event, Reasoning)]
    assert ''.join(reasoning) == 'A cup is light.'
    assert ''.join(tokens_of(events)) == done.text == 'A cup.'
    assert done.completion_tokens > len(reasoning) + len(tokens_of(events))


def test_a_template_may_open_the_reasoning(tiny_qwen3_path, tmp_path, says):
    template = tmp_path / 'thinking.jinja'
    template.write_text(
        '<|im_start|>user\n{{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant\n<think>\n')
    engine = engines.load(tiny_qwen3_path, chat_template_file=str(template))
    says('Light things.</think>A cup.')
    _, events, done = answer(engine, ask('What can you carry?'))
    reasoning = [event.text for event in events if isinstance(event, Reasoning)]
    assert ''.join(reasoning) == 'Light things.'
    assert done.text == 'A cup.'


@pytest.mark.parametrize('stop, expected', [
    (('two',), 'one '), (('xyz', 'e tw'), 'on'), (('four', 'three'), 'one two '), (('q',), None),
])
def test_stop_strings_end_the_answer_and_are_never_shown(engine, says_bytes, stop, expected):
    said = 'one two three'
    says_bytes(said)
    _, events, done = answer(engine, ask('Count.', stop=stop))
    assert ''.join(tokens_of(events)) == done.text == (said if expected is None else expected)
    assert done.finish_reason == 'stop'


def test_what_may_become_a_stop_string_is_shown_when_it_does_not(engine, says_bytes):
    says_bytes('say wha')
    _, _, done = answer(engine, ask('Speak.', stop=('what',)))
    assert done.text == 'say wha'


def test_stop_strings_do_not_end_reasoning(engine, says):
    says('<think>one two</think>three two one')
    assert text(engine, ask('Count.', stop=('two',))) == 'three '


def test_max_tokens_ends_an_answer(engine, says_bytes):
    says_bytes('abcdef')
    _, _, done = answer(engine, ask('Spell.', max_tokens=3))
    assert (done.text, done.finish_reason, done.completion_tokens) == ('abc', 'length', 3)


@pytest.mark.parametrize('max_tokens', [0, 10_000])
def test_a_full_context_ends_an_answer(engine, tokenizer, monkeypatch, max_tokens):
    put_into_mouth(monkeypatch, repeat(tokenizer.encode('a', special=False)[0]))
    start, _, done = answer(engine, ask('Go on.', max_tokens=max_tokens))
    assert done.finish_reason == 'length'
    assert start.prompt_tokens + done.completion_tokens == engine.info.context_length


def test_the_same_seed_gives_the_same_text(engine, fresh):
    def seeded(engine, seed):
        return text(engine, ask('Tell a story.', sampling=SamplingParams(**{
            **vars(SAMPLED), 'seed': seed})))

    first = seeded(engine, 5)
    # Once more from a warm cache, and from a cold one.
    assert first == seeded(engine, 5) == seeded(fresh, 5)
    assert first != seeded(engine, 6)


def test_without_a_seed_texts_differ(engine):
    request = ask('Tell a story.', sampling=SAMPLED)
    assert len({text(engine, request) for _ in range(3)}) > 1


def test_the_sampler_sees_the_text_so_far(engine, tokenizer, monkeypatch):
    said = tokenizer.encode(' the cup', special=False)
    seen = []

    def choose(history):
        seen.append(list(history))
        return [*said, min(tokenizer.end_ids)][len(seen) - 1]

    monkeypatch.setattr(engine_module, 'Sampler', lambda params: FakeSampler(choose))
    start = answer(engine, ask('What is it?'))[0]
    prompt = seen[0]
    assert len(prompt) == start.prompt_tokens
    assert tokenizer.decode(prompt).endswith('assistant\n')
    assert seen == [prompt + said[:count] for count in range(len(said) + 1)]


@pytest.mark.parametrize('temperature, repeat_penalty, greedy', [
    (0, 1, True), (0, 1.1, False), (0.5, 1, False),
])
def test_only_the_plain_likeliest_token_is_left_to_the_backend(
        engine, monkeypatch, temperature, repeat_penalty, greedy):
    stream, asked = engine._backend.stream, []

    def spy(token, position, greedy, choose, plan):
        asked.append(greedy)
        return stream(token, position, greedy, choose, plan)

    monkeypatch.setattr(engine._backend, 'stream', spy)
    answer(engine, ask('Tell.', max_tokens=3, sampling=SamplingParams(
        temperature=temperature, repeat_penalty=repeat_penalty)))
    assert asked == [greedy]


# --- the cache

def test_a_shared_prefix_is_not_computed_again(engine, fresh):
    first = answer(engine, ask(LONG + 'What is in front of you?'))
    start, _, done = answer(engine, ask(LONG + 'Where is the door?'))
    whole, _, expected = answer(fresh, ask(LONG + 'Where is the door?'))
    assert 8 < start.cached_tokens < start.prompt_tokens == whole.prompt_tokens
    assert whole.cached_tokens == 0
    assert done.text == expected.text != first[2].text


def test_the_same_prompt_computes_its_last_token_alone(engine):
    _, _, once = answer(engine, ask('Where is the door?'))
    start, _, again = answer(engine, ask('Where is the door?'))
    assert start.cached_tokens == start.prompt_tokens - 1
    assert again.text == once.text


def test_an_answer_is_reused_as_part_of_the_next_prompt(fresh, says):
    says('A person is standing near the door.')
    start, _, done = answer(fresh, ask('What is there?', conversation='a'))
    says('Nobody.')
    following, _, _ = answer(fresh, ask('Who?', conversation='a'))
    # All but the last token of the answer, whose keys nobody needed.
    assert following.cached_tokens == start.prompt_tokens + done.completion_tokens


class Flag:
    """Says no a number of times, and then yes."""

    def __init__(self, times):
        self.times = times

    def __call__(self):
        self.times -= 1
        return self.times < 0


@pytest.mark.parametrize('chunks', [0, 1, 3])
def test_cancelled_while_prefilling(fresh, engine, chunks):
    start, events, done = answer(fresh, ask(LONG), Flag(chunks))
    assert events == [] and start.prompt_tokens > 8 * 4
    assert (done.finish_reason, done.text, done.completion_tokens) == ('cancelled', '', 0)
    again, _, done = answer(fresh, ask(LONG))
    assert again.cached_tokens == 8 * chunks
    assert done.text == text(engine, ask(LONG))


def test_cancelled_while_decoding(fresh, engine, says_bytes, monkeypatch):
    events = []
    says_bytes('abcdefgh')
    for event in fresh.generate(ask(LONG), lambda: len(events) == 6):
        events.append(event)
    monkeypatch.undo()
    assert (events[-1].finish_reason, events[-1].completion_tokens) == ('cancelled', 5)
    assert events[-1].text == ''.join(tokens_of(events)) == 'abcde'
    for prompt in (LONG, 'Where is the door?'):
        assert text(fresh, ask(prompt)) == text(engine, ask(prompt))


def test_what_was_cancelled_is_remembered_as_far_as_it_went(fresh, says_bytes):
    said = []
    says_bytes('abcdefgh')
    for event in fresh.generate(ask('Spell.', conversation='a'), lambda: len(said) == 3):
        said.extend([event] if isinstance(event, Token) else [])
    says_bytes('x')
    cut = answer(fresh, ask('Go on.', conversation='a'))[0].prompt_tokens
    says_bytes('abc')
    answer(fresh, ask('Spell.', conversation='b'))
    says_bytes('x')
    assert cut == answer(fresh, ask('Go on.', conversation='b'))[0].prompt_tokens


def test_an_answer_may_be_left_unread(fresh, engine):
    for read in (1, 2, 5):
        stream = fresh.generate(ask(LONG))
        for _ in range(read):
            next(stream)
        stream.close()
        assert text(fresh, ask(LONG + 'Now.')) == text(engine, ask(LONG + 'Now.'))


@pytest.mark.parametrize('step', [1, 4, 14])
def test_after_a_failure_the_next_answer_is_right(fresh, engine, monkeypatch, step):
    """Steps 1 to 8 prefill, later ones decode."""
    forward = fresh._backend.forward
    steps = iter(range(1, 1000))

    def failing(tokens, start):
        logits = forward(tokens, start)
        if next(steps) == step:
            # The cache has been written, with whatever a device that fails leaves behind.
            forward([7] * len(tokens), start)
            raise RuntimeError('device lost')
        return logits

    with monkeypatch.context() as patched:
        patched.setattr(fresh._backend, 'forward', failing)
        with pytest.raises(RuntimeError, match='device lost'):
            answer(fresh, ask(LONG))
    assert text(fresh, ask(LONG)) == text(engine, ask(LONG))


# --- requests that cannot be honoured

@pytest.mark.parametrize('request_, words', [
    (GenerateRequest(()), 'user'),
    (GenerateRequest((Message('system', 'Be brief.'),)), 'user'),
    (ask(''), 'empty'),
    (ask(' \n'), 'empty'),
    (ask('Hi', max_tokens=-1), 'max_tokens'),
    (ask('Hi', stop=('',)), 'stop'),
    (ask('Hi', sampling=SamplingParams(temperature=-1)), 'temperature'),
    (GenerateRequest((Message('robot', 'Hi'),)), 'role'),
    (ask('\udcff'), 'Unicode'),
])
def test_a_bad_request_is_refused_before_anything_is_said(engine, request_, words):
    before = text(engine, ask('Hello.'))
    stream = engine.generate(request_)
    with pytest.raises(BadRequestError, match=words) as caught:
        next(stream)
    assert '\n' not in str(caught.value)
    assert text(engine, ask('Hello.')) == before


def test_a_prompt_that_does_not_fit_says_how_much_does(engine):
    with pytest.raises(ContextOverflowError, match='255 fit') as caught:
        answer(engine, ask(LONG * 20))
    assert caught.value.code == 'context_overflow'
    assert text(engine, ask('Hello.'))


def test_a_prompt_that_just_fits_gets_one_token(engine, tokenizer):
    around = answer(engine, ask('x'))[0].prompt_tokens - 1
    one = tokenizer.encode('xyxyxy', special=False)
    assert len(one) == 6, 'a character is a token'
    room = engine.info.context_length - 1 - around
    start, _, done = answer(engine, ask(('xy' * 128)[:room], max_tokens=0))
    assert start.prompt_tokens == engine.info.context_length - 1
    assert done.completion_tokens <= 1
    with pytest.raises(ContextOverflowError):
        answer(engine, ask(('xy' * 128)[:room + 1]))


def test_megabytes_are_refused_without_being_encoded(engine, monkeypatch):
    monkeypatch.setattr(engine_module, 'encode_chat', None)
    with pytest.raises(ContextOverflowError, match='255 fit'):
        answer(engine, ask('word ' * 2_000_000))


# --- conversations

def test_a_conversation_is_remembered_and_trimmed_by_whole_turns(fresh, says):
    system = 'Answer with one short sentence.'
    prompts = []
    for turn in range(10):
        says('There is a person standing near the door.')
        start, _, done = answer(fresh, ask(
            f'What is in front of you? {turn}', max_tokens=32, conversation='a', system=system))
        assert done.finish_reason == 'stop'
        prompts.append(start.prompt_tokens)
    turn = prompts[1] - prompts[0]
    room = fresh.info.context_length - 32
    held = (room - prompts[0]) // turn
    assert 1 < held < 8
    # Turns are added while they fit; from then on one goes for each that comes.
    assert prompts == [prompts[0] + min(count, held) * turn for count in range(10)]


def test_another_conversation_and_none_know_nothing_of_it(fresh, says):
    says('Red.')
    alone = answer(fresh, ask('Name a color.', conversation='a'))[0].prompt_tokens
    for conversation in ('b', ''):
        says('Red.')
        start = answer(fresh, ask('Name a color.', conversation=conversation))[0]
        assert start.prompt_tokens == alone
    says('Red.')
    assert answer(fresh, ask('Name a color.', conversation='a'))[0].prompt_tokens > alone
    fresh.reset('a')
    says('Red.')
    assert answer(fresh, ask('Name a color.', conversation='a'))[0].prompt_tokens == alone
