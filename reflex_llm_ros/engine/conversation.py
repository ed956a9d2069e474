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

"""Conversations that are remembered, and prompts that fit the context."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from reflex_llm_ros.engine.errors import BadRequestError, ContextOverflowError
from reflex_llm_ros.engine.request import GenerateRequest, Message

MAX_CONVERSATIONS = 64
"""Names remembered at once; the one that was used longest ago is forgotten first."""
MAX_CHARACTERS = 1 << 20
"""Text remembered of one conversation, more than a context of 128 Ki tokens holds."""

Turn = tuple[Message, ...]


@dataclass
class _Conversation:
    messages: list[Message] = field(default_factory=list)
    system: Message | None = None


class Conversations:
    """
    What was said before, by name of the conversation.

    A turn is what a user says and all that follows until a user speaks again. Turns are
    remembered and forgotten whole. Reasoning is not remembered, so that the prompts are those
    that models are trained on. An answer that was cancelled is remembered as far as it went:
    the robot has said that much aloud. One without any text is forgotten together with its
    question: nothing was said, and a question left open would be answered along with the next.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()

    def prompt_messages(self, request: GenerateRequest) -> list[Message]:
        """
        Return what a request's prompt is made of: system turn, remembered turns, new ones.

        The system turn is the one that the request's messages open with; else its ``system``;
        else the one that messages of this conversation last opened with.

        Raises
        ------
        BadRequestError
            The request has no turn but a system turn.

        """
        system, new = _split_system(request.messages)
        if not new:
            raise BadRequestError('messages: a turn of the user is missing')
        conversation = self._conversations.get(request.conversation, _Conversation())
        if system is None:
            system = (Message('system', request.system) if request.system
                      else conversation.system)
        # 0 is all of them, as it happens to be in a slice.
        turns = _turns(conversation.messages)[-request.history_turns:]
        return [*([system] if system else []), *chain.from_iterable(turns), *new]

    def remember(self, name: str, messages: Sequence[Message], answer: str) -> None:
        """
        Remember what a request said and what was answered.

        Parameters
        ----------
        name
            The conversation; nothing is remembered under the empty name.
        messages
            The request's own messages.
        answer
            Text without reasoning; nothing is remembered when it is empty.

        """
        if not name or not answer:
            return
        conversation = self._conversations.setdefault(name, _Conversation())
        self._conversations.move_to_end(name)
        if len(self._conversations) > MAX_CONVERSATIONS:
            self._conversations.popitem(last=False)
        system, new = _split_system(messages)
        conversation.system = system or conversation.system
        # Cut anew, as what follows a tool's result belongs to the turn that is remembered.
        turns = _turns([*conversation.messages, *new, Message('assistant', answer)])
        size = sum(map(_characters, turns))
        while size > MAX_CHARACTERS:
            size -= _characters(turns.pop(0))
        conversation.messages = list(chain.from_iterable(turns))

    def reset(self, name: str = '') -> None:
        """Forget a conversation, or all of them when the name is empty."""
        if name:
            self._conversations.pop(name, None)
        else:
            self._conversations.clear()


def fit(messages: Sequence[Message], count_tokens: Callable[[Sequence[Message]], int],
        budget: int) -> list[Message]:
    """
    Leave out the oldest turns, as few as needed for the prompt to fit.

    The system turn and the newest turn of the user, with what follows it, always stay.

    Parameters
    ----------
    messages
        As ``Conversations.prompt_messages`` gives them.
    count_tokens
        Length of the prompt that messages make.
    budget
        Tokens that the prompt may have.

    Raises
    ------
    ContextOverflowError
        Even the newest turn alone is too long; the message says how many tokens fit.

    """
    system, rest = _split_system(messages)
    opening = [system] if system else []
    turns = _turns(rest)

    def without(dropped: int) -> list[Message]:
        return [*opening, *chain.from_iterable(turns[dropped:])]

    if count_tokens(messages) <= budget:
        return list(messages)
    # Fewer turns make a shorter prompt, so halving finds the border in a few tries.
    too_few, enough = 0, len(turns) - 1
    shortest = count_tokens(without(enough))
    if shortest > budget:
        raise ContextOverflowError(
            f'the prompt has {shortest} tokens and at most {budget} fit; shorten it, or raise '
            'context.length')
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if count_tokens(without(middle)) <= budget:
            enough = middle
        else:
            too_few = middle
    return without(enough)


def _split_system(messages: Sequence[Message]) -> tuple[Message | None, Sequence[Message]]:
    if messages and messages[0].role == 'system':
        return messages[0], messages[1:]
    return None, messages


def _turns(messages: Sequence[Message]) -> list[Turn]:
    """Cut messages before every user message."""
    starts = [index for index, message in enumerate(messages)
              if index == 0 or message.role == 'user']
    return [tuple(messages[start:end]) for start, end in pairwise([*starts, len(messages)])]


def _characters(turn: Turn) -> int:
    return sum(len(message.content) for message in turn)
