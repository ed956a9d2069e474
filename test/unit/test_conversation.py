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

"""Conversations: what is remembered, what is left out, and what never is."""

import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from reflex_llm_ros.engine.conversation import (
    Conversations,
    fit,
    MAX_CHARACTERS,
    MAX_CONVERSATIONS,
)
from reflex_llm_ros.engine.errors import BadRequestError, ContextOverflowError
from reflex_llm_ros.engine.request import GenerateRequest, Message


def user(text):
    return Message('user', text)


def assistant(text):
    return Message('assistant', text)


def system(text):
    return Message('system', text)


def tool(text):
    return Message('tool', text)


def request(*messages, **options):
    return GenerateRequest(messages=messages, **options)


def talk(conversations, name, *texts):
    for text in texts:
        conversations.remember(name, [user(text)], f'{text}!')


def test_turns_come_back_in_order():
    conversations = Conversations()
    talk(conversations, 'a', 'one', 'two')
    talk(conversations, 'b', 'other')
    assert conversations.prompt_messages(request(user('three'), conversation='a')) == [
        user('one'), assistant('one!'), user('two'), assistant('two!'), user('three')]
    assert conversations.prompt_messages(request(user('x'), conversation='new')) == [user('x')]


def test_the_empty_name_remembers_nothing():
    conversations = Conversations()
    talk(conversations, '', 'one')
    assert conversations.prompt_messages(request(user('x'))) == [user('x')]


def test_history_turns_counts_turns_of_the_user():
    conversations = Conversations()
    conversations.remember('a', [user('one')], 'look')
    conversations.remember('a', [tool('seen')], 'one!')
    talk(conversations, 'a', 'two')
    expected = [
        user('one'), assistant('look'), tool('seen'), assistant('one!'),
        user('two'), assistant('two!'), user('x')]
    for history_turns, left_out in ((0, 0), (1, 4), (2, 0), (9, 0)):
        assert conversations.prompt_messages(
            request(user('x'), conversation='a', history_turns=history_turns)
        ) == expected[left_out:]


def test_which_system_prompt_counts():
    conversations = Conversations()

    def opening(*messages, **options):
        first = conversations.prompt_messages(
            request(*messages, user('x'), conversation='a', **options))[0]
        return first.content if first.role == 'system' else None

    assert opening() is None
    assert opening(system='given') == 'given'
    assert opening(system('own'), system='given') == 'own'
    conversations.remember('a', [system('first'), user('one')], 'one!')
    assert opening() == 'first'
    talk(conversations, 'a', 'two')
    assert opening() == 'first'
    assert opening(system='given') == 'given'
    conversations.remember('a', [system('second'), user('three')], 'three!')
    assert opening() == 'second'
    # It is no turn: it comes once, and history_turns does not count it.
    messages = conversations.prompt_messages(
        request(user('x'), conversation='a', history_turns=1))
    assert messages == [system('second'), user('three'), assistant('three!'), user('x')]


def test_an_answer_without_text_is_forgotten_with_its_question():
    conversations = Conversations()
    talk(conversations, 'a', 'one')
    conversations.remember('a', [user('two')], '')
    conversations.remember('a', [user('three')], 'thr')
    assert conversations.prompt_messages(request(user('x'), conversation='a')) == [
        user('one'), assistant('one!'), user('three'), assistant('thr'), user('x')]


def test_reset():
    conversations = Conversations()
    for name in 'abc':
        talk(conversations, name, name)

    def remembered():
        return [name for name in 'abc' if len(conversations.prompt_messages(
            request(user('x'), conversation=name))) > 1]

    conversations.reset('b')
    conversations.reset('never heard of')
    assert remembered() == ['a', 'c']
    conversations.reset()
    assert remembered() == []


def test_a_request_needs_a_turn():
    for messages in ((), (system('s'),)):
        with pytest.raises(BadRequestError, match='^messages: a turn of the user is missing'):
            Conversations().prompt_messages(request(*messages))


def test_remembering_is_bounded_in_conversations():
    conversations = Conversations()
    names = [f'robot {index}' for index in range(MAX_CONVERSATIONS)]
    for name in names:
        talk(conversations, name, 'hi')
    talk(conversations, names[0], 'again')
    talk(conversations, 'one more', 'hi')

    def length(name):
        return len(conversations.prompt_messages(request(user('x'), conversation=name)))

    assert length(names[0]) == 5
    assert length(names[1]) == 1
    assert all(length(name) == 3 for name in [*names[2:], 'one more'])


def test_remembering_is_bounded_in_text():
    conversations = Conversations()
    long = 'x' * (MAX_CHARACTERS // 4)
    for index in range(6):
        conversations.remember('a', [user(f'{index}{long}')], 'ok')
    kept = conversations.prompt_messages(request(user('new'), conversation='a'))
    assert [message.content[0] for message in kept if message.role == 'user'] == [
        '3', '4', '5', 'n']
    conversations.remember('a', [user('x' * MAX_CHARACTERS)], 'ok')
    assert conversations.prompt_messages(request(user('new'), conversation='a')) == [user('new')]


def tokens(messages):
    """Pretend that a message takes 3 tokens and one more a character."""
    return sum(3 + len(message.content) for message in messages)


roles = st.lists(st.sampled_from(['user', 'assistant', 'tool']), min_size=1, max_size=12)


@settings(max_examples=400, deadline=None)
@given(roles=roles, with_system=st.booleans(), budget=st.integers(0, 120), data=st.data())
def test_fit_drops_the_fewest_oldest_whole_turns(roles, with_system, budget, data):
    messages = [Message(role, data.draw(st.text('ab', max_size=12))) for role in roles]
    messages[-1] = user('end')
    opening = [system('sys')] if with_system else []
    # Every suffix that starts with a user, longest first, and the whole.
    candidates = [opening + messages] + [
        opening + messages[start:] for start in range(1, len(messages))
        if messages[start].role == 'user']
    fitting = [candidate for candidate in candidates if tokens(candidate) <= budget]
    if fitting:
        assert fit(opening + messages, tokens, budget) == fitting[0]
    else:
        shortest = tokens(candidates[-1])
        with pytest.raises(
                ContextOverflowError,
                match=f'^the prompt has {shortest} tokens and at most {budget} fit'):
            fit(opening + messages, tokens, budget)


def test_fit_keeps_tool_results_with_their_question():
    messages = [
        system('s'), user('old'), assistant('fine'),
        user('q'), assistant('call'), tool('result'), assistant('more'), tool('rest')]
    assert fit(messages, tokens, tokens(messages) - 1) == [messages[0], *messages[3:]]
    with pytest.raises(ContextOverflowError):
        fit(messages, tokens, tokens([messages[0], *messages[3:]]) - 1)


def test_fit_counts_seldom():
    calls = []

    def count(messages):
        calls.append(messages)
        return tokens(messages)

    messages = [message for index in range(1000) for message in (user('u'), assistant('a'))]
    budget = random.randrange(8, tokens(messages))
    assert tokens(fit(messages, count, budget)) == budget // 8 * 8, f'budget {budget}'
    assert len(calls) < 15


def test_the_overflow_message_is_one_line_with_advice():
    with pytest.raises(ContextOverflowError) as caught:
        fit([user('x' * 100)], tokens, 50)
    assert re.fullmatch(r'the prompt has 103 tokens and at most 50 fit; .*context\.length',
                        str(caught.value))
