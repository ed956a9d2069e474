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

"""What the chat says, and where it says it."""

import pytest

pytest.importorskip('rclpy', reason='rclpy is not installed')

from reflex_llm_ros.answer import Answer, Part  # noqa: E402
from reflex_llm_ros.cli.chat import how_to_activate, language_models, parse  # noqa: E402
from reflex_llm_ros.cli.screen import Screen  # noqa: E402
from reflex_llm_ros.protocol import Status  # noqa: E402


class NodeIn:
    """Stands for a client that knows a node in this state."""

    server = '/robot/llm'

    def __init__(self, state, reason=''):
        self.status = Status(state, reason=reason)


def an_answer(**changes):
    values = {
        'text': 'yes', 'reasoning': '', 'finish_reason': 'stop', 'prompt_tokens': 5,
        'cached_tokens': 0, 'completion_tokens': 12, 'ttft_ms': 340.0, 'tokens_per_s': 23.456}
    return Answer(**{**values, **changes})


def test_arguments():
    assert vars(parse([])) == {'prompt': None, 'node': '/reflex_llm', 'drive': False}
    assert vars(parse(['hello', '--node', '/a/b', '--drive'])) == {
        'prompt': 'hello', 'node': '/a/b', 'drive': True}


def test_wrong_arguments_exit_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(['two', 'prompts'])
    assert caught.value.code == 2
    assert 'prompts' in capsys.readouterr().err


def test_nodes_are_known_by_their_topics():
    assert language_models([
        '/chatter', '/a/tokens', '/a/events', '/b/tokens', '/c/events', '/d/e/events',
        '/d/e/tokens']) == ['/a', '/d/e']


@pytest.mark.parametrize(('state', 'commands'), [
    ('unconfigured', ['configure', 'activate']),
    ('inactive', ['activate']),
    ('error', ['configure', 'activate']),
    ('finalized', []),
])
def test_a_node_that_does_not_answer_comes_with_what_to_type(state, commands):
    lines = how_to_activate(NodeIn(state)).splitlines()
    assert lines[0].startswith('/robot/llm ')
    assert [line.strip() for line in lines[2:]] == [
        f'ros2 lifecycle set /robot/llm {command}' for command in commands]


def test_the_reason_of_a_failure_is_passed_on():
    assert 'no such file' in how_to_activate(NodeIn('error', 'no such file'))


def test_without_a_terminal_the_answer_alone_goes_to_stdout(capsys):
    screen = Screen()
    with screen.answer() as write:
        write(Part('let me see', reasoning=True))
        write(Part('y', reasoning=False))
        write(Part('es  ', reasoning=False))
    screen.statistics(an_answer())
    screen.error('too bad')
    out, err = capsys.readouterr()
    assert out == 'yes  \n'
    assert err.splitlines() == [
        '12 tokens · 23.5 tokens/s · first token after 0.34 s', 'too bad']


def test_without_an_answer_there_is_no_line_for_it(capsys):
    with Screen().answer():
        pass
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize(('answer', 'expected'), [
    (an_answer(completion_tokens=1), '1 token · first token after 0.34 s'),
    (an_answer(completion_tokens=0, finish_reason='cancelled'), '0 tokens · cancelled'),
    (an_answer(finish_reason='length'),
     '12 tokens · 23.5 tokens/s · first token after 0.34 s · cut at the length limit'),
])
def test_statistics_say_what_there_is_to_say(capsys, answer, expected):
    Screen().statistics(answer)
    assert capsys.readouterr().err.strip() == expected


def test_loading_without_a_terminal_is_a_line_for_every_step(capsys):
    with Screen().loading() as show:
        for percent, step in [(0, 'weights'), (50, 'weights'), (90, 'warm-up')]:
            show(Status('loading', model='m.gguf', percent=percent, step=step))
        show(Status('inactive'))
        show(None)
    assert capsys.readouterr().err.splitlines() == [
        'loading m.gguf: weights', 'loading m.gguf: warm-up']


def test_long_lines_are_not_cut_without_a_terminal(capsys):
    Screen().error('word ' * 100)
    assert len(capsys.readouterr().err.splitlines()) == 1
