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

"""What a probe of a device finds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceInfo:
    """
    ``capability`` is (major, minor); ``integrated`` devices share the CPU's memory.

    ``shared_bytes`` is the most shared memory that a block can be given.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    integrated: bool
    total_bytes: int
    shared_bytes: int = 48 << 10
