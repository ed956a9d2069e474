// Copyright 2026 The reflex_llm_ros authors
//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.

// Where the cycles of the persistent decode kernel go. Compiled with DECODE_CLOCKS, each block's
// first thread adds the cycles since its last lap to a sum, by kind of stage and phase, which
// changes no result; else nothing of this is left. Products of values count as those of queries
// and keys, which no barrier parts from them; VALUE is attention.

#pragma once

#include "decode_block.cuh"

enum Phase { WAIT, QUANTIZE, MULTIPLY, FINISH, PHASES };

#ifdef DECODE_CLOCKS
#include "clock.cuh"

// sums: for each block the cycles of KINDS, PHASES, and then the nanoseconds of all of them.
__device__ __forceinline__ void start_clock(Shared *shared, uint64_t *sums) {
  if (thread_number() != 0) return;
  shared->clock_sums = sums + blockIdx.x * (KINDS * PHASES + 1);
  shared->clock_start = nanoseconds();
  shared->last_lap = cycles();
}

__device__ __forceinline__ void end_clock(Shared *shared) {
  if (thread_number() != 0) return;
  atomicAdd(shared->clock_sums + KINDS * PHASES, nanoseconds() - shared->clock_start);
}

__device__ __forceinline__ void clock_products(Shared *shared, int kind) {
  if (thread_number() == 0) shared->clocked = kind == VALUE ? int(QUERY_KEY) : kind;
}

__device__ __forceinline__ void clock_attention(Shared *shared) {
  if (thread_number() == 0) shared->clocked = VALUE;
}

__device__ __forceinline__ void lap(Shared *shared, Phase phase) {
  if (thread_number() == 0) {
    const uint64_t now = cycles();
    atomicAdd(shared->clock_sums + shared->clocked * PHASES + phase, now - shared->last_lap);
    shared->last_lap = now;
  }
  __syncwarp();  // else the lanes behind would make shuffles slow, which the plain kernel's are not
}
#else
__device__ __forceinline__ void clock_products(Shared *, int) {}
__device__ __forceinline__ void clock_attention(Shared *) {}
__device__ __forceinline__ void lap(Shared *, Phase) {}
__device__ __forceinline__ void end_clock(Shared *) {}
#endif
