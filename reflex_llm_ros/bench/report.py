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

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reflex_llm_ros.bench.result import Result
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table

INK, FAINT = '#24292f', '#8c959f'
BLUE = '#2f6fab'
COLORS = ('#2f6fab', '#e0823d', '#4f9d69', '#b65c78', '#7a6bb0', '#c9a227', '#5aa9b8', '#9a6b4f',
          '#8c959f')


def tables(result: Result) -> Group:
    """Return what the terminal shows."""
    shown: list[RenderableType] = [_users_view(result)]
    if result.kernels:
        shown += ['kernels of a step of launches', _kernels(result)]
    if result.lanes:
        shown += ['activations', _lanes(result)]
    for projection in result.projections:
        shown.append(f'{projection.device}, not measured: {projection.tokens_per_s:.1f} tokens/s '
                     f'({projection.assumptions})')
        shown.append(_table(('<stage', 'MB', 'memory us', 'issue us', 'waits us', 'us'), [
            (stage.name, f'{stage.read_bytes / 1e6:,.1f}', f'{stage.memory_us:,.0f}',
             f'{stage.issue_us:,.0f}', f'{stage.waits_us:,.0f}', f'{stage.microseconds:,.0f}')
            for stage in projection.stages]))
    if result.bars:
        shown.append(_table(('<what', '<measured', '<bar', '<', '<command'), [
            (bar.what, bar.measured, bar.bar, 'met' if bar.met else '[red]missed[/]', bar.command)
            for bar in result.bars]))
    return Group(*shown)


def print_report(result: Result, console: Console) -> None:
    """Print the run."""
    console.print(f'[bold]{result.model}[/]  {result.file_bytes / 1e9:.2f} GB  '
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
    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(
            heading.removeprefix('<'), justify='left' if heading.startswith('<') else 'right')
    for row in rows:
        table.add_row(*row)
    return table


def _users_view(result: Result) -> Table:
    rows = [
        ('prefill', f'{prefill.tokens}', f'{prefill.tokens_per_s:,.1f}', '',
         f'{prefill.ttft_ms:,.1f} ms') for prefill in result.prefill]
    for decode in result.decode:
        share = result.share_of_limit(decode)
        rows.append(('decode', f'at {decode.position}', f'{decode.tokens_per_s:,.1f}',
                     f'{share:.1%}' if share else '', ''))
    return _table(('<', 'tokens', 'tokens/s', 'of the read limit', 'first token'), rows)


def _kernels(result: Result) -> Table:
    return _table(('<kernel', 'launches', 'us each', 'us a token'), [
        (kernel.name, f'{kernel.launches}', f'{kernel.microseconds / kernel.launches:.1f}',
         f'{kernel.microseconds:,.0f}') for kernel in result.kernels])


def _lanes(result: Result) -> Table:
    return _table(
        ('<activations', '<step', 'KL from fp16', 'largest', '<repeats', '<decode'), [
            (lane.activations, lane.route, f'{lane.kl:.1e}', f'{lane.most_kl:.1e}',
             'yes' if lane.repeats else '[red]no[/]', ', '.join(
                 f'{decode.tokens_per_s:,.0f} tokens/s at {decode.position:,} '
                 f'({result.share_of_limit(decode):.0%} of the limit)' for decode in lane.decode)
             + (f'; {lane.few_blocks_ms:.2f} ms on {lane.few_blocks} multiprocessors'
                if lane.few_blocks_ms else '')) for lane in result.lanes])


def plot(result: Result, path: Path) -> None:
    """
    Draw speeds, and what a token's time is made of, into a PNG.

    Raises
    ------
    ImportError
        Matplotlib is not installed.

    """
    from matplotlib.figure import Figure

    stacks = _stacks(result)
    figure = Figure(
        figsize=(10, 3.4 + 1.7 * len(stacks)), dpi=150, layout='constrained')
    axes = figure.subplots(
        1 + len(stacks), 1, squeeze=False, height_ratios=(2.6, *(1 for _ in stacks)))[:, 0]
    figure.suptitle(
        f'{result.model} on {result.device}, {result.date}', color=INK, fontsize=12, x=0.01,
        ha='left')
    speeds = [
        *((f'prefill {run.tokens:,}', run.tokens_per_s) for run in result.prefill),
        *((f'decode at {run.position:,}', run.tokens_per_s) for run in result.decode)]
    _bars(axes[0], 'tokens a second', speeds)
    for axis, (title, parts) in zip(axes[1:], stacks, strict=True):
        _stack(axis, title, parts)
    figure.savefig(path)


def _stacks(result: Result) -> list[tuple[str, list[tuple[str, float]]]]:
    """Titles, and names and microseconds of what is stacked."""
    stacks = []
    if result.kernels:
        stacks.append(('kernels of a step of launches, measured', sorted(
            ((kernel.name, kernel.microseconds) for kernel in result.kernels),
            key=lambda part: -part[1])))
    stacks += [
        (f'{projection.device}, from a model of it: {projection.tokens_per_s:.0f} tokens/s',
         [(stage.name, stage.microseconds) for stage in projection.stages])
        for projection in result.projections]
    return stacks


def _stack(axis: Any, title: str, parts: list[tuple[str, float]]) -> None:
    """Draw one bar of parts, the smallest of them together, with a legend under it."""
    if len(parts) > len(COLORS):
        rest = parts[len(COLORS) - 1:]
        parts = [*parts[:len(COLORS) - 1], ('other', sum(time for _, time in rest))]
    total, start = sum(time for _, time in parts), 0.0
    for color, (name, time) in zip(COLORS, parts, strict=False):
        axis.barh(
            0, time / 1e3, left=start / 1e3, color=color, edgecolor='white', height=0.6,
            label=name)
        if time > 0.055 * total:
            axis.text((start + time / 2) / 1e3, 0, f'{time / 1e3:.2f}', ha='center', va='center',
                      color='white', fontsize=8)
        start += time
    axis.set_title(f'{title}; {total / 1e3:.2f} ms a token', loc='left', fontsize=10, color=INK)
    axis.set_xlim(0, total / 1e3)
    axis.set_ylim(-0.4, 0.4)
    axis.set_yticks([])
    axis.tick_params(labelsize=8, colors=FAINT)
    axis.spines[['top', 'right', 'left']].set_visible(False)
    axis.spines['bottom'].set_color(FAINT)
    axis.legend(
        loc='upper center', bbox_to_anchor=(0.5, -0.22), ncols=6, frameon=False, fontsize=8,
        handlelength=1, handleheight=1, labelcolor=INK)


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
