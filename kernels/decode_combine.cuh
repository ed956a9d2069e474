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

// The weighted values of heads, `count` from `first` on, that this warp has.
__device__ __forceinline__ void share_rows(Shared *shared, const WarpAttention &attention,
                                           int first, int count, int row_warps) {
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int j = 0; j < LANE_HEADS; ++j) {
    const int head = first_lane_head() + j, slot = head - first;
    if (head >= SHARED_HEADS || slot < 0 || slot >= count) continue;
    float *const row = shared->attention.rows[slot * row_warps + warp];
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      *reinterpret_cast<float4 *>(row + ValueRows::place(ValueRows::element(lane / 4, i))) =
          make_float4(attention.element(j, i), attention.element(j, i + 1),
                      attention.element(j, i + 2), attention.element(j, i + 3));
    }
  }
}

// Adds the warps' rows of heads, `count` from `first` on, two elements a thread, and sends them out:
// as the result where there is one part.
__device__ __forceinline__ void add_rows(const Block &block, int group, int part, int active,
                                         int first, int count, int row_warps) {
  constexpr int PAIRS = DIM / 2;
  const Shared *const shared = block.shared;
  const auto &scratch = shared->attention;
  const int slot = threadIdx.x / PAIRS, pair = threadIdx.x % PAIRS, head = first + slot;
  if (slot >= count) return;
  // Slot 0 is the newest position's, others are the warps'.
  const bool has_newest = part == active - 1;
  float most = has_newest ? shared->head_largest[0][head] : NOTHING;
#pragma unroll 2
  for (int i = 1; i <= row_warps; ++i) most = fmaxf(most, shared->head_largest[i][head]);
  const int place = ValueRows::place(2 * pair);
  float total = 0.0f;
  float2 sum = make_float2(0.0f, 0.0f);
  if (has_newest) {
    total = exp2f(shared->head_largest[0][head] - most);
    const float2 newest = reinterpret_cast<const float2 *>(scratch.newest_value)[pair];
    sum = make_float2(total * newest.x, total * newest.y);
  }
#pragma unroll 2
  for (int i = 0; i < row_warps; ++i) {
    const float shrink = exp2f(shared->head_largest[i + 1][head] - most);
    const float2 row =
        reinterpret_cast<const float2 *>(scratch.rows[slot * row_warps + i])[place / 2];
    total = fmaf(shared->head_total[i][head], shrink, total);
    sum.x = fmaf(row.x, shrink, sum.x);
    sum.y = fmaf(row.y, shrink, sum.y);
  }
  const int number = group * SHARED_HEADS + head;
  if (active == 1) {
    const float inverse = reciprocal(total);
    publish_pair(block.work.heads + pair_slot<QUERY>(number * PAIRS + pair), sum.x * inverse,
                 sum.y * inverse, block.tag);
    return;
  }
  const int row = part * HEADS + number;
  uint64_t *const values = block.work.parts + row * DIM + 2 * pair;
  publish(values, sum.x, block.tag);
  publish(values + 1, sum.y, block.tag);
  if (pair > 0) return;
  publish(block.work.weights + 2 * row, most, block.tag);
  publish(block.work.weights + 2 * row + 1, total, block.tag);
}

// Of each head the sum over this block's rows goes out, as many heads at once as find room.
__device__ __forceinline__ void combine_warps(Block &block, const WarpAttention &attention,
                                              int group, int part, int active, int row_warps) {
  const int at_once =
      min(min(SHARED_HEADS, THREADS / (DIM / 2)), quotient(ROW_SLOTS, max(row_warps, 1)));
#pragma unroll 1
  for (int first = 0; first < SHARED_HEADS; first += at_once) {
    const int count = min(at_once, SHARED_HEADS - first);
    if (first > 0) __syncthreads();
    if (threadIdx.x / WARP_SIZE < row_warps) {
      share_rows(block.shared, attention, first, count, row_warps);
    }
    __syncthreads();
    add_rows(block, group, part, active, first, count, row_warps);
  }
}

// Of one head and two neighbouring elements, what a lane has of the parts: their sums, relative to
// the largest score.
struct PartSums {
  float largest, total, even, odd;

  // Waits for one part.
  __device__ __forceinline__ PartSums(const Work &work, int part, int head, int element,
                                      uint32_t tag) {
    const int row = part * HEADS + head;
    const uint64_t *const weights = work.weights + row * 2;
    const uint64_t *const values = work.parts + row * DIM + element;
    ulonglong2 w = load_two_words(weights), v = load_two_words(values);
    while (!are_values_of(tag, w.x, w.y, v.x, v.y)) {
      yield_block();
      w = load_two_words(weights);
      v = load_two_words(values);
    }
    largest = value_of(w.x);
    total = value_of(w.y);
    even = value_of(v.x);
    odd = value_of(v.y);
  }
  // No part.
  __device__ __forceinline__ PartSums() : largest(NOTHING), total(0.0f), even(0.0f), odd(0.0f) {}

  __device__ __forceinline__ void add(const PartSums &other) {
    const float most = fmaxf(largest, other.largest);
    const float mine = exp2f(largest - most), theirs = exp2f(other.largest - most);
    largest = most;
    total = fmaf(total, mine, other.total * theirs);
    even = fmaf(even, mine, other.even * theirs);
    odd = fmaf(odd, mine, other.odd * theirs);
  }

  // Adds those of `width` lanes.
  __device__ __forceinline__ void add_lanes(int width) {
    float most = largest;
#pragma unroll
    for (int lanes = WARP_SIZE / 2; lanes > 0; lanes /= 2) {
      if (lanes < width) most = fmaxf(most, __shfl_xor_sync(EVERY_LANE, most, lanes));
    }
    const float shrink = exp2f(largest - most);
    largest = most;
    total *= shrink;
    even *= shrink;
    odd *= shrink;
#pragma unroll
    for (int lanes = WARP_SIZE / 2; lanes > 0; lanes /= 2) {
      if (lanes >= width) continue;
      total += __shfl_xor_sync(EVERY_LANE, total, lanes);
      even += __shfl_xor_sync(EVERY_LANE, even, lanes);
      odd += __shfl_xor_sync(EVERY_LANE, odd, lanes);
    }
  }
};

// Each unit of a group adds the parts of its share of the group's elements, two elements a group
// of lanes and a part or two a lane.
__device__ __forceinline__ void combine_parts(Block &block, int group, int part, int active) {
  constexpr int PAIRS = SHARED_HEADS * DIM / 2;
  const Work &work = block.work;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int begin = quotient(PAIRS * part, active), end = quotient(PAIRS * (part + 1), active);
  const int width = active > WARP_SIZE / 2 ? WARP_SIZE : 1 << (32 - __clz(active - 1));
  const int own = lane & (width - 1), at_once = WARP_SIZE / width;
#pragma unroll 1
  for (int first = begin + warp * at_once; first < end; first += WARPS * at_once) {
    const int pair = first + lane / width, number = min(pair, end - 1);
    const int head = group * SHARED_HEADS + number / (DIM / 2), element = number % (DIM / 2) * 2;
    PartSums sums;
    if (own < active) sums = PartSums(work, own, head, element, block.tag);
    if (own + WARP_SIZE < active) {
      sums.add(PartSums(work, own + WARP_SIZE, head, element, block.tag));
    }
    lap(block.shared, WAIT);
    sums.add_lanes(width);
    const float inverse = reciprocal(sums.total);
    if (own == 0 && pair < end) {
      publish_pair(work.heads + pair_slot<QUERY>(group * PAIRS + pair), sums.even * inverse,
                   sums.odd * inverse, block.tag);
    }
  }
}
