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

"""What the chat puts on the terminal, and what it puts there when there is none."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
import sys
import termios

from reflex_llm_ros.cli.wrap import WordWrap
from reflex_llm_ros.client import Answer, Part
from reflex_llm_ros.engine.request import Done
from reflex_llm_ros.protocol import Status
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

# A model can be made to say anything, escape sequences for the terminal too.
UNPRINTABLE = dict.fromkeys({*range(32), *range(127, 160)} - {ord('\n'), ord('\t')})

BAR_COLUMNS = 20
LOCAL_MODES = 3  # in what tcgetattr returns


class Screen:
    """Answers go to the standard output, everything else to the standard error."""

    def __init__(self) -> None:
        self._out = Console(highlight=False)
        self._err = Console(highlight=False, stderr=True)
        self._talks = sys.stdin.isatty() and self._out.is_terminal
        if self._talks:
            import readline  # noqa: F401 (input() then edits lines and has a history)

    def ask(self) -> str | None:
        """Read a line; None at the end."""
        try:
            # Readline has to be told which characters take no room.
            prompt = '\n\001\033[1;36m\002> \001\033[0m\002' if self._talks else ''
            return input(prompt).strip()
        except EOFError:
            if self._talks:
                self.end_line()
            return None

    def greet(self, model: str, server: str) -> None:
        """Say who is there and which keys do what."""
        if self._talks:
            self.note(f'{model or "model"} on {server}\n'
                      'Ctrl-C cancels an answer, /reset forgets, Ctrl-D ends')

    def note(self, text: str) -> None:
        """Say something of lesser importance."""
        self._err.print(Text(text, style='dim'), soft_wrap=not self._err.is_terminal)

    def error(self, text: str) -> None:
        """Say what is wrong."""
        self._err.print(Text(text, style='red'), soft_wrap=not self._err.is_terminal)

    def end_line(self) -> None:
        """Leave the line that the cursor is in."""
        self._err.print()

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that something is waited for, on a terminal."""
        with self._err.status(Text(text, style='dim')):
            yield

    @contextmanager
    def loading(self) -> Iterator[Callable[[Status | None], None]]:
        """Show how far loading is: a bar, or a line for every step without a terminal."""
        progress = Progress(
            BarColumn(BAR_COLUMNS, complete_style='cyan'), TextColumn('{task.percentage:3.0f} %'),
            TextColumn('{task.description}', style='dim', markup=False),
            console=self._err, transient=True, disable=not self._err.is_terminal)
        steps: list[str] = []

        def show(status: Status | None) -> None:
            if status is None or status.state != 'loading':
                return
            if status.step not in steps:
                steps.append(status.step)
                if not self._err.is_terminal:
                    self.note(f'loading {status.model}: {status.step}')
            text = Text(f'loading {status.model}: {status.step}')
            # What is too long for its line would squeeze the bar away.
            text.truncate(self._err.width - BAR_COLUMNS - 8, overflow='ellipsis')
            if not progress.tasks:
                progress.add_task(text.plain, total=100)
            progress.update(
                progress.tasks[0].id, description=text.plain, completed=status.percent)

        with progress:
            yield show

    def answer(self) -> AbstractContextManager[Callable[[Part], None]]:
        """Give a function that prints an answer part by part."""
        return self._wrapped_answer() if self._out.is_terminal else self._plain_answer()

    @contextmanager
    def _plain_answer(self) -> Iterator[Callable[[Part], None]]:
        """Print the text as it is, without the reasoning."""
        written = False

        def write(part: Part) -> None:
            nonlocal written
            if not part.reasoning:
                written = True
                sys.stdout.write(part.text)
                sys.stdout.flush()

        try:
            yield write
        finally:
            if written:
                sys.stdout.write('\n')

    @contextmanager
    def _wrapped_answer(self) -> Iterator[Callable[[Part], None]]:
        """Wrap the text, dim the reasoning."""
        spinner = self._err.status(Text('thinking', style='dim'))
        wrap = WordWrap(self._out.width)
        last: Part | None = None

        def put(text: str, reasoning: bool) -> None:
            style = 'dim italic' if reasoning else ''
            self._out.print(Text(text, style=style), end='', soft_wrap=True)

        def write(part: Part) -> None:
            nonlocal wrap, last
            text = part.text.translate(UNPRINTABLE)
            if last is None or last.reasoning != part.reasoning:
                text = text.lstrip('\n')
                if not text:
                    return
                spinner.stop()
                if last is not None:
                    put(wrap.flush() + '\n\n', last.reasoning)
                    wrap = WordWrap(self._out.width)
            last = part
            put(wrap.feed(text), part.reasoning)

        spinner.start()
        try:
            with _echo_off():
                yield write
        finally:
            spinner.stop()
            if last is not None:
                put(wrap.flush() + '\n', last.reasoning)

    def statistics(self, answer: Answer | Done) -> None:
        """Say how long it was and how fast."""
        facts = ['1 token']
        if answer.completion_tokens != 1:
            facts = [f'{answer.completion_tokens} tokens']
        if answer.completion_tokens > 1:
            facts.append(f'{answer.tokens_per_s:.1f} tokens/s')
        if answer.completion_tokens > 0:
            facts.append(f'first token after {answer.ttft_ms / 1000:.2f} s')
        if answer.finish_reason == 'length':
            facts.append('cut at the length limit')
        if answer.finish_reason == 'cancelled':
            facts.append('cancelled')
        self.note(' · '.join(facts))


@contextmanager
def _echo_off() -> Iterator[None]:
    """Keep what is typed, ^C too, out of the answer; it is read when the answer is over."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = list(before)
    quiet[LOCAL_MODES] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
