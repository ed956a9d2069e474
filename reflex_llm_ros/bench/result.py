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

"""What a benchmark run finds."""

from dataclasses import asdict, dataclass
import json


@dataclass(frozen=True)
class Decode:
    """Single-stream decode from ``position`` on."""

    position: int
    tokens_per_s: float


@dataclass(frozen=True)
class Prefill:
    """A prompt of ``tokens`` into an empty cache; ``ttft_ms`` until its first answer token."""

    tokens: int
    tokens_per_s: float
    ttft_ms: float


@dataclass(frozen=True)
class Kernel:
    """
    One kernel over all layers' weights of one role.

    ``microseconds`` a launch; ``gb_per_s`` of weights read; ``share`` of the measured copy
    bandwidth; ``launches`` in a decode step.
    """

    name: str
    role: str
    microseconds: float
    gb_per_s: float
    share: float
    launches: int


@dataclass(frozen=True)
class Result:
    """
    A whole run; bandwidth in GB/s is 0 and lists are empty where a backend has none.

    ``read_bytes`` are the weights that a decode step reads, as they lie in the file.
    """

    date: str
    model: str
    file_bytes: int
    read_bytes: int
    backend: str
    device: str
    copy_gb_per_s: float
    host_share: float
    decode: tuple[Decode, ...]
    prefill: tuple[Prefill, ...]
    kernels: tuple[Kernel, ...]

    def to_json(self) -> str:
        """Return the run as indented JSON."""
        return json.dumps(asdict(self), indent=2)

    def bandwidth_share(self, decode: Decode) -> float:
        """Weights read a second in decode, as a share of the copy bandwidth; 0 if unknown."""
        if not self.copy_gb_per_s:
            return 0.0
        return self.read_bytes * decode.tokens_per_s / (self.copy_gb_per_s * 1e9)
