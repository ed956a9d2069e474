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

"""A worker that loads: what goes wrong, and what is asked of it before it is ready."""

import threading

import pytest
from reflex_llm_ros.engine.errors import (
    ModelFileError,
)
from reflex_llm_ros.protocol import Error
from reflex_llm_ros.worker import LoadCancelled, Progress, Worker
from scripted_engine import PATIENCE_S, ScriptedEngine
from worker_bench import Bench


def test_requests_before_resume_are_not_active() -> None:
    bench = Bench()
    bench.worker.load()
    bench.submit('early')
    end = bench.end('early')
    assert isinstance(end, Error)
    assert end.code == 'not_active'
    assert bench.worker.close(PATIENCE_S)


def test_load_raises_what_the_engine_raised_and_the_thread_ends() -> None:
    def fail(progress: Progress) -> ScriptedEngine:
        raise ModelFileError('no such file')

    worker = Worker(
        make_engine=fail, on_progress=lambda fraction, step: None,
        on_event=lambda event: None, on_fault=lambda line, trace: None)
    with pytest.raises(ModelFileError, match='no such file'):
        worker.load()
    assert worker.close(PATIENCE_S)


def test_close_during_load_cancels_it_at_the_next_progress() -> None:
    loading = threading.Event()
    release = threading.Event()
    steps = []

    def slow(progress: Progress) -> ScriptedEngine:
        progress(0.1, 'weights')
        loading.set()
        assert release.wait(PATIENCE_S)
        progress(0.2, 'more weights')
        raise AssertionError('loading went on')

    worker = Worker(
        make_engine=slow, on_progress=lambda fraction, step: steps.append(step),
        on_event=lambda event: None, on_fault=lambda line, trace: None)
    outcome: list[BaseException] = []

    def load() -> None:
        try:
            worker.load()
        except LoadCancelled as cancelled:
            outcome.append(cancelled)

    loader = threading.Thread(target=load)
    loader.start()
    assert loading.wait(PATIENCE_S)
    assert not worker.close(0.0)
    loader.join(PATIENCE_S)
    assert len(outcome) == 1
    release.set()
    assert worker.close(PATIENCE_S)
    assert steps == ['weights']


def test_a_worker_that_was_closed_loads_nothing() -> None:
    bench = Bench()
    assert bench.worker.close(0.0)
    with pytest.raises(LoadCancelled):
        bench.worker.load()
    assert not hasattr(bench, 'engine')
