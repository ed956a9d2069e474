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

"""What a model needs in memory, against what is free: computed before it is allocated."""

from collections.abc import Iterator
import ctypes
from dataclasses import dataclass
from pathlib import Path
import re

from reflex_llm_ros.engine.errors import OutOfMemoryError
from reflex_llm_ros.engine.gguf_config import ModelConfig

MEBIBYTE = 1 << 20

LEAST_CONTEXT = 256
"""Positions below which an automatic context is refused as too short to answer in."""

RESERVED_PART = 16
"""One part in so many of the free memory is left to the rest of the machine."""

ELEMENT_BYTES = {'int8': 1, 'f16': 2, 'float32': 4, 'float64': 8}
INT8_SCALE_BYTES = 4


@dataclass(frozen=True)
class MemoryReport:
    """Bytes by purpose, and bytes that the device has free."""

    weights: int
    kv_cache: int
    scratch: int
    free: int


def kv_bytes_per_position(config: ModelConfig, element: str) -> int:
    """
    Bytes of keys and values of one position in all layers.

    ``element`` is a key of ``ELEMENT_BYTES``; ``int8`` has a float32 scale for each head's
    key and value.
    """
    row = config.head_dim * ELEMENT_BYTES[element]
    if element == 'int8':
        row += INT8_SCALE_BYTES
    return 2 * config.block_count * config.head_count_kv * row


def plan(
    config: ModelConfig,
    *,
    weights: int,
    position_bytes: int,
    scratch: int,
    free: int,
    context_length: int = 0,
    limit_mb: int = 0,
) -> int:
    """
    Decide how many positions the KV cache holds.

    Parameters
    ----------
    config
        The model; its trained context bounds an automatic one.
    weights
        Bytes that the backend will hold for the weights.
    position_bytes
        Bytes for each position: its keys and values, and scratch that grows with them.
    scratch
        Bytes besides, however long the context.
    free
        Bytes that are free where weights and cache go. A sixteenth is left alone.
    context_length
        Positions asked for; 0 for as many as fit, at most the model's.
    limit_mb
        Upper bound in MiB for all of it together; 0 for the free memory alone.

    Returns
    -------
    int
        Positions, 1 or more.

    Raises
    ------
    OutOfMemoryError
        It does not fit: one line with what is needed, what there is and what to change.

    """
    usable = free - free // RESERVED_PART
    limited = 0 < limit_mb * MEBIBYTE < usable
    budget = limit_mb * MEBIBYTE if limited else usable
    there_is = (
        f'context.memory_limit_mb allows {limit_mb} MiB' if limited
        else f'{usable // MEBIBYTE} MiB of {free // MEBIBYTE} MiB free memory may be used')
    more_room = 'raise context.memory_limit_mb' if limited else 'stop other programs'

    fitting = (budget - weights - scratch) // position_bytes
    least = context_length or min(LEAST_CONTEXT, config.context_length)
    if fitting >= least:
        return context_length or min(fitting, config.context_length)
    needed = weights + scratch + least * position_bytes
    advice = f'use a smaller or more quantized model, or {more_room}'
    if fitting >= min(LEAST_CONTEXT, least):
        advice = (
            f'set context.length to {fitting} or less, context.kv_cache to int8, '
            f'or {more_room}')
    raise OutOfMemoryError(
        f'a context of {least} needs {_mib(needed)} MiB (weights {_mib(weights)}, cache '
        f'{_mib(least * position_bytes)}, scratch {_mib(scratch)}) but {there_is}; {advice}')


def _mib(size: int) -> int:
    """Mebibytes, rounded up: a need is never shown smaller than it is."""
    return -(-size // MEBIBYTE)


def host_free_bytes(root: Path = Path('/')) -> int:
    """
    Bytes of host memory that a process may take without pushing others out.

    The kernel's ``MemAvailable``, or less where a control group (version 1 or 2, of the
    process or around it) leaves less. Page cache that can be dropped counts as free.

    Parameters
    ----------
    root
        Where ``proc`` and ``sys`` are.

    """
    meminfo = (root / 'proc/meminfo').read_text(encoding='ascii')
    found = re.search(r'^MemAvailable:\s*(\d+) kB', meminfo, re.MULTILINE)
    free = int(found.group(1)) * 1024 if found else 0
    return max(0, min([free, *_cgroup_headrooms(root)]))


def _cgroup_headrooms(root: Path) -> Iterator[int]:
    """Bytes that each limited control group around the process has left."""
    try:
        lines = (root / 'proc/self/cgroup').read_text(encoding='utf-8').splitlines()
    except OSError:
        return
    mount = root / 'sys/fs/cgroup'
    for line in lines:
        _, controllers, path = line.split(':', 2)
        if not controllers:
            names = ('memory.max', 'memory.current', 'inactive_file')
            base = mount
        elif 'memory' in controllers.split(','):
            names = ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file')
            base = mount / 'memory'
        else:
            continue
        group = base / path.lstrip('/')
        # A container may see its own group as the mount's root, under the path outside.
        for directory in (group, *group.parents):
            headroom = _headroom(directory, *names)
            if headroom is not None:
                yield headroom
            if directory == base:
                break


def _headroom(directory: Path, limit: str, usage: str, droppable: str) -> int | None:
    """Bytes left in one control group, None where it has no limit."""
    try:
        allowed = int((directory / limit).read_text(encoding='ascii'))
        used = int((directory / usage).read_text(encoding='ascii'))
        statistics = (directory / 'memory.stat').read_text(encoding='ascii')
    except (OSError, ValueError):
        return None
    found = re.search(rf'^{droppable} (\d+)$', statistics, re.MULTILINE)
    return allowed - used + (int(found.group(1)) if found else 0)


def return_freed_memory() -> None:
    """
    Give memory that was freed back to the system.

    glibc keeps what a thread has freed in that thread's arena; a process that loads a model
    on a new thread each time would seem to grow until there are eight arenas a core.
    """
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
    if trim is not None:
        trim(0)
