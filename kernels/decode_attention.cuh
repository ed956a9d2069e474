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

// Attention of the persistent decode kernel: one token's query heads against a cache of fp16 rows
// [positions][GROUPS][DIM]. A unit is one group's heads against one part of the cache; units are
// spread over the blocks.

#pragma once

#include "decode_block.cuh"

// Norm and rotation of one head by one warp: lane holds elements lane + 32 i of `values`.
__device__ __forceinline__ void norm_and_rotate(float (&v)[4], const float *weight, float eps,
                                                const uint64_t *turns, int position) {
  const int lane = threadIdx.x % WARP_SIZE;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) squares = fmaf(v[i], v[i], squares);
  const float norm = rsqrtf(warp_sum(squares) * (1.0f / DIM) + eps);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= norm * weight[lane + 32 * i];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint64_t turned = uint64_t(position) * turns[lane + 32 * i];
    float sine, cosine;
    sincospif(float(int32_t(turned >> 32)) * (1.0f / 2147483648.0f), &sine, &cosine);
    const float first = v[i], second = v[i + 2];
    v[i] = fmaf(first, cosine, -(second * sine));
    v[i + 2] = fmaf(first, sine, second * cosine);
  }
}

__device__ __forceinline__ void unpack8(float (&out)[8], const uint4 &words) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = half_to_float(half_t(word[i] & 0xffffu));
    out[2 * i + 1] = half_to_float(half_t(word[i] >> 16));
  }
}

// Whole warps publish their elements of the heads' results.
__device__ __forceinline__ void pair_heads(const Work &work, int at, float value, uint32_t tag) {
  const float next = __shfl_xor_sync(EVERY_LANE, value, 1);
  if (at % 2 == 0) publish_pair(work.heads + at / 2, value, next, tag);
}

// Attention of the query heads of one group to one part of the cache; the block that finishes a
// group last adds the parts, in their order.
__device__ __forceinline__ void attend(Block &block, const Layer &layer, int group, int part,
                                       int parts, int position, const uint64_t *turns, float eps,
                                       float score_scale) {
  Shared *const shared = block.shared;
  auto &scratch = shared->attention;
  const Work &work = block.work;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int length = position + 1;
  const int begin = int(int64_t(length) * part / parts);
  const int end = int(int64_t(length) * (part + 1) / parts);
  const bool owns_newest = part == parts - 1;
  const int64_t newest = (int64_t(position) * GROUPS + group) * DIM;

  if (warp < SHARED_HEADS || (warp < SHARED_HEADS + 2 && owns_newest)) {
    const bool is_query = warp < SHARED_HEADS, is_key = warp == SHARED_HEADS;
    const uint64_t *const from = work.qkv + (is_query ? (group * SHARED_HEADS + warp) * DIM
                                          : is_key ? QUERY + group * DIM
                                                   : QUERY + KEY + group * DIM);
    float v[4];
    await(v, from + lane, WARP_SIZE, block.tag);
    if (is_query || is_key) {
      norm_and_rotate(v, is_query ? layer.q_norm : layer.k_norm, eps, turns, position);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (is_query) {
        scratch.query[warp][lane + 32 * i] = v[i] * score_scale * LOG2_E;
      } else {
        (is_key ? layer.keys : layer.values)[newest + lane + 32 * i] = float_to_half(v[i]);
      }
    }
  }
  __syncthreads();

  const int element = lane % 16 * 8, half_warp = lane / 16;
  float sum[SHARED_HEADS][8], largest[SHARED_HEADS], total[SHARED_HEADS];
#pragma unroll
  for (int head = 0; head < SHARED_HEADS; ++head) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[head][i] = 0.0f;
    largest[head] = NOTHING;
    total[head] = 0.0f;
  }
  #pragma unroll 1
  for (int base = begin + 2 * warp; base < end; base += 2 * WARPS) {
    const bool exists = base + half_warp < end;
    const int row = exists ? base + half_warp : base;
    const int64_t at = (int64_t(row) * GROUPS + group) * DIM + element;
    const uint4 key_words = __ldcg(reinterpret_cast<const uint4 *>(layer.keys + at));
    const uint4 value_words = __ldcg(reinterpret_cast<const uint4 *>(layer.values + at));
    float elements[8], scores[SHARED_HEADS];
    unpack8(elements, key_words);
#pragma unroll
    for (int head = 0; head < SHARED_HEADS; ++head) {
      const float4 *const query = reinterpret_cast<const float4 *>(scratch.query[head] + element);
      const float4 first = query[0], second = query[1];  // in registers they would spill
      float score = first.x * elements[0];
      score = fmaf(first.y, elements[1], score);
      score = fmaf(first.z, elements[2], score);
      score = fmaf(first.w, elements[3], score);
      score = fmaf(second.x, elements[4], score);
      score = fmaf(second.y, elements[5], score);
      score = fmaf(second.z, elements[6], score);
      scores[head] = fmaf(second.w, elements[7], score);
    }
#pragma unroll
    for (int lanes = 8; lanes > 0; lanes /= 2) {
#pragma unroll
      for (int head = 0; head < SHARED_HEADS; ++head) {
        scores[head] += __shfl_xor_sync(EVERY_LANE, scores[head], lanes);
      }
    }
    unpack8(elements, value_words);
#pragma unroll
    for (int head = 0; head < SHARED_HEADS; ++head) {
      const float now = exists ? fmaxf(largest[head], scores[head]) : largest[head];
      const float shrink = exp2f(largest[head] - now);
      const float weight = exists ? exp2f(scores[head] - now) : 0.0f;
      largest[head] = now;
      total[head] = fmaf(total[head], shrink, weight);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[head][i] = fmaf(sum[head][i], shrink, weight * elements[i]);
    }
  }

  // Halves of a warp, then warps.
