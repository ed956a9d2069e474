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

// What follows the fused projection q, k, v of a token: head norms where the model has them,
// rotary embedding, the query to where attention reads it, key and value into the cache.

#pragma once

#include "q8.cuh"
#include "rope.cuh"

constexpr int MAX_HEAD = 256;  // elements of a head

// Where heads go. Caches are [positions][groups][dim]: fp16, or int8 with scales
// [positions][groups] when `quantized` is not 0.
struct Heads {
  half_t *q;  // (tokens, heads, dim)
  void *k_cache, *v_cache;
  float *k_scales, *v_scales;
  int quantized;
  const float *q_weight, *k_weight;  // (dim), read when `normed` is not 0
  int normed;
  const uint64_t *turns;  // (dim/2)
  int heads, groups, dim, adjacent;
  float eps;
};

// Stores one row as int8: the scale is the largest magnitude over 127. By a whole warp.
__device__ __forceinline__ void store_int8(
    int8_t *to, float *scale, const float *row, int dim, int lane) {
  float largest = 0.0f;
  for (int i = lane; i < dim; i += WARP_SIZE) largest = fmaxf(largest, fabsf(row[i]));
  largest = warp_max(largest);
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  for (int i = lane; i < dim; i += WARP_SIZE) to[i] = int8_t(nearest_word(row[i] * inverse));
  if (lane == 0) *scale = largest / 127.0f;
}

// Head `head` of a token, counted through q, k and v: row (dim) holds its projection, shared by
// the warp, and is changed. A whole warp calls this.
__device__ __forceinline__ void finish_head(
    const Heads &to, float *row, int head, int token, int32_t position) {
  const int lane = threadIdx.x % WARP_SIZE, dim = to.dim;
  const bool is_q = head < to.heads, is_v = head >= to.heads + to.groups;
  __syncwarp();
  if (!is_v && to.normed) {
    const float *const weight = is_q ? to.q_weight : to.k_weight;
    float squares = 0.0f;
    for (int i = lane; i < dim; i += WARP_SIZE) squares = fmaf(row[i], row[i], squares);
    const float factor = 1.0f / sqrtf(warp_sum(squares) / float(dim) + to.eps);
    for (int i = lane; i < dim; i += WARP_SIZE) row[i] *= factor * weight[i];
    __syncwarp();
  }
  if (!is_v) {
    for (int pair = lane; pair < dim / 2; pair += WARP_SIZE) {
      const int first = to.adjacent ? 2 * pair : pair;
      const int second = to.adjacent ? 2 * pair + 1 : pair + dim / 2;
      float sine, cosine;
      rope_angle(position, to.turns[pair], &sine, &cosine);
      const float a = row[first], b = row[second];
      row[first] = fmaf(a, cosine, -(b * sine));
      row[second] = fmaf(a, sine, b * cosine);
    }
    __syncwarp();
  }
  if (is_q) {
    half_t *const q = to.q + (int64_t(token) * to.heads + head) * dim;
    for (int i = lane; i < dim; i += WARP_SIZE) q[i] = float_to_half(row[i]);
    return;
  }
  const int group = head - to.heads - (is_v ? to.groups : 0);
  const int64_t at = int64_t(position) * to.groups + group;
  void *const cache = is_v ? to.v_cache : to.k_cache;
  if (to.quantized) {
    store_int8(static_cast<int8_t *>(cache) + at * dim, (is_v ? to.v_scales : to.k_scales) + at,
               row, dim, lane);
  } else {
    half_t *const halves = static_cast<half_t *>(cache) + at * dim;
    for (int i = lane; i < dim; i += WARP_SIZE) halves[i] = float_to_half(row[i]);
  }
}

// The parameters of a kernel that finishes heads, and the struct of them.
#define HEADS_PARAMETERS                                                                 \
  half_t *__restrict__ q, void *__restrict__ k_cache, void *__restrict__ v_cache,        \
      float *__restrict__ k_scales, float *__restrict__ v_scales, int32_t quantized,     \
      const float *__restrict__ q_weight, const float *__restrict__ k_weight,            \
      int32_t normed, const uint64_t *__restrict__ turns,                                \
      const int32_t *__restrict__ positions, int32_t heads, int32_t groups, int32_t dim, \
      int32_t adjacent, float eps
#define HEADS_ARGUMENTS                                                                  \
  Heads {                                                                                \
    q, k_cache, v_cache, k_scales, v_scales, quantized, q_weight, k_weight, normed,      \
        turns, heads, groups, dim, adjacent, eps                                         \
  }
