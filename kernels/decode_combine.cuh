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

// How attention in the persistent decode kernel is put together: the warps of a block, then the
// parts of the cache that blocks share. All sums are added in a fixed order.

#pragma once

#include "decode_clocks.cuh"
#include "decode_exchange.cuh"
#include "decode_rows.cuh"

constexpr int HEAD_PAIRS = DIM / 2;  // of neighbouring elements

// Of each head the weighted values that this warp has, for `add_rows`.
__device__ __forceinline__ void share_rows(Shared *shared, const WarpAttention &attention,
                                           int row_warps) {
  const int warp = thread_number() / WARP_SIZE, lane = thread_number() % WARP_SIZE;
#pragma unroll
  for (int j = 0; j < LANE_HEADS; ++j) {
    const int head = first_lane_head() + j;
    if (head >= SHARED_HEADS) continue;
    float *const row = shared->attention.rows[head * row_warps + warp];
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      *reinterpret_cast<float4 *>(row + ValueRows::place(ValueRows::element(lane / 4, i))) =
          make_float4(attention.element(j, i), attention.element(j, i + 1),
                      attention.element(j, i + 2), attention.element(j, i + 3));
    }
  }
}

// Of a head two neighbouring elements: adds the warps' rows and sends the sum out, as the result
// where there is one part.
__device__ __forceinline__ void add_rows(const Block &block, int group, int part, int active,
                                         int head, int pair, int row_warps) {
  const Shared *const shared = block.shared;
  const auto &scratch = shared->attention;
  // Slot 0 is the newest position's, others are the warps'.
  const bool has_newest = part == active - 1;
  float most = has_newest ? shared->head_largest[0][head] : NOTHING;
#pragma unroll 4
  for (int i = 1; i <= row_warps; ++i) most = fmaxf(most, shared->head_largest[i][head]);
  float total = 0.0f;
  float2 sum = make_float2(0.0f, 0.0f);
  if (has_newest) {
    total = exp2f(shared->head_largest[0][head] - most);
    const float2 newest = reinterpret_cast<const float2 *>(scratch.newest_value)[pair];
    sum = make_float2(total * newest.x, total * newest.y);
  }
  const int place = ValueRows::place(2 * pair);
#pragma unroll 4
  for (int i = 0; i < row_warps; ++i) {
    const float shrink = exp2f(shared->head_largest[i + 1][head] - most);
    const float2 row =
        reinterpret_cast<const float2 *>(scratch.rows[head * row_warps + i])[place / 2];
    total = fmaf(shared->head_total[i][head], shrink, total);
    sum.x = fmaf(row.x, shrink, sum.x);
    sum.y = fmaf(row.y, shrink, sum.y);
  }
  const int number = group * SHARED_HEADS + head;
  if (active == 1) {
    const float inverse = reciprocal(total);
    publish_pair(block.work.heads + pair_slot<QUERY>(number * HEAD_PAIRS + pair), sum.x * inverse,
                 sum.y * inverse, block.tag);
    return;
  }
  const int row = part * HEADS + number;
  publish_two(block.work.parts + row * DIM + 2 * pair, sum.x, sum.y, block.tag);
  if (pair == 0) publish_two(block.work.weights + 2 * row, most, total, block.tag);
}

// Of each head the sum over this block's rows goes out.
__device__ __forceinline__ void combine_warps(Block &block, const WarpAttention &attention,
                                              int group, int part, int active, int row_warps) {
  if (threadIdx.x / WARP_SIZE < row_warps) share_rows(block.shared, attention, row_warps);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < SHARED_HEADS * HEAD_PAIRS; i += THREADS) {
    add_rows(block, group, part, active, i / HEAD_PAIRS, i % HEAD_PAIRS, row_warps);
  }
}

// Each unit of a group adds the parts of its share of the group's pairs of elements, in their
// order. Neighbouring threads wait for neighbouring pairs: lanes that had a part each would ask for
// 32 lines at once.
__device__ __forceinline__ void combine_parts(Block &block, int group, int part, int active) {
  constexpr int PAIRS = SHARED_HEADS * HEAD_PAIRS;
  constexpr int COUNT = (PAIRS + PARTS + THREADS - 1) / THREADS;
  const Work &work = block.work;
  float4 *const parts = block.shared->parts;
  const int begin = quotient(PAIRS * part, active);
  const int count = quotient(PAIRS * (part + 1), active) - begin;
  const uint64_t *from[COUNT][2];
  ulonglong2 words[COUNT][2];
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const int i = min(int(threadIdx.x) + k * THREADS, count * active - 1);
    const int number = quotient(i, count), pair = begin + i - number * count;
    const int row = number * HEADS + group * SHARED_HEADS + pair / HEAD_PAIRS;
    from[k][0] = work.weights + 2 * row;
    from[k][1] = work.parts + row * DIM + pair % HEAD_PAIRS * 2;
    words[k][0] = load_two_words(from[k][0]);
    words[k][1] = load_two_words(from[k][1]);
  }
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    ulonglong2 &weight = words[k][0], &value = words[k][1];
    while (!are_values_of(block.tag, weight.x, weight.y, value.x, value.y)) {
      yield_block();
      weight = load_two_words(from[k][0]);
      value = load_two_words(from[k][1]);
    }
    const int i = threadIdx.x + k * THREADS;
    if (i < count * active) {
      parts[i] = make_float4(value_of(weight.x), value_of(weight.y), value_of(value.x),
                             value_of(value.y));
    }
  }
  lap(block.shared, WAIT);
  __syncthreads();
  if (threadIdx.x >= count) return;
  float most = NOTHING, total = 0.0f, even = 0.0f, odd = 0.0f;
#pragma unroll 4
  for (int i = threadIdx.x; i < count * active; i += count) most = fmaxf(most, parts[i].x);
#pragma unroll 4
  for (int i = threadIdx.x; i < count * active; i += count) {
    const float4 sums = parts[i];
    const float shrink = exp2f(sums.x - most);
    total = fmaf(sums.y, shrink, total);
    even = fmaf(sums.z, shrink, even);
    odd = fmaf(sums.w, shrink, odd);
  }
  const float inverse = reciprocal(total);
  publish_pair(work.heads + pair_slot<QUERY>(group * PAIRS + begin + threadIdx.x), even * inverse,
               odd * inverse, block.tag);
}
