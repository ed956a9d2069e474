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

// What a block of the persistent decode kernel holds in shared memory and in registers.

#pragma once

#include "decode_exchange.cuh"
#include "decode_stream.cuh"

// The thread's number, read anew: addresses made of it are not kept in registers over all stages.
#ifdef __CUDACC__
__device__ __forceinline__ uint32_t thread_number() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}
#else
static uint32_t thread_number() { return threadIdx.x; }
#endif

struct Shared {
  // And of attention, by parts of the cache and pairs of elements: largest score, sum of weights,
  // two weighted values.
  union {
    ActivationScale scales[LONGEST / 32];
    float4 parts[SHARED_HEADS * DIM / 2 + PARTS];
  };
  // First and last 16 of every 32 activations, a plane for each word; and attention's scratch.
  union {
    int4 words[2 * WORDS][LONGEST / 32];
    struct {
      half_t queries[QUERY_COLUMNS][COLUMN_HALVES];
      float newest_key[DIM], newest_value[DIM], rows[SHARED_HEADS * WARPS][DIM];
    } attention;
  };
  // By kind of stage, of quads that a warp shares with the one before and after.
  float sums[KINDS][WARPS][2][QUAD];
  Turn turns[KINDS][WARPS];
  Joint joints[KINDS][WARPS];
  float squares[WARPS];  // of the activations that a warp quantized
  float residual[OWN_QUADS * QUAD];  // the rows of the residual stream that this block adds to
  float2 best[WARPS];
  float2 rotation[DIM / 2];  // sine and cosine, of the step's position
  // Of each head, by attention.
  float head_largest[WARPS + 1][SHARED_HEADS], head_total[WARPS][SHARED_HEADS];
  int last;
  // Read once: a trip to global memory would keep every warp waiting in every stage.
  Stage stages[STAGES];
  Layer layers[LAYERS];
  Work work;
#ifdef DECODE_CLOCKS
  uint64_t *clock_sums;  // this block's
  uint64_t clock_start, last_lap;
  int clocked;  // the kind of stage
#endif
};

// Steps of a warp's ring, which lies before that: as many as hide the latency of memory. What a
// block leaves of a multiprocessor's shared memory is L1 cache, which rows of the KV cache need on
// their way: with nine steps attention to 16,000 positions took a fifth longer. Where the least do
// not fit, the kernel cannot be launched.
constexpr int MOST_DEPTH = 4, LEAST_DEPTH = 3;
constexpr int FITTING = (DECODE_SHARED_BYTES - int(sizeof(Shared))) / (WARPS * MAX_STEP_BYTES);
constexpr int DEPTH = FITTING > MOST_DEPTH    ? MOST_DEPTH
                      : FITTING < LEAST_DEPTH ? LEAST_DEPTH
                                              : FITTING;
constexpr int RING_BYTES = WARPS * DEPTH * MAX_STEP_BYTES;

struct Block {
  Shared *shared;
  Stream<DEPTH> stream;
  const Work &work;
  uint32_t tag;  // of the layer
  float norm;    // what sums of the stage are to be multiplied with
  float best_logit;
  int best_token;

  // Begins to copy weights of the first `stages`: the shared tables and turns have been set.
  __device__ __forceinline__ Block(uint8_t *memory, int stages)
      : shared(reinterpret_cast<Shared *>(memory + RING_BYTES)),
        stream(shared->stages, shared->turns, stages,
               memory + threadIdx.x / WARP_SIZE * DEPTH * MAX_STEP_BYTES),
        work(shared->work), tag(0), norm(1.0f), best_logit(__uint_as_float(0xff800000u)),
        best_token(VOCAB) {}
};
