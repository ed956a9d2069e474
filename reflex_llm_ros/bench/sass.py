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
Instructions a weight of the persistent decode kernel's products, from machine code.

nvdisasm (package ``nvidia-cuda-nvdisasm``) turns a cubin into text; here the innermost loop
that copies weights and multiplies bytes is found in that text, and the way through it that a step
takes which neither ends a quad of rows nor a stage.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
import re
import shutil
import subprocess
import tempfile

from reflex_llm_ros.bench.result import StepCost
from reflex_llm_ros.engine.backends.cuda.packed import FORMATS
from reflex_llm_ros.engine.backends.cuda.sources import kernel_source, KernelSource

PACKAGE = 'nvidia-cuda-nvdisasm'
KERNEL = 'decode_step'
KINDS = ('q4k', 'q6k')
WORDS = (1, 2)
MODEL_HEADER = 'decode_model.cuh'
DOT, COPY = 'IDP', 'LDGSTS'
WEIGHTS_A_DOT = 4
ENDS_A_QUAD = ('SHFL',)
BEGINS_A_STAGE = ('LDG', 'F2I')
INTEGER = frozenset((
    'F2I', 'I2F', 'I2FP', 'IABS', 'IADD3', 'IDP', 'IMAD', 'IMNMX', 'ISETP', 'LEA', 'LOP3', 'PLOP3',
    'POPC', 'PRMT', 'SEL', 'SHF', 'VABSDIFF'))
"""What the integer half of a multiprocessor's lanes executes, at half the rate of the others."""

_LABEL = re.compile(r'^(\.\w+):')
_INSTRUCTION = re.compile(
    r'^\s*/\*[0-9a-f]+\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<name>[A-Z0-9_.]+)(?P<rest>[^;]*);')
_TARGET = re.compile(r'`\((\.\w+)\)')


@dataclass(frozen=True)
class Instruction:
    """One line of machine code: its name without modifiers, whether guarded, where it jumps."""

    name: str
    modifiers: str
    guarded: bool
    target: str


def find_nvdisasm() -> Path | None:
    """Return where nvdisasm is: of the package, or on the path."""
    try:
        for file in metadata.files(PACKAGE) or ():
            if file.name in ('nvdisasm', 'nvdisasm.exe'):
                return Path(str(file.locate()))
    except metadata.PackageNotFoundError:
        pass
    found = shutil.which('nvdisasm')
    return Path(found) if found else None


def disassemble(cubin: bytes, nvdisasm: Path) -> str:
    """
    Return a cubin's machine code as text.

    Raises
    ------
    ValueError
        This nvdisasm cannot read it; the message is the program's own error, which may come
        after warnings.

    """
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [str(nvdisasm), '-c', '-ndf', file.name], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f'it ended with {done.returncode}']
        raise ValueError(
            f'{nvdisasm}: {next((line for line in lines if "error" in line), lines[0])}')
    return done.stdout


def step_cost(text: str, kind: str, words: int) -> StepCost:
    """
    Count what a step of the decode kernel's innermost loop of dot products issues.

    The kernel is compiled for matrices of type ``kind`` alone and for activations of ``words``
    int8 words. Of two ways through the loop the longer is taken.

    Raises
    ------
    ValueError
        There is no such kernel, or no such loop.

    """
    blocks = _blocks(text, KERNEL)
    loop = _loop(blocks)
    names = Counter(instruction.name for instruction in _longest(blocks, loop))
    return StepCost(
        kind, words, names[DOT] * WEIGHTS_A_DOT // words, sum(names.values()),
        sum(count for name, count in names.items() if name in INTEGER))


def source_of(kind: str, words: int) -> KernelSource:
    """Return the decode kernel for one type of matrices and one kind of activations."""
    source = kernel_source('decode')
    header = re.sub(
        r'(#define DECODE_(WORDS|FORMATS)) .*',
        lambda found: f"{found[1]} {words if found[2] == 'WORDS' else FORMATS[kind]}",
        source.headers[MODEL_HEADER])
    return replace(source, headers={**source.headers, MODEL_HEADER: header})


def step_costs(
    compile_source: Callable[[KernelSource], bytes], nvdisasm: Path
) -> tuple[StepCost, ...]:
    """Count for every type and kind that has a bar; ``compile_source`` makes cubins."""
    return tuple(
        step_cost(disassemble(compile_source(source_of(kind, words)), nvdisasm), kind, words)
        for kind in KINDS for words in WORDS)


@dataclass(frozen=True)
class _Block:
    """Instructions that run one after the other, and the blocks that may follow."""

    instructions: tuple[Instruction, ...]
    following: tuple[int, ...]


def _blocks(text: str, kernel: str) -> list[_Block]:
    """Cut a kernel into blocks, in the order of the code."""
    lines = text.split(f'.text.{kernel}:\n')
    if len(lines) != 2:
        raise ValueError(f'no kernel {kernel}')
    cut: list[list[Instruction]] = [[]]
    places: dict[str, int] = {}
    for line in lines[1].splitlines():
        if line.startswith('//----'):
            break
        label = _LABEL.match(line)
        if label:
            if cut[-1]:
                cut.append([])
            places[label[1]] = len(cut) - 1
        found = _INSTRUCTION.match(line)
        if found:
            name, _, modifiers = found['name'].partition('.')
            target = _TARGET.search(found['rest'])
            jumps = name == 'BRA' and target is not None
            cut[-1].append(Instruction(
                name, modifiers, found['guard'] is not None or ' P' in found['rest'].split('`')[0],
                target[1] if jumps and target else ''))
            if jumps or name in ('EXIT', 'RET'):
                cut.append([])
    return [
        _Block(tuple(block), _following(block, index, places)) for index, block in enumerate(cut)]


def _following(block: list[Instruction], index: int, places: dict[str, int]) -> tuple[int, ...]:
    """Return which blocks may run after a block, of a warp whose lanes stay together."""
    if not block:
        return (index + 1,)
    last = block[-1]
    if last.name in ('EXIT', 'RET'):
        return (index + 1,) if last.guarded else ()
    if not last.target or last.modifiers == 'DIV':  # taken when lanes have parted
        return (index + 1,)
    if last.modifiers == 'CONV':  # taken when they have not
        return (places[last.target],)
    return (places[last.target], index + 1) if last.guarded else (places[last.target],)


def _loop(blocks: list[_Block]) -> range:
    """Return the blocks of the smallest loop that copies weights and multiplies with them."""
    loops = [
        range(head, last + 1) for last, block in enumerate(blocks) for head in block.following
        if head <= last]
    for loop in sorted(loops, key=len):
        names = {instruction.name for index in loop for instruction in blocks[index].instructions}
        if DOT in names and COPY in names:
            return loop
    raise ValueError('no loop with dot products')


def _longest(blocks: list[_Block], loop: range) -> list[Instruction]:
    """Return the longest way through a loop that avoids the ends of quads and stages."""
    ways: dict[int, list[Instruction]] = {}

    def avoided(index: int) -> bool:
        return any(instruction.name in ENDS_A_QUAD + BEGINS_A_STAGE
                   for instruction in blocks[index].instructions)

    for index in reversed(loop):
        if avoided(index):
            continue
        following = blocks[index].following
        ends = [ways[place] for place in following if place in ways and place > index]
        if loop.start in following:
            ends.append([])
        if ends:
            ways[index] = [*blocks[index].instructions, *max(ends, key=len)]
    if not any(instruction.name == DOT for instruction in ways.get(loop.start, ())):
        raise ValueError('no way through the loop of dot products')
    return ways[loop.start]
