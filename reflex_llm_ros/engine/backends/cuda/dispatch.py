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

"""Which variant of an operation runs: the fastest that is on and has not failed."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
import logging

from reflex_llm_ros.engine.errors import DeviceError

REFERENCE = 'reference'
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """One way to run an operation; ``name`` is the kernel's, or ``reference`` for the host."""

    name: str
    run: Callable[[], None]


class Dispatcher:
    """
    Runs operations, and steps down to the next simpler variant when a launch fails.

    A variant that failed once is not tried again: its failure is logged when it happens and
    counted in ``fallbacks``.
    """

    def __init__(self) -> None:
        self.fallbacks: Counter[str] = Counter()
        self.used_reference: set[str] = set()
        self._broken: set[str] = set()

    def run(self, operation: str, variants: Sequence[Variant]) -> None:
        """Run the first of ``variants`` (fastest first) that works."""
        for variant in variants:
            if variant.name in self._broken:
                continue
            try:
                variant.run()
            except DeviceError as error:
                if variant.name == REFERENCE:
                    raise
                self.give_up(operation, variant.name, error)
                continue
            if variant.name == REFERENCE:
                self.used_reference.add(operation)
            return
        raise DeviceError(f'no variant of {operation} works on this device')

    def is_broken(self, name: str) -> bool:
        """Whether a variant has failed."""
        return name in self._broken

    def give_up(self, operation: str, name: str, error: Exception) -> None:
        """Never try a variant again: log it and count it."""
        self._broken.add(name)
        self.fallbacks[operation] += 1
        log.warning(
            '%s failed (%s): %s takes a simpler path from now on', name, error, operation)
