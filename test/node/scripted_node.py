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

"""
The node with an engine that does what its prompt says.

``model.path`` says how loading goes, a prompt how its answer goes::

    count N       N tokens, 5 ms apart
    think         reasoning, then an answer
    hang          never looks at cancellation
    fail, oom     the engine breaks
    too long      a context overflow
"""

from collections.abc import Callable, Iterator
import functools
import sys
import time

from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.engine import EngineInfo
from reflex_llm_ros.engine.errors import ContextOverflowError, ModelFileError, OutOfMemoryError
from reflex_llm_ros.engine.memory import MemoryReport
from reflex_llm_ros.engine.request import (
    Done,
    Event,
    GenerateRequest,
    Reasoning,
    Started,
    Token,
)
from reflex_llm_ros.node import ReflexLlmNode
from reflex_llm_ros.process import run
from reflex_llm_ros.worker import Progress

TOKEN_S = 0.005


class PromptedEngine:
    info = EngineInfo('scripted', 'none', 100, 'script', 0)

    def __init__(self, config: EngineConfig, on_progress: Progress) -> None:
        self.resets = 0
        if config.model_path == 'missing.gguf':
            raise ModelFileError('missing.gguf: no such file')
        if config.model_path == 'strange.gguf':
            raise KeyError('a bug in the loader')
        if config.model_path == 'slow.gguf':
            for percent in range(100):
                on_progress(percent / 100, 'weights')
                time.sleep(0.1)
        if config.model_path == 'stuck.gguf':
            on_progress(0.5, 'weights')
            time.sleep(600)
        on_progress(1.0, 'ready')

    def generate(
        self, request: GenerateRequest, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        words = request.messages[-1].content.split()
        if words[0] == 'fail':
            raise RuntimeError('the device is lost')
        if words[0] == 'oom':
            raise OutOfMemoryError('no memory for the cache')
        if words[:2] == ['too', 'long']:
            raise ContextOverflowError('the prompt has 120 tokens; 100 fit')
        yield Started(len(words), 0)
        if words[0] == 'hang':
            time.sleep(600)
        said: list[str] = []
        reason = 'stop'
        if words[0] == 'think':
            yield Reasoning('well, ')
            yield Reasoning('let me see')
            yield Token('yes', 0)
            said.append('yes')
        if words[0] == 'count':
            for number in range(int(words[1])):
                if cancelled():
                    reason = 'cancelled'
                    break
                time.sleep(TOKEN_S)
                said.append(f'{number} ')
                yield Token(said[-1], number)
        yield Done(''.join(said), reason, len(words), len(said), 5.0, 200.0, 1000.0)

    def reset(self, conversation: str) -> None:
        self.resets += 1

    def memory(self) -> MemoryReport:
        return MemoryReport(weights=2**20, kv_cache=2**21, scratch=2**22, free=2**30)

    def counters(self) -> dict[str, int]:
        return {'conversations_reset': self.resets}

    def close(self) -> None:
        pass


if __name__ == '__main__':
    sys.exit(run(
        functools.partial(ReflexLlmNode, load_engine=PromptedEngine), ReflexLlmNode.stop, None))
