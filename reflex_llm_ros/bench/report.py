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

"""A benchmark result for people: tables in the terminal, a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import cycle, groupby, zip_longest
from pathlib import Path
from typing import Any

from reflex_llm_ros.bench.result import ClockedStep, Load, Phases, Result
from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

INK, FAINT = '#24292f', '#8c959f'
BLUE = '#2f6fab'
PHASES = tuple(field.name for field in fields(Phases) if field.type is float)
ATTENTION = 'attention'
COLORS = ('#2f6fab', '#e0823d', '#4f9d69', '#b65c78', '#7a6bb0', '#8c959f', '#5aa9b8', '#9a6b4f',
          '#c9a227', '#37617e', '#a8577e', '#6f8f3a')
MOST_PARTS = 9
"""Of a bar: the smallest of more are shown as one."""


def tables(result: Result) -> Group:
    """Return what the terminal shows."""
    shown: list[RenderableType] = [_users_view(result)]
    if result.load:
        shown += ['loading, the file read before', _load(result, result.load)]
    if result.kernels:
        shown += ['kernels of a step of launches', _kernels(result)]
    if result.clocked:
        shown += ['one persistent kernel a step, which counts its cycles: us of an average block',
                  _clocked(result)]
        clocks = [f'{step.clock_ghz:.2f} GHz at {step.position:,}' for step in result.clocked
                  if step.clock_ghz]
        shown += [f'its clock: {", ".join(clocks)}'] if clocks else []
    if result.lanes:
        shown += ['activations, KL from fp16', _lanes(result)]
    for projection in result.projections:
        shown.append(f'{projection.device}, not measured: {projection.tokens_per_s:.1f} tokens/s '
                     f'({projection.assumptions})')
        shown.append(_table(('<stage', 'MB', 'memory us', 'issue us', 'waits us', 'us'), [
            (stage.name, f'{stage.read_bytes / 1e6:,.1f}', f'{stage.memory_us:,.0f}',
             f'{stage.issue_us:,.0f}', f'{stage.waits_us:,.0f}', f'{stage.microseconds:,.0f}')
            for stage in projection.stages]))
    for command, held in groupby(result.bars, lambda bar: bar.command):
        shown.append(f'\n{escape(command)}')
        shown.append(_table(('<what', '<measured', '<bar', '<'), [
            (bar.what, bar.measured, bar.bar, 'met' if bar.met else '[red]missed[/]')
            for bar in held]))
    return Group(*shown)


def print_report(result: Result, console: Console) -> None:
    """Print the run."""
    console.print(f'[bold]{result.model}[/]  {result.types}  {result.file_bytes / 1e9:.2f} GB  '
                  f'{result.backend}: {result.device}  {result.date}')
    if result.copy_gb_per_s:
        console.print(
            f'read bandwidth {result.read_gb_per_s:,.0f} GB/s, copy {result.copy_gb_per_s:,.0f} '
            f'GB/s, clock {result.clock_ghz:.2f} GHz, host share of a token '
            f'{result.host_share:.1%}')
    if result.choices:
        console.print(result.choices)
    console.print(tables(result))


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """Make a table; a column whose heading begins with < is aligned to the left."""
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for heading in headings:
        table.add_column(
            heading.removeprefix('<'), justify='left' if heading.startswith('<') else 'right')
    for row in rows:
        table.add_row(*row)
    return table


def _users_view(result: Result) -> Table:
    rows = [
        ('prefill', f'{prefill.tokens:,}', f'{prefill.tokens_per_s:,.1f}', '',
         f'{prefill.ttft_ms:,.1f} ms') for prefill in result.prefill]
    for decode in result.decode:
        share = result.share_of_limit(decode)
        rows.append(('decode', f'at {decode.position:,}', f'{decode.tokens_per_s:,.1f}',
                     f'{share:.1%}' if share else '', ''))
    return _table(('<', 'tokens', 'tokens/s', 'of the read limit', 'first token'), rows)


def _kernels(result: Result) -> Table:
    return _table(('<kernel', 'launches', 'us each', 'us a token', 'GB/s', 'of copy'), [
        (kernel.name, f'{kernel.launches}', f'{kernel.microseconds / kernel.launches:.1f}',
         f'{kernel.microseconds:,.0f}',
         f'{kernel.read_bytes / kernel.microseconds / 1e3:,.0f}' if kernel.read_bytes else '',
         _of_copy(result, kernel.read_bytes, kernel.microseconds)) for kernel in result.kernels])


def _of_copy(result: Result, read_bytes: int, microseconds: float) -> str:
    """Return the rate of reading as a share of the copy bandwidth; empty where none is known."""
    share = result.share_of_copy(read_bytes, microseconds)
    return f'{share:.0%}' if share else ''


def _load(result: Result, load: Load) -> Table:
    rates = [(name, seconds, result.file_bytes / seconds / 1e9) for name, seconds in (
        ('read()', load.read_s), ('weights', load.weights_s), ('all of it', load.seconds))]
    return _table(('<', 's', 'GB/s', 'of read()'), [
        (name, f'{seconds:.2f}', f'{rate:.2f}', f'{load.read_s / seconds:.0%}')
        for name, seconds, rate in rates])


def _clocked(result: Result) -> Table:
    """Make a table of the parts of a step, a section for each position."""
    rows = _table(('<', *PHASES, 'us', 'share', 'of copy'), ())

    def add(name: str, phases: Sequence[float], time: float, step: ClockedStep,
            read_bytes: int) -> None:
        rows.add_row(name, *(f'{phase:,.0f}' for phase in phases), f'{time:,.0f}',
                     f'{time / step.clocked_us:.0%}', _of_copy(result, read_bytes, time))

    for step in result.clocked:
        add(f'step at {step.position:,}',
            [sum(getattr(part, phase) for part in step.parts) for phase in PHASES],
            step.clocked_us, step, sum(part.read_bytes for part in step.parts))
        for part in step.parts:
            add(f'  {part.name}', [getattr(part, phase) for phase in PHASES], part.microseconds,
                step, part.read_bytes)
        rows.add_row('  launch', *('' for _ in PHASES), f'{step.launch_us:,.0f}',
                     f'{step.launch_us / step.clocked_us:.0%}')
        rows.add_row('without counting', *('' for _ in PHASES), f'{step.step_us:,.0f}',
                     end_section=True)
    return rows


def _lanes(result: Result) -> Table:
    """Make a table of kinds of activations, a section for each."""
    rows = _table(
        ('<activations', 'mean KL', 'largest', '<repeats', '<decode', 'tokens/s', 'of limit'), ())
    for lane in result.lanes:
        speeds = [
            (f'at {decode.position:,}', f'{decode.tokens_per_s:,.0f}',
             f'{result.share_of_limit(decode):.0%}') for decode in lane.decode]
        if lane.few_blocks_ms:
            speeds.append((f'{lane.few_blocks} blocks', f'{1e3 / lane.few_blocks_ms:,.0f}', ''))
        repeats = 'yes' if lane.repeats else '[red]no[/]'
        firsts = [(lane.activations, f'{lane.kl:.1e}', f'{lane.most_kl:.1e}', repeats),
                  (f'  {lane.route}', '', '', '')]
        for first, speed in zip_longest(firsts, speeds, fillvalue=()):
            rows.add_row(*(first or 4 * ('',)), *speed)
        rows.add_section()
    return rows


def plot(result: Result, path: Path) -> None:
    """
    Draw speeds, and what a token's time is made of, into a PNG.

    Raises
    ------
    ImportError
        Matplotlib is not installed.

    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    stacks = _stacks(result)
    heights = [0.9 + 0.36 * len(stack.rows) for stack in stacks]
    figure = Figure(
        figsize=(10, 3.4 + sum(heights)), dpi=150, layout=ConstrainedLayoutEngine(hspace=0.08))
    axes = figure.subplots(
        1 + len(stacks), 1, squeeze=False, height_ratios=(2.9, *heights))[:, 0]
    figure.suptitle(
        f'{result.model} on {result.device}, {result.date}', color=INK, fontsize=12, x=0.01,
        ha='left')
    speeds = [
        *((f'prefill {run.tokens:,}', run.tokens_per_s) for run in result.prefill),
        *((f'decode at {run.position:,}', run.tokens_per_s) for run in result.decode)]
    _bars(axes[0], 'tokens a second', speeds)
    names = dict.fromkeys(name for stack in stacks for name, _ in stack.rows[0].parts)
    colors = dict(zip(names, cycle(COLORS), strict=False))
    for axis, stack in zip(axes[1:], stacks, strict=True):
        _draw(axis, stack, colors)
    figure.savefig(path)