#pragma unroll
  for (int head = 0; head < SHARED_HEADS; ++head) {
    const float most = fmaxf(largest[head], __shfl_xor_sync(EVERY_LANE, largest[head], 16));
    const float shrink = exp2f(largest[head] - most);
    total[head] *= shrink;
    total[head] += __shfl_xor_sync(EVERY_LANE, total[head], 16);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum[head][i] *= shrink;
      sum[head][i] += __shfl_xor_sync(EVERY_LANE, sum[head][i], 16);
    }
    largest[head] = most;
    if (lane == 0) {
      shared->head_largest[warp][head] = most;
      shared->head_total[warp][head] = total[head];
    }
  }
  __syncthreads();
#pragma unroll
  for (int head = 0; head < SHARED_HEADS; ++head) {
    const float warp_largest = lane < WARPS ? shared->head_largest[lane][head] : NOTHING;
    const float warp_total = lane < WARPS ? shared->head_total[lane][head] : 0.0f;
    const float most = warp_max(warp_largest);
    const float weights = warp_sum(warp_total * exp2f(warp_largest - most));
    const float shrink = exp2f(largest[head] - most);
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 8; ++i) scratch.rows[warp][element + i] = sum[head][i] * shrink;
    }
    __syncthreads();
    const int number = group * SHARED_HEADS + head, i = threadIdx.x;
    if (i < DIM) {
      float values = 0.0f;
#pragma unroll 4
      for (int j = 0; j < WARPS; ++j) values += scratch.rows[j][i];
      if (parts == 1) {
        pair_heads(work, number * DIM + i, values / weights, block.tag);
      } else {
        work.parts[(int64_t(part) * HEADS + number) * DIM + i] = values;
        if (i == 0) work.weights[part * HEADS + number] = make_float2(most, weights);
      }
    }
    __syncthreads();
  }
  if (parts == 1) return;

  uint32_t *const counter = work.arrived + 1 + group;
  if (threadIdx.x == 0) {
    __threadfence();
    shared->last = atomicAdd(counter, 1u) == uint32_t(parts - 1);
    __threadfence();
    if (shared->last) *counter = 0;
  }
  __syncthreads();
  if (!shared->last) return;
  float2 *const weights = reinterpret_cast<float2 *>(scratch.rows);  // parts, heads
  for (int i = threadIdx.x; i < parts * SHARED_HEADS; i += THREADS) {
    weights[i] = __ldcg(work.weights + i / SHARED_HEADS * HEADS + group * SHARED_HEADS +
                        i % SHARED_HEADS);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < SHARED_HEADS * DIM; i += THREADS) {
    const int head = i / DIM;
    const float *const values = work.parts + group * SHARED_HEADS * DIM + i;
    float most = NOTHING, total_weight = 0.0f, total_value = 0.0f;
    for (int j = 0; j < parts; ++j) most = fmaxf(most, weights[j * SHARED_HEADS + head].x);
#pragma unroll 8
    for (int j = 0; j < parts; ++j) {
      const float2 w = weights[j * SHARED_HEADS + head];
      const float shrink = exp2f(w.x - most);
      total_weight = fmaf(w.y, shrink, total_weight);
      total_value = fmaf(__ldcg(values + j * HEADS * DIM), shrink, total_value);
    }
    pair_heads(work, group * SHARED_HEADS * DIM + i, total_value / total_weight, block.tag);
  }
}

__device__ __forceinline__ int active_parts(int position, int parts) {
  return min(parts, (position + POSITIONS_A_PART) / POSITIONS_A_PART);
}

// Asks for the first rows that this block's warps will attend to, while it still multiplies.
__device__ __forceinline__ void prefetch_cache(const Layer &layer, int position, int parts) {
  const int active = active_parts(position, parts), length = position + 1;
  const int group = blockIdx.x % GROUPS, part = blockIdx.x / GROUPS;
  const int row = int(int64_t(length) * part / active) + threadIdx.x / 16;
  if (part >= active || row >= position) return;
  const int64_t at = (int64_t(row) * GROUPS + group) * DIM + threadIdx.x % 16 * 8;
  prefetch(layer.keys + at);
  prefetch(layer.values + at);
}
