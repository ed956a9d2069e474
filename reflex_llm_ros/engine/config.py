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

"""What an engine is built from and what a request may ask of the sampler."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

ENVIRONMENT_PREFIX = 'JLLM_FAST_'
ENVIRONMENT_NAMES = {'q4k_uint32_loads': 'JLLM_Q4K_UINT32_LOADS'}


def environment_variable(switch: str) -> str:
    """Return the environment variable that turns a switch off when it is ``0``."""
    return ENVIRONMENT_NAMES.get(switch, ENVIRONMENT_PREFIX + switch.upper())


@dataclass(frozen=True)
class FastPaths:
    """
    Which operations of the CUDA backend run on their kernels.

    Off means that the operation runs on the reference implementation while the others stay
    fast, so that a wrong token can be bisected. ``q4k_uint32_loads`` off reads Q4_K weights
    byte by byte; ``cuda_graph`` off launches every kernel of a decode step by itself.
    """

    gemv: bool = True
    embd: bool = True
    norm: bool = True
    attn: bool = True
    q4k_uint32_loads: bool = True
    cuda_graph: bool = True

    def overridden(self, environment: Mapping[str, str]) -> 'FastPaths':
        """
        Return these switches with those off whose environment variable is ``0``.

        The variables are ``JLLM_FAST_GEMV``, ``JLLM_FAST_EMBD``, ``JLLM_FAST_NORM``,
        ``JLLM_FAST_ATTN``, ``JLLM_FAST_CUDA_GRAPH`` and ``JLLM_Q4K_UINT32_LOADS``.
        """
        switches = {}
        for switch in fields(self):
            off = environment.get(environment_variable(switch.name)) == '0'
            switches[switch.name] = getattr(self, switch.name) and not off
        return FastPaths(**switches)


@dataclass(frozen=True)
class EngineConfig:
    """
    Everything that is fixed while a model is loaded.

    Attributes
    ----------
    model_path
        Path of the GGUF file.
    chat_template_file
        Jinja file to use in place of the template in the GGUF; empty for the file's own.
    backend
        ``auto``, ``cuda`` or ``cpu``.
    context_length
        Positions that the KV cache holds; 0 for as many as fit, at most the model's.
    kv_cache
        ``f16`` or ``int8``. (The CPU backend holds ``f16`` caches as float32.)
    memory_limit_mb
        Upper bound in MiB for weights, cache and scratch together; 0 for free memory.
    prefill_chunk
        Tokens a prefill step takes at once; cancellation is looked at between chunks.
    device
        CUDA device ordinal.
    weights
        Where the CUDA backend reads weights: ``mapped`` from the file's memory map,
        ``device`` from a copy in device memory, ``packed`` from a copy that is laid out for
        the persistent decode kernel, ``planes`` from a copy with Q8_0 words and scales apart,
        ``auto`` packed where that kernel can run the model, else planes where there is Q8_0,
        else a copy, and mapped where no copy fits.
    q8_activations
        Activations of a model whose matrices are all Q8_0, on a GPU: ``a8`` int8, ``a8x2`` two
        int8 words, ``f32``. Such a model is split into planes where ``weights`` is ``auto``
        and it is not packed.
    gemv_activations
        Activations of a decode step, on a GPU: ``a8`` int8 or ``a8x2`` two int8 words in the
        persistent kernel, where that can run the model; ``fp16`` in the kernels that read the
        file's blocks. A file that mixes Q8_0 with other types runs in the persistent kernel
        where ``q8_activations`` says the same.
    q8_variant
        Kernels of a Q8_0 model in planes, among those of equal results: ``auto`` by a short
        measurement that is kept for each device, or ``u1``, ``u2``, ``u4`` (steps in flight),
        ``r2`` (two rows a warp) wherever a kernel has that form.
    debug_probe
        Compare the residual stream after each layer with the oracle's when a model has been
        loaded on a GPU, and tell it through the progress.
    fast_paths
        Switches of the CUDA backend.

    """

    model_path: str
    chat_template_file: str = ''
    backend: str = 'auto'
    context_length: int = 0
    kv_cache: str = 'f16'
    memory_limit_mb: int = 0
    prefill_chunk: int = 64
    device: int = 0
    weights: str = 'auto'
    q8_activations: str = 'a8x2'
    gemv_activations: str = 'a8x2'
    q8_variant: str = 'auto'
    debug_probe: bool = False
    fast_paths: FastPaths = field(default_factory=FastPaths)


@dataclass(frozen=True)
class SamplingParams:
    """
    How the next token is chosen.

    Attributes
    ----------
    temperature
        0 takes the likeliest token (greedy).
    top_k
        Keep the k likeliest tokens; 0 keeps all.
    top_p
        Keep the smallest set whose probability reaches p; 1 keeps all.
    min_p
        Drop tokens less likely than min_p times the likeliest; 0 keeps all.
    repeat_penalty
        Divide positive and multiply negative logits of the last 64 tokens; 1 is off.
    seed
        Same seed, same text; None draws a fresh one.
    max_tokens
        Upper bound on generated tokens; 0 for as many as the context holds.

    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 512
