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

"""A benchmark result for people: tables in the terminal, a plot."""

from pathlib import Path

from reflex_llm_ros.bench.result import Result
from rich import box
from rich.console import Console, Group
from rich.table import Table

INK = '#24292f'
BLUE = '#2f6fab'


def tables(result: Result) -> Group:
    """Return what the terminal shows."""
    return Group(_users_view(result), *([_kernels(result)] if result.kernels else []))


def print_report(result: Result, console: Console) -> None:
    """Print the run."""
    console.print(f'[bold]{result.model}[/]  {result.file_bytes / 1e9:.2f} GB  '
                  f'{result.backend}: {result.device}  {result.date}')
    if result.copy_gb_per_s:
        console.print(f'copy bandwidth {result.copy_gb_per_s:,.0f} GB/s, '
                      f'host share of a token {result.host_share:.1%}')
    console.print(tables(result))


def _users_view(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ('', 'tokens', 'tokens/s', 'of bandwidth', 'first token'):
        table.add_column(heading, justify='left' if not heading else 'right')
    for prefill in result.prefill:
        table.add_row('prefill', f'{prefill.tokens}', f'{prefill.tokens_per_s:,.1f}', '',
                      f'{prefill.ttft_ms:,.1f} ms')
    for decode in result.decode:
        share = result.bandwidth_share(decode)
        table.add_row('decode', f'at {decode.position}', f'{decode.tokens_per_s:,.1f}',
                      f'{share:.1%}' if share else '', '')
    return table


def _kernels(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ('kernel', 'role', 'us', 'GB/s', 'of copy', 'ms a token'):
        table.add_column(heading, justify='left' if heading in ('kernel', 'role') else 'right')
    for kernel in result.kernels:
        table.add_row(
            kernel.name, kernel.role, f'{kernel.microseconds:.1f}', f'{kernel.gb_per_s:,.0f}',
            f'{kernel.share:.1%}', f'{kernel.microseconds * kernel.launches / 1000:.3f}')
    return table


def plot(result: Result, path: Path) -> None:
    """
    Draw speeds, and each kernel's bandwidth against the copy's, into a PNG.

    Raises
    ------
    ImportError
        Matplotlib is not installed.

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6 if result.kernels else 3.4), dpi=150, layout='constrained')
    axes = figure.subplots(1, 2 if result.kernels else 1, squeeze=False)[0]
    figure.suptitle(
        f'{result.model} on {result.device}, {result.date}', color=INK, fontsize=12, x=0.01,
        ha='left')
    speeds = [
        *((f'prefill {run.tokens}', run.tokens_per_s) for run in result.prefill),
        *((f'decode at {run.position}', run.tokens_per_s) for run in result.decode)]
    _bars(axes[0], 'tokens a second', speeds, '{:,.0f}')
    if result.kernels:
        _bars(axes[1], f'GB/s of weights, copy: {result.copy_gb_per_s:,.0f}', [
            (f'{kernel.role}\n{kernel.name}', kernel.gb_per_s) for kernel in result.kernels],
            '{:,.0f}')
        axes[1].axvline(result.copy_gb_per_s, color=INK, linewidth=1, linestyle=':')
    figure.savefig(path)


def _bars(axis: object, title: str, rows: list[tuple[str, float]], label: str) -> None:
    """Draw horizontal bars with their values, the first row on top."""
    names, values = zip(*reversed(rows), strict=True)
    bars = axis.barh(names, values, color=BLUE, height=0.62)  # type: ignore[attr-defined]
    axis.bar_label(  # type: ignore[attr-defined]
        bars, labels=[label.format(value) for value in values], padding=4, color=INK, fontsize=9)
    axis.set_title(title, loc='left', fontsize=10, color=INK)  # type: ignore[attr-defined]
    axis.margins(x=0.18)  # type: ignore[attr-defined]
    axis.spines[['top', 'right', 'bottom']].set_visible(False)  # type: ignore[attr-defined]
    axis.tick_params(left=False, bottom=False, labelbottom=False)  # type: ignore[attr-defined]
