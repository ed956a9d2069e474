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

// What a block of the persistent decode kernel holds in shared memory, and how blocks wait for
// each other.

#pragma once

#include "decode_stream.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ void arrive_and_wait(uint32_t *counter, uint32_t goal) {
  uint32_t seen;
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < goal);
}
#else
static void arrive_and_wait(uint32_t *counter, uint32_t goal) {
  for (++*counter; *counter < goal;) shim::yield();
}
#endif

struct Shared {
  Work work;  // its pointers would take sixteen registers
  float sums[WARPS][2][QUAD];  // of quads that a warp shares with the one before and after
  float partial[WARPS];
  float2 best[WARPS];
  float head_largest[WARPS][8], head_total[WARPS][8];
  int last;
  ActivationScale scales[LONGEST / 32];
  // First and last 16 of every 32 activations, a plane for each word; and attention's scratch.
  union {
    int4 words[2 * WORDS][LONGEST / 32];
    struct {
      float query[8][DIM];
      float rows[WARPS][DIM];
    } attention;
  };
};

struct Block {
  Shared *shared;
  Stream stream;
  const Work &work;
  uint32_t barrier_goal;
  float best_logit;
  int best_token;

  __device__ __forceinline__ Block(uint8_t *memory, const Stage *stages, int count)
      : shared(reinterpret_cast<Shared *>(memory + RING_BYTES)),
        stream(stages, count, memory + threadIdx.x / WARP_SIZE * DEPTH * MAX_STEP_BYTES),
        work(shared->work), barrier_goal(0), best_logit(__uint_as_float(0xff800000u)),
        best_token(VOCAB) {}

  __device__ __forceinline__ void grid_barrier() {
    __syncthreads();
    barrier_goal += gridDim.x;
    if (threadIdx.x == 0) arrive_and_wait(work.arrived, barrier_goal);
    __syncthreads();
  }
};
