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

"""What goes into the engine (requests) and what comes out (events)."""

from dataclasses import dataclass, field

from reflex_llm_ros.engine.config import SamplingParams


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; role is system, user, assistant or tool."""

    role: str
    content: str


@dataclass(frozen=True)
class GenerateRequest:
    """
    One answer to generate.

    Attributes
    ----------
    messages
        New turns, oldest first; a remembered conversation goes before them.
    conversation
        Name under which turns are remembered; empty for none.
    system
        System prompt; empty for the chat template's default. Ignored when ``messages``
        opens with a system turn.
    sampling
        How tokens are chosen.
    stop
        The answer ends before the first of these strings.
    thinking
        Ask the chat template for reasoning (True), for none (False) or leave it (None).
    history_turns
        Remembered user turns that go into the prompt at most; 0 for as many as fit.

    """

    messages: tuple[Message, ...]
    conversation: str = ''
    system: str = ''
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    thinking: bool | None = None
    history_turns: int = 0


@dataclass(frozen=True)
class Started:
    """The prompt is known: its tokens, and how many of them the KV cache already held."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Token:
    """Text of the answer; ``token_id`` is the id that completed it. Never empty."""

    text: str
    token_id: int


@dataclass(frozen=True)
class Reasoning:
    """Text inside think tags. Never empty."""

    text: str


@dataclass(frozen=True)
class Done:
    """
    The end of an answer, always the last event.

    ``finish_reason`` is ``stop``, ``length`` or ``cancelled``; ``text`` is all Token texts
    concatenated; ``ttft_ms`` runs from the call to the first token (0 when there is none);
    ``tokens_per_s`` counts the tokens after the first; ``prefill_tokens_per_s`` the prompt
    tokens that were computed.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float
    tokens_per_s: float
    prefill_tokens_per_s: float


Event = Started | Token | Reasoning | Done
