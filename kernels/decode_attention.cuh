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

// Attention of the persistent decode kernel: one token's query heads against a layer's cache. A
// unit is one group's heads against one part of the cache; units are spread over the blocks. The
// newest position comes from this step itself: it is a part of its own within the last unit.

#pragma once

#include "decode_clocks.cuh"
#include "decode_combine.cuh"
#include "decode_newest.cuh"
#include "decode_rows.cuh"

// How many parts a cache of `position` rows is attended in.
__device__ __forceinline__ int active_parts(int position) {
  if (position <= ONE_PART) return 1;
  return min(PARTS, (position + POSITIONS_A_PART - 1) / POSITIONS_A_PART);
}

__device__ __forceinline__ int part_begin(int position, int part, int active) {
  return int(uint32_t(position) * part / active);
}

// Attention of the query heads of one group to one part of the cache. Where there are several
// parts, each has a block of its own, which runs at once with the others.
__device__ __forceinline__ void attend(Block &block, const Layer &layer, int unit, int active,
                                       int position, float eps, float score_scale) {
  Shared *const shared = block.shared;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int group = unit % GROUPS, part = unit / GROUPS;
  const int begin = part_begin(position, part, active);
  const int end = part_begin(position, part + 1, active);
  const int row_warps = min(WARPS, (end - begin + ROWS - 1) / ROWS);
  const bool has_newest = part == active - 1;
  const int first = begin + warp * ROWS;
  KeyRows keys;
  ValueRows values;
  // What is there already before the wait for what is not; but memory that is busy with more than
  // one turn of each warp makes that wait longer.
  const bool few = end - begin <= WARPS * ROWS;
  if (first < end) keys.load(layer.kv, group, first, end);
  if (first < end && few) values.load(layer.kv, group, first, end);
  float query[4];
  receive(block, layer, query, group, has_newest, position, eps, score_scale);
  if (first < end && !few) values.load(layer.kv, group, first, end);
  __syncthreads();
  lap(shared, WAIT);
  if (has_newest && warp < SHARED_HEADS) {
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score = fmaf(query[i], shared->attention.newest_key[lane + 32 * i], score);
    }
    score = warp_sum(score);
    if (lane == 0) shared->head_largest[0][warp] = score;
  }
  WarpAttention attention;
  if (first < end) {
    attend_rows(attention, keys, values, shared, layer.kv, group, first, end);
    attention.end();
#pragma unroll
    for (int j = 0; j < LANE_HEADS; ++j) {
      const int head = first_lane_head() + j;
      if (lane < 4 && head < SHARED_HEADS) {
        shared->head_largest[warp + 1][head] = attention.largest[j];
        shared->head_total[warp][head] = attention.total[j];
      }
    }
  }
  lap(shared, MULTIPLY);
  combine_warps(block, attention, group, part, active, row_warps);
  lap(shared, FINISH);
  if (active > 1) combine_parts(block, group, part, active);
  __syncthreads();
  lap(shared, FINISH);
}
