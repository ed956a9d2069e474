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

// What the step itself brings to attention in the persistent decode kernel: a group's queries, and
// the key and value of the newest position, normed and rotated.

#pragma once

#include "decode_block.cuh"
#include "decode_exchange.cuh"
#include "decode_rows.cuh"
#include "rope.cuh"

// Sines and cosines of the position, which all layers share.
__device__ __forceinline__ void set_rotation(float2 (&rotation)[DIM / 2],
                                             const uint64_t *turns, int position) {
  for (int i = threadIdx.x; i < DIM / 2; i += THREADS) {
    rope_angle(position, turns[i], &rotation[i].x, &rotation[i].y);
  }
}

// Norm and rotation of one head by one warp: lane holds elements lane + 32 i.
__device__ __forceinline__ void norm_and_rotate(float (&v)[4], const float (&weight)[4], float eps,
                                                const float2 (&rotation)[DIM / 2]) {
  const int lane = threadIdx.x % WARP_SIZE;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) squares = fmaf(v[i], v[i], squares);
  const float norm = rsqrtf(warp_sum(squares) * (1.0f / DIM) + eps);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= norm * weight[i];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 angle = rotation[lane + 32 * i];
    const float first = v[i], second = v[i + 2];
    v[i] = fmaf(first, angle.y, -(second * angle.x));
    v[i + 2] = fmaf(first, angle.x, second * angle.y);
  }
}

// Waits for the group's queries, a warp a head, and in the last unit for the newest key and value;
// puts them where the others find them, the newest also into the cache. `v` keeps a query.
__device__ __forceinline__ void receive(Block &block, const Layer &layer, float (&v)[4], int group,
                                        bool has_newest, int position, float eps,
                                        float score_scale) {
  Shared *const shared = block.shared;
  auto &scratch = shared->attention;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const bool is_query = warp < SHARED_HEADS, is_key = warp == SHARED_HEADS;
  if (warp >= (has_newest ? SHARED_HEADS + 2 : SHARED_HEADS)) return;
  const float *const norm = is_query ? layer.q_norm : layer.k_norm;
  float weight[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) weight[i] = norm[lane + 32 * i];
  await(v, block.work.qkv + lane + (is_query ? (group * SHARED_HEADS + warp) * DIM
                                    : is_key ? QUERY + group * DIM
                                             : QUERY + KEY + group * DIM), WARP_SIZE, block.tag);
  if (is_query || is_key) norm_and_rotate(v, weight, eps, shared->rotation);
  NewestRow newest;
  if (!is_query) newest.measure(v);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int element = lane + 32 * i;
    if (is_query) {
      v[i] *= score_scale * LOG2_E;
      const uint32_t numbers = split(v[i]);
      const int column = PASSES == 1 ? 2 * warp : warp;
      scratch.queries[column][element] = half_t(numbers);
      scratch.queries[column + (PASSES == 1 ? 1 : SHARED_HEADS)][element] = half_t(numbers >> 16);
    } else {
      const auto kept = newest.kept(v[i]);
      const int64_t at = (int64_t(position) * GROUPS + group) * DIM + element;
      (is_key ? layer.kv.keys : layer.kv.values)[at] = kept;
      (is_key ? scratch.newest_key : scratch.newest_value)[element] = newest.read(kept);
    }
  }
  if (!is_query) newest.store_scale(layer.kv, is_key, int64_t(position) * GROUPS + group);
}
