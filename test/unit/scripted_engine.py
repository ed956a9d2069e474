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

"""An engine that does what a test tells it, one event at a time."""

from collections.abc import Callable, Iterator
import queue
import threading

from reflex_llm_ros.engine.engine import EngineInfo
from reflex_llm_ros.engine.memory import MemoryReport
from reflex_llm_ros.engine.request import Done, Event, GenerateRequest, Started, Token
from reflex_llm_ros.worker import Progress

PATIENCE_S = 20.0


def done(text: str, finish_reason: str = 'stop') -> Done:
    return Done(text, finish_reason, 3, 1, 1.0, 10.0, 100.0)


class ScriptedEngine:
    """
    Answers each request with what ``feed`` provides, and notes what it was asked.

    An exception that is fed is raised. When the request is cancelled the answer ends with
    what has been said so far, like that of a real engine.
    """

    info = EngineInfo('scripted', 'none', 100, 'script', 0)

    def __init__(self, progress: Progress) -> None:
        self.thread = threading.get_ident()
        self.prompts: list[str] = []
        self.resets: list[str] = []
        self.closed = 0
        self.generating = threading.Event()
        self._feed: queue.Queue[Event | Exception] = queue.Queue()
        progress(1.0, 'ready')

    def feed(self, *items: Event | Exception) -> None:
        for item in items:
            self._feed.put(item)

    def generate(
        self, request: GenerateRequest, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        assert threading.get_ident() == self.thread
        self.prompts.append(request.messages[-1].content)
        yield Started(3, 0)
        self.generating.set()
        said = ''
        while True:
            if cancelled():
                self.generating.clear()
                yield done(said, 'cancelled')
                return
            try:
                item = self._feed.get(timeout=0.005)
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Token):
                said += item.text
            if isinstance(item, Done):
                self.generating.clear()
            yield item

    def reset(self, conversation: str) -> None:
        assert threading.get_ident() == self.thread
        self.resets.append(conversation)

    def memory(self) -> MemoryReport:
        return MemoryReport(weights=1, kv_cache=2, scratch=3, free=4)

    def counters(self) -> dict[str, int]:
        return {'answers': len(self.prompts)}

    def close(self) -> None:
        assert threading.get_ident() == self.thread
        self.closed += 1
