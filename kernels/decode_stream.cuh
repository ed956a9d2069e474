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

// Weights of the persistent decode kernel on their way: each warp copies its own steps of all
// stages into a ring in shared memory, DEPTH - 1 steps ahead of those that it multiplies.

#pragma once

#include "decode_model.cuh"
#include "decode_once.cuh"

// Quads of a stage that this block multiplies.
struct Share {
  int first, count;

  __device__ __forceinline__ explicit Share(int quads) {
    first = int(uint32_t(quads) * blockIdx.x / BLOCKS);
    count = int(uint32_t(quads) * (blockIdx.x + 1) / BLOCKS) - first;
  }
};

// Steps of the block's share that begin with a warp.
__device__ __forceinline__ int first_step(int steps, int warp) {
  return int(uint32_t(steps) * warp / WARPS);
}

// What a warp multiplies of a stage, the same in every layer: steps, from one of the matrix on,
// which is a step of a quad of its block's.
struct alignas(16) Turn {
  int count, first, quad, column;
};

// The last quad of a warp's turn, where it goes on in other warps: those before `end`.
struct Joint {
  int quad, end;
};

__device__ __forceinline__ void divide_steps(Turn &turn, Joint &joint, int kind, int warp) {
  const Share share(quads_of(kind));
  const int steps = steps_of(kind), total = share.count * steps;
  const int begin = first_step(total, warp), end = first_step(total, warp + 1);
  turn = {end - begin, share.first * steps + begin, begin / steps, begin % steps};
  joint = {begin < end ? (end - 1) / steps : 0, 0};
  const int quad_begin = joint.quad * steps, quad_end = quad_begin + steps;
  if (begin == end || quad_begin < begin || quad_end == end) return;
  for (joint.end = warp + 1; first_step(total, joint.end) < quad_end;) ++joint.end;
}

constexpr int COPY_BYTES = WARP_SIZE * 16;  // that a warp copies at once

// Copies this warp's steps of all stages, one after the other, into its ring.
template <int DEPTH>
struct Stream {
  const Stage *stages;
  const Turn (*turns)[WARPS];  // of kinds
  int stage, stage_count, left, step_bytes;
  int slot;  // in bytes: the one to be written next
  const uint8_t *from;
  uint8_t *ring;

  __device__ __forceinline__ Stream(const Stage *all, const Turn (*all_turns)[WARPS], int count,
                                    uint8_t *warp_ring)
      : stages(all), turns(all_turns), stage(-1), stage_count(count), left(0), step_bytes(0),
        slot(0), from(nullptr), ring(warp_ring) {
    for (int i = 0; i < DEPTH - 1; ++i) {
      ready();
      copy_step();
      --left;
    }
  }

  // How many steps copy_step can copy before it has to be asked again; `left` is the caller's to
  // count down. Past the last stage it copies nothing.
  __device__ __forceinline__ int ready() {
    while (left == 0) {
      if (++stage == stage_count) {
        left = 1 << 30;
        step_bytes = 0;
        break;
      }
      const Stage next = stages[stage];
      const Turn turn = turns[kind_of(stage)][threadIdx.x / WARP_SIZE];
      left = turn.count;
      step_bytes = next.step_bytes;
      from = next.weights + int64_t(turn.first) * step_bytes;
    }
    return left;
  }

  // The step that was copied DEPTH - 1 copies ago: the slot after the one to be written.
  __device__ __forceinline__ const uint8_t *oldest() const { return ring + following(slot); }

  __device__ __forceinline__ void copy_step() {
    const int lane = threadIdx.x % WARP_SIZE;
    uint8_t *const to = ring + slot + lane * 16;
    const uint8_t *const source = from + lane * 16;
#pragma unroll
    for (int at = 0; at < MAX_STEP_BYTES; at += COPY_BYTES) {
      copy_async_if(at + lane * 16 < step_bytes, to + at, source + at);
    }
    end_copy_group();
    from += step_bytes;
    slot = following(slot);
  }

  static __device__ __forceinline__ int following(int slot) {
    return slot == (DEPTH - 1) * MAX_STEP_BYTES ? 0 : slot + MAX_STEP_BYTES;
  }
};
