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

// What a warp multiplies of a stage, the same in every layer: steps, of its block's quads from a
// step of a quad on.
struct Turn {
  int count, quad, column;
};

// The last quad of a warp's turn, where it goes on in other warps: those before `end`.
struct Joint {
  int quad, end;
};

__device__ __forceinline__ void divide_steps(Turn &turn, Joint &joint, int kind, int warp) {
  const int steps = steps_of(kind), total = Share(quads_of(kind)).count * steps;
  const int begin = first_step(total, warp), end = first_step(total, warp + 1);
  turn = {end - begin, begin / steps, begin % steps};
  joint = {begin < end ? (end - 1) / steps : 0, 0};
  const int quad_begin = joint.quad * steps, quad_end = quad_begin + steps;
  if (begin == end || quad_begin < begin || quad_end == end) return;
  for (joint.end = warp + 1; first_step(total, joint.end) < quad_end;) ++joint.end;
}

// Rows of attention that fit where the words are, a warp's of one head at least.
constexpr int WORD_BYTES = 2 * WORDS * (LONGEST / 32) * 16;
constexpr int QUERY_BYTES = QUERY_COLUMNS * COLUMN_HALVES * 2 + 2 * DIM * 4;
constexpr int FREE_ROWS = (WORD_BYTES - QUERY_BYTES) / (DIM * 4);
constexpr int ROW_SLOTS = FREE_ROWS > WARPS ? FREE_ROWS : WARPS;

struct Shared {
  ActivationScale scales[LONGEST / 32];
  // First and last 16 of every 32 activations, a plane for each word; and attention's scratch.
  union {
    int4 words[2 * WORDS][LONGEST / 32];
    struct {
      half_t queries[QUERY_COLUMNS][COLUMN_HALVES];
      float newest_key[DIM], newest_value[DIM], rows[ROW_SLOTS][DIM];
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
  Layer layer;  // whose attention comes next
  const float *next_norm;  // before its queries, or the head
  Work work;  // its pointers would take eighteen registers
#ifdef DECODE_CLOCKS
  uint64_t *clock_sums;  // this block's
  uint64_t last_lap;
  int clocked;  // the kind of stage
#endif
};

// Steps of a warp's ring, which lies before that: the most that fit. Where the least do not, the
// kernel cannot be launched.
constexpr int MOST_DEPTH = 10, LEAST_DEPTH = 3;
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

  __device__ __forceinline__ Block(uint8_t *memory, const Stage *stages, int count)
      : shared(reinterpret_cast<Shared *>(memory + RING_BYTES)),
        stream(stages, count, memory + threadIdx.x / WARP_SIZE * DEPTH * MAX_STEP_BYTES),
        work(shared->work), tag(0), norm(1.0f), best_logit(__uint_as_float(0xff800000u)),
        best_token(VOCAB) {}
};
