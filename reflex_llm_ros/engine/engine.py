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

"""A loaded model that answers requests, one at a time."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
import time

import numpy as np
from reflex_llm_ros.engine.answer_text import AnswerText
from reflex_llm_ros.engine.backends import open_backend
from reflex_llm_ros.engine.backends.base import Progress
from reflex_llm_ros.engine.chat_template import ChatPrompt, encode_chat, load_chat_template
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.conversation import Conversations, fit
from reflex_llm_ros.engine.errors import BadRequestError, ContextOverflowError
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.memory import MemoryReport
from reflex_llm_ros.engine.request import (
    Done,
    Event,
    GenerateRequest,
    Message,
    Started,
)
from reflex_llm_ros.engine.sampler import Sampler, SamplingPlan
from reflex_llm_ros.engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class EngineInfo:
    """What is loaded: the model, its context in tokens, the device, the file's size."""

    model_name: str
    architecture: str
    context_length: int
    backend: str
    file_bytes: int


def never() -> bool:
    """Cancel nothing."""
    return False


def silent(fraction: float, phrase: str) -> None:
    """Tell nobody about progress."""


class Engine:
    """
    A model, its tokenizer, its KV cache and the conversations that it remembers.

    One thread creates, uses and closes an engine. An answer is read to its end, or its
    iterator closed, before the next is asked for.

    Parameters
    ----------
    config
        The model and how it is loaded.
    on_progress
        Told the fraction done, 0 to 1, and what is being done. What it raises ends loading.

    Raises
    ------
    ModelFileError
        The file is missing, damaged or of a kind that cannot be run.
    OutOfMemoryError
        The model does not fit. Nothing has been allocated then.
    EngineError
        The backend cannot run here.

    """

    def __init__(self, config: EngineConfig, on_progress: Progress | None = None) -> None:
        progress = on_progress or silent
        progress(0.0, 'reading the model file')
        with closing(GgufModel.open(config.model_path)) as model:
            progress(0.05, 'building the tokenizer')
            self._tokenizer = Tokenizer(model.tokenizer)
            self._template = load_chat_template(
                config.chat_template_file, model.chat_template, self._tokenizer)
            self._longest_token = max(map(len, model.tokenizer.tokens))
            self._backend = open_backend(
                model, config, lambda done, phrase: progress(0.1 + 0.85 * done, phrase))
            self.info = EngineInfo(
                model_name=model.config.name,
                architecture=model.config.architecture,
                context_length=self._backend.context_length,
                backend=self._backend.name,
                file_bytes=model.file_bytes,
            )
        self._conversations = Conversations()
        self._prefill_chunk = config.prefill_chunk
        # Ids whose keys and values the cache holds, from position 0 on.
        self._cached: list[int] = []
        try:
            progress(0.95, 'warming up')
            self._backend.forward((0,), 0)
            progress(1.0, 'ready')
        except BaseException:
            self._backend.close()
            raise

    def generate(
        self, request: GenerateRequest, cancelled: Callable[[], bool] = never
    ) -> Iterator[Event]:
        """
        Answer a request.

        Parameters
        ----------
        request
            What to answer and how.
        cancelled
            Asked between prefill chunks and between tokens; once true, the answer ends with
            the reason ``cancelled``.

        Yields
        ------
        Event
            Started, then Token and Reasoning as they are generated, then one Done.

        Raises
        ------
        BadRequestError
            A field cannot be honoured, before anything is yielded.
        ContextOverflowError
            The newest turn does not fit the context, before anything is yielded.
        EngineError
            The backend failed.

        """
        asked = time.monotonic()
        sampler = Sampler(request.sampling)
        if request.sampling.max_tokens < 0:
            raise BadRequestError(
                f'max_tokens must be 0 or more, not {request.sampling.max_tokens}')
        prompt = self._prompt(request)
        answer = AnswerText(self._tokenizer, request.stop, prompt.opens_thinking)
        history = list(prompt.ids)
        room = self.info.context_length - len(history)
        limit = min(request.sampling.max_tokens or room, room)

        reused = self._reuse(history)
        yield Started(len(history), reused)
        prefill_start = time.monotonic()
        logits = self._prefill(history, cancelled)
        prefill_s = time.monotonic() - prefill_start
        computed = len(self._cached) - reused

        finish_reason = 'cancelled'
        arrivals: list[float] = []
        if logits is not None:
            with closing(self._decode(logits, history, sampler)) as tokens:
                for token in tokens:
                    if token in self._tokenizer.end_ids:
                        finish_reason = 'stop'
                        break
                    arrivals.append(time.monotonic())
                    yield from answer.push(token)
                    if answer.stopped:
                        finish_reason = 'stop'
                        break
                    if len(arrivals) == limit:
                        finish_reason = 'length'
                        break
                    if cancelled():
                        break
        yield from answer.flush()
        self._conversations.remember(request.conversation, request.messages, answer.text)
        yield Done(
            text=answer.text,
            finish_reason=finish_reason,
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(arrivals),
            ttft_ms=1000 * (arrivals[0] - asked) if arrivals else 0.0,
            tokens_per_s=_rate(len(arrivals) - 1, arrivals[-1] - arrivals[0]) if arrivals else 0.0,
            prefill_tokens_per_s=_rate(computed, prefill_s),
        )

    def reset(self, conversation: str = '') -> None:
        """Forget a conversation, or all of them when the name is empty."""
        self._conversations.reset(conversation)

    def memory(self) -> MemoryReport:
        """Say what weights, cache and scratch hold and what the device has free."""
        return self._backend.memory()

    def counters(self) -> dict[str, int]:
        """Count what diagnostics show, such as fallbacks taken, by name."""
        return self._backend.counters()

    def close(self) -> None:
        """Free all memory; the engine is unusable afterwards. May be called twice."""
        self._backend.close()
        self._cached.clear()

    def _prompt(self, request: GenerateRequest) -> ChatPrompt:
        """Return the prompt of a request, with as many remembered turns as fit."""
        messages = self._conversations.prompt_messages(request)
        if not request.messages[-1].content.strip():
            raise BadRequestError('messages: the last one is empty')
        context = self.info.context_length
        # A token covers so many characters at most: no need to encode megabytes to refuse them.
        least = sum(len(message.content) for message in request.messages) // self._longest_token
        if least >= context:
            raise ContextOverflowError(
                f'the prompt has more than {least} tokens and at most {context - 1} fit; '
                'shorten it, or raise context.length')
        encoded: dict[int, ChatPrompt] = {}

        def count(chosen: Sequence[Message]) -> int:
            if len(chosen) not in encoded:
                encoded[len(chosen)] = encode_chat(
                    self._template, self._tokenizer, chosen, request.thinking)
            return len(encoded[len(chosen)].ids)

        # Remembered turns leave room to answer; the newest may take all but one position.
        answer_room = min(request.sampling.max_tokens or context, context // 4)
        try:
            fitting = fit(messages, count, context - max(answer_room, 1))
        except ContextOverflowError:
            fitting = fit(messages, count, context - 1)
        prompt = encoded[len(fitting)]
        if not prompt.ids:
            raise BadRequestError('messages: the chat template makes an empty prompt of them')
        return prompt

    def _reuse(self, prompt: list[int]) -> int:
        """Keep what the cache shares with a prompt; how many tokens need no prefill."""
        pairs = zip(self._cached, prompt, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # The last token is always computed, for its logits.
        shared = min(shared, len(prompt) - 1)
        del self._cached[shared:]
        return shared

    def _prefill(self, prompt: list[int], cancelled: Callable[[], bool]) -> np.ndarray | None:
        """Compute what the cache lacks of a prompt; the last logits, None when cancelled."""
        logits = None
        for start in range(len(self._cached), len(prompt), self._prefill_chunk):
            if cancelled():
                return None
            chunk = prompt[start:start + self._prefill_chunk]
            logits = self._backend.forward(chunk, start)
            self._cached += chunk
        return logits

    def _decode(
        self, logits: np.ndarray, history: list[int], sampler: Sampler
    ) -> Generator[int, None, None]:
        """Yield tokens, each appended to the history first, from the logits of its last."""
        start = len(history)

        def choose(scores: np.ndarray) -> int:
            return sampler(scores, history, len(history) - start)

        def plan(most: int) -> SamplingPlan | None:
            return sampler.plan(history, len(history) - start, most)

        token = choose(logits)
        history.append(token)
        yield token
        with closing(self._backend.stream(
                token, start, sampler.greedy, choose, plan)) as stream:
            for following in stream:
                # The step that gave it has stored the keys and values of the one before.
                self._cached.append(token)
                token = following
                history.append(token)
                yield token


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