@dataclass(frozen=True)
class _Row:
    """A bar of names and microseconds, and what stands behind their sum."""

    label: str
    parts: list[tuple[str, float]]
    note: str = ''


@dataclass(frozen=True)
class _Stack:
    """Bars of the same names, one under the other."""

    title: str
    rows: list[_Row]


def _stacks(result: Result) -> list[_Stack]:
    stacks = []
    if result.kernels:
        parts = sorted(((kernel.name, kernel.microseconds) for kernel in result.kernels),
                       key=lambda part: -part[1])
        if len(parts) > MOST_PARTS:
            rest = parts[MOST_PARTS - 1:]
            parts = [*parts[:MOST_PARTS - 1], ('other', sum(time for _, time in rest))]
        stacks.append(_Stack('kernels of a step of launches, ms', [_Row('', parts)]))
    if result.clocked:
        for title, parts_of in (('by what blocks do', _by_phase), ('by part', _by_part)):
            stacks.append(_Stack(
                f'the persistent kernel {title}, ms of an average block that counts its cycles',
                [_Row(f'at {step.position:,}', parts_of(step),
                      f' ({step.step_us / 1e3:.2f} without)') for step in result.clocked]))
    stacks += [
        _Stack(f'{projection.device}, ms by a model of it: {projection.tokens_per_s:.0f} tokens/s',
               [_Row('', [(stage.name, stage.microseconds) for stage in projection.stages])])
        for projection in result.projections]
    return stacks


