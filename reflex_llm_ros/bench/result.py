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
    """
    Single-stream decode from ``position`` on.

    ``step_ms`` is the device's time alone, 0 where it was not measured.
    """

    position: int
    tokens_per_s: float
    step_ms: float = 0.0


@dataclass(frozen=True)
class Prefill:
    """A prompt of ``tokens`` into an empty cache; ``ttft_ms`` until its first answer token."""

    tokens: int
    tokens_per_s: float
    ttft_ms: float


@dataclass(frozen=True)
class Kernel:
    """
    One kernel of a decode step: all its launches, one after the other, and their time.

    ``read_bytes`` are the weights that they read.
    """

    name: str
    launches: int
    microseconds: float
    read_bytes: int = 0


@dataclass(frozen=True)
class Phases:
    """
    Microseconds of a part of the persistent kernel in all layers, of an average block.

    ``read_bytes`` are the weights, or the cache's rows, that all blocks read in it.
    """

    name: str
    wait: float
    quantize: float
    multiply: float
    finish: float
    read_bytes: int = 0

    @property
    def microseconds(self) -> float:
        """The phases' sum."""
        return self.wait + self.quantize + self.multiply + self.finish


@dataclass(frozen=True)
class ClockedStep:
    """
    Where the time of a step of the persistent kernel goes, at ``position``.

    ``step_us`` is the time of a step as it decodes, ``clocked_us`` that of one whose blocks count
    their cycles; ``parts`` are of the latter, and ``clock_ghz`` is its clock.
    """

    position: int
    step_us: float
    clocked_us: float
    parts: tuple[Phases, ...]
    clock_ghz: float = 0.0

    @property
    def launch_us(self) -> float:
        """What no part has: the launch, and what a block does before its first stage."""
        return max(0.0, self.clocked_us - sum(part.microseconds for part in self.parts))


@dataclass(frozen=True)
class Load:
    """
    Seconds of loading the model, and of it of bringing the weights to their place.

    ``read_s`` is what read() takes for the whole file, read before.
    """

    seconds: float
    weights_s: float
    read_s: float

    @property
    def share_of_read(self) -> float:
        """Return the weights' speed as a share of read()'s."""
        return self.read_s / self.weights_s


@dataclass(frozen=True)
class Lane:
    """
    The decode step with one kind of activations.

    ``route`` is the class that runs it; ``kl`` and ``most_kl`` the mean and largest KL divergence
    in nats from the step with fp16 activations; ``repeats`` whether two runs gave the same ids;
    ``few_blocks_ms`` the time of a step on ``few_blocks`` multiprocessors, 0 if not measured.
    """

    activations: str
    route: str
    kl: float
    most_kl: float
    repeats: bool
    decode: tuple[Decode, ...]
    few_blocks: int = 0
    few_blocks_ms: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """What a warp issues for a step of a matrix; ``weights`` are those of one lane."""

    kernel_type: str
    words: int
    weights: int
    instructions: int
    integer: int

    @property
    def a_weight(self) -> float:
        """Instructions a weight."""
        return self.instructions / self.weights


@dataclass(frozen=True)
class Stage:
    """Time of a part of a decode step on a device that was not measured, from a model of it."""

    name: str
    read_bytes: int
    memory_us: float
    issue_us: float
    waits_us: float

    @property
    def microseconds(self) -> float:
        """The slower of memory and arithmetic, and the waits."""
        return max(self.memory_us, self.issue_us) + self.waits_us


@dataclass(frozen=True)
class Projection:
    """A decode step on another device."""

    device: str
    assumptions: str
    stages: tuple[Stage, ...]

    @property
    def tokens_per_s(self) -> float:
        """One over the sum of the stages."""
        return 1e6 / sum(stage.microseconds for stage in self.stages)


@dataclass(frozen=True)
class Bar:
    """Something to reach: what was measured beside it, and by which command."""

    what: str
    measured: str
    bar: str
    met: bool
    command: str


@dataclass(frozen=True)
class Result:
    """
    A whole run; rates in GB/s are 0 and tuples empty where a backend has none.

    ``weight_bytes`` are those that a decode step reads, as they lie in the file, and
    ``position_bytes`` those of a position's keys and values; ``clock_ghz`` is the clock of the
    multiprocessors; ``types`` are the matrices', those with most bytes first.
    """

    date: str
    model: str
    size: str
    file_bytes: int
    weight_bytes: int
    position_bytes: int
    backend: str
    device: str
    choices: str
    copy_gb_per_s: float
    read_gb_per_s: float
    clock_ghz: float
    host_share: float
    decode: tuple[Decode, ...]
    prefill: tuple[Prefill, ...]
    kernels: tuple[Kernel, ...]
    lanes: tuple[Lane, ...] = ()
    costs: tuple[StepCost, ...] = ()
    projections: tuple[Projection, ...] = ()
    bars: tuple[Bar, ...] = ()
    clocked: tuple[ClockedStep, ...] = ()
    load: Load | None = None
    types: str = ''

    def to_json(self) -> str:
        """Return the run as indented JSON."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> 'Result':
        """Read a run that ``to_json`` wrote."""
        run = json.loads(text)
        run.setdefault('clocked', ())  # earlier runs have none
        for name, kind in (('decode', Decode), ('prefill', Prefill), ('kernels', Kernel),
                           ('lanes', Lane), ('costs', StepCost), ('projections', Projection),
                           ('bars', Bar), ('clocked', ClockedStep)):
            for entry in run[name]:
                for part, of in (('decode', Decode), ('stages', Stage), ('parts', Phases)):
                    if part in entry:
                        entry[part] = tuple(of(**fields) for fields in entry[part])
            run[name] = tuple(kind(**entry) for entry in run[name])
        if run.get('load'):
            run['load'] = Load(**run['load'])
        return cls(**run)

    def share_of_copy(self, read_bytes: int, microseconds: float) -> float:
        """Return a rate as a share of the copy bandwidth; 0 if one of them is unknown."""
        if not (self.copy_gb_per_s and microseconds):
            return 0.0
        return read_bytes / microseconds / 1e3 / self.copy_gb_per_s

    def limit_ms(self, position: int) -> float:
        """Return the time of reading a token's weights and cache once; 0 if unknown."""
        if not self.read_gb_per_s:
            return 0.0
        return (self.weight_bytes + position * self.position_bytes) / self.read_gb_per_s / 1e6

    def share_of_limit(self, decode: Decode) -> float:
        """Return the speed as a share of the limit's; 0 if unknown."""
        return self.limit_ms(decode.position) * decode.tokens_per_s / 1e3
