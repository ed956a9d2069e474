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

"""A worker to test, on a scripted engine."""

import threading
from typing import Any

from reflex_llm_ros.engine.request import Done, GenerateRequest, Message
from reflex_llm_ros.protocol import Error, Event, Request
from reflex_llm_ros.request_queue import QueueLimits
from reflex_llm_ros.worker import Progress, Worker
from scripted_engine import PATIENCE_S, ScriptedEngine

ROOMY = QueueLimits(size=8, drop_oldest=False)


class Bench:
    """A worker with a scripted engine, and everything that it said."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.faults: list[str] = []
        self.said = threading.Condition()
        self.engine: ScriptedEngine
        self.worker = Worker(
            make_engine=self.make_engine,
            on_progress=lambda fraction, step: None,
            on_event=self.on_event,
            on_fault=lambda line, trace: self.faults.append(line))

    def make_engine(self, progress: Progress) -> ScriptedEngine:
        self.engine = ScriptedEngine(progress)
        return self.engine

    def on_event(self, event: Event) -> None:
        with self.said:
            self.events.append(event)
            self.said.notify_all()

    def submit(self, name: str, limits: QueueLimits = ROOMY, **options: Any) -> None:
        request = Request(name, GenerateRequest((Message('user', name),)), **options)
        self.worker.submit(request, limits)

    def run(self, name: str) -> None:
        """Submit a request and wait until the engine is inside it."""
        self.submit(name)
        assert self.engine.generating.wait(PATIENCE_S)

    def bodies(self, name: str) -> list[Any]:
        with self.said:
            events = [event for event in self.events if event.id == name]
        assert [event.seq for event in events] == list(range(len(events)))
        return [event.body for event in events]

    def end(self, name: str) -> Done | Error:
        """Wait for the last event of a request."""
        with self.said:
            assert self.said.wait_for(
                lambda: any(event.id == name and event.final for event in self.events),
                PATIENCE_S), f'{name} has not ended: {self.events}'
        ends = [body for body in self.bodies(name) if isinstance(body, (Done, Error))]
        assert len(ends) == 1
        assert self.bodies(name)[-1] is ends[0]
        return ends[0]