def _by_phase(step: ClockedStep) -> list[tuple[str, float]]:
    """Return what a step is made of, attention apart."""
    products = [part for part in step.parts if part.name != ATTENTION]
    return [
        *((name, sum(getattr(part, name) for part in products)) for name in PHASES),
        *((part.name, part.microseconds) for part in step.parts if part.name == ATTENTION),
        ('launch', step.launch_us)]


def _by_part(step: ClockedStep) -> list[tuple[str, float]]:
    return [*((part.name, part.microseconds) for part in step.parts), ('launch', step.launch_us)]


def _draw(axis: Any, stack: _Stack, colors: Mapping[str, str]) -> None:
    """Draw bars of parts, the first on top, with a legend under them."""
    longest = max(sum(time for _, time in row.parts) for row in stack.rows)
    for index, row in enumerate(stack.rows):
        start = 0.0
        for name, time in row.parts:
            axis.barh(
                -index, time / 1e3, left=start / 1e3, color=colors[name], edgecolor='white',
                height=0.7, label=name if index == 0 else None)
            if time > 0.05 * longest:
                axis.text((start + time / 2) / 1e3, -index, f'{time / 1e3:.2f}', ha='center',
                          va='center', color='white', fontsize=8)
            start += time
        axis.text(start / 1e3, -index, f'  {start / 1e3:.2f}{row.note}', va='center', color=INK,
                  fontsize=9)
    axis.set_title(stack.title, loc='left', fontsize=10, color=INK)
    axis.set_xlim(0, (1.2 if stack.rows[0].note else 1.08) * longest / 1e3)
    axis.set_ylim(0.5 - len(stack.rows), 0.5)
    axis.set_yticks([-index for index in range(len(stack.rows))],
                    [row.label for row in stack.rows])
    axis.tick_params(left=False, labelsize=9)
    axis.tick_params(axis='x', labelsize=8, colors=FAINT)
    axis.spines[['top', 'right', 'left']].set_visible(False)
    axis.spines['bottom'].set_color(FAINT)
    axis.legend(
        loc='upper center', bbox_to_anchor=(0.5, -0.3 / len(stack.rows)), ncols=7, frameon=False,
        fontsize=8, handlelength=1, handleheight=1, labelcolor=INK)


def _bars(axis: Any, title: str, rows: list[tuple[str, float]]) -> None:
    """Draw horizontal bars with their values, the first row on top."""
    names, values = zip(*reversed(rows), strict=True)
    bars = axis.barh(names, values, color=BLUE, height=0.62)
    axis.bar_label(
        bars, labels=[f'{value:,.0f}' for value in values], padding=4, color=INK, fontsize=9)
    axis.set_title(title, loc='left', fontsize=10, color=INK)
    axis.margins(x=0.1)
    axis.spines[['top', 'right', 'bottom']].set_visible(False)
    axis.tick_params(left=False, bottom=False, labelbottom=False)
