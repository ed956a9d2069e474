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

#include "decode_block.cuh"
#include "decode_exchange.cuh"
#include "decode_rows.cuh"

// Of each head the sum over this block's rows goes out: as the result where there is one part.
__device__ __forceinline__ void combine_warps(Block &block, const WarpAttention &attention,
                                              int group, int part, int active, int row_warps) {
  Shared *const shared = block.shared;
  auto &scratch = shared->attention;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const bool has_newest = part == active - 1;
  // Slot 0 is the newest position's, others are the warps'.
  const auto most_of = [&](int head) {
    float most = has_newest ? shared->head_largest[0][head] : NOTHING;
    for (int i = 1; i <= row_warps; ++i) most = fmaxf(most, shared->head_largest[i][head]);
    return most;
  };
  float shrink[LANE_HEADS];
#pragma unroll
  for (int j = 0; j < LANE_HEADS; ++j) {
    const int head = first_lane_head() + j;
    if (warp >= row_warps || head >= SHARED_HEADS) continue;
    shrink[j] = exp2f(attention.largest[j] - most_of(head));
    if (lane < 4) shared->head_total[warp + 1][head] = attention.total[j] * shrink[j];
  }
  if (warp == WARPS - 1 && lane < SHARED_HEADS) {
    const float most = most_of(lane);
    shared->head_most[lane] = most;
    shared->head_total[0][lane] =
        has_newest ? exp2f(shared->head_largest[0][lane] - most) : 0.0f;
  }
  const int at_once = min(SHARED_HEADS, WARPS / max(row_warps, 1));
#pragma unroll 1
  for (int first = 0; first < SHARED_HEADS; first += at_once) {
    if (first > 0) __syncthreads();
#pragma unroll
    for (int j = 0; j < LANE_HEADS; ++j) {
      const int head = first_lane_head() + j, slot = head - first;
      if (warp >= row_warps || head >= SHARED_HEADS || slot < 0 || slot >= at_once) continue;
      float *const row = scratch.rows[slot * row_warps + warp] + lane / 4 * 8;
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        *reinterpret_cast<float4 *>(row + i / 8 * 64 + i % 8) = make_float4(
            attention.element(j, i) * shrink[j], attention.element(j, i + 1) * shrink[j],
            attention.element(j, i + 2) * shrink[j], attention.element(j, i + 3) * shrink[j]);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < min(at_once, SHARED_HEADS - first) * DIM; i += THREADS) {
      const int head = first + i / DIM, element = i % DIM, number = group * SHARED_HEADS + head;
      const float newest = shared->head_total[0][head];
      float total = newest;
      float value = has_newest ? newest * scratch.newest_value[element] : 0.0f;
      for (int j = 0; j < row_warps; ++j) {
        total += shared->head_total[j + 1][head];
        value += scratch.rows[i / DIM * row_warps + j][element];
      }
      if (active == 1) {
        const float even = value / total, odd = __shfl_xor_sync(EVERY_LANE, even, 1);
        if (element % 2 == 0) {
          publish_pair(block.work.heads + pair_slot<QUERY>((number * DIM + element) / 2), even,
                       odd, block.tag);
        }
      } else {
        publish(block.work.parts + (part * HEADS + number) * DIM + element, value, block.tag);
        if (element < 2) {
          publish(block.work.weights + (part * HEADS + number) * 2 + element,
                  element == 0 ? shared->head_most[head] : total, block.tag);
        }
      }
    }
  }
}

// Each unit of a group adds the parts of its share of the group's elements, in their order.
__device__ __forceinline__ void combine_parts(Block &block, int group, int part, int active) {
  constexpr int ALL = SHARED_HEADS * DIM;
  constexpr int COUNT = (ALL + 2 * MOST_PARTS + THREADS - 1) / THREADS;
  Shared *const shared = block.shared;
  const int begin = ALL / 2 * part / active * 2;  // pairs
  const int count = ALL / 2 * (part + 1) / active * 2 - begin;
  const int first_head = begin / DIM, heads = (begin + count - 1) / DIM - first_head + 1;
  // The weights' words and the last of the values wait for each other, not for a second trip.
  uint64_t words[COUNT + 1];
  const uint64_t *from[COUNT + 1];
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const int i = min(int(threadIdx.x) + k * THREADS, count * active - 1);
    from[k] = block.work.parts + (i / count * HEADS + group * SHARED_HEADS) * DIM + begin +
              i % count;
  }
  const int last = active * heads * 2 - 1, i = min(THREADS - 1 - int(threadIdx.x), last);
  from[COUNT] = block.work.weights +
                (i / (heads * 2) * HEADS + group * SHARED_HEADS + first_head) * 2 +
                i % (heads * 2);
#pragma unroll
  for (int k = 0; k <= COUNT; ++k) words[k] = load_word(from[k]);
#pragma unroll
  for (int k = 0; k <= COUNT; ++k) {
    while (uint32_t(words[k] >> 32) != block.tag) {
      yield_block();
      words[k] = load_word(from[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const int at = threadIdx.x + k * THREADS;
    if (at < count * active) shared->part_values[at] = value_of(words[k]);
  }
  reinterpret_cast<float *>(shared->part_weights)[i] = value_of(words[COUNT]);
  __syncthreads();
  for (int at = 2 * threadIdx.x; at < count; at += 2 * THREADS) {
    const float2 *const weights = shared->part_weights + (begin + at) / DIM - first_head;
    float most = NOTHING, total = 0.0f, even = 0.0f, odd = 0.0f;
#pragma unroll 4
    for (int j = 0; j < active; ++j) most = fmaxf(most, weights[j * heads].x);
#pragma unroll 4
    for (int j = 0; j < active; ++j) {
      const float2 values =
          *reinterpret_cast<const float2 *>(shared->part_values + j * count + at);
      const float shrink = exp2f(weights[j * heads].x - most);
      total = fmaf(weights[j * heads].y, shrink, total);
      even = fmaf(values.x, shrink, even);
      odd = fmaf(values.y, shrink, odd);
    }
    publish_pair(block.work.heads + pair_slot<QUERY>((group * ALL + begin + at) / 2),
                 even / total, odd / total, block.tag);
  }
}
