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

// Keys and values into the cache, as they are or as int8.
//
// Token n of a batch goes to position positions[n] of a cache [positions][groups][dim], so that
// one query head reads consecutive bytes of consecutive positions.

#include "kv_int8.cuh"

// k and v (tokens, groups, dim) fp16 into k_cache and v_cache [positions][groups][dim] fp16.
// groups*dim is a multiple of 8: a thread copies 16 bytes of each. Grid (ceil(groups*dim / 1024),
// tokens), block 128.
extern "C" __global__ void kv_store(uint4 *__restrict__ k_cache, uint4 *__restrict__ v_cache,
                                    const uint4 *__restrict__ k, const uint4 *__restrict__ v,
                                    const int32_t *__restrict__ positions, int32_t groups,
                                    int32_t dim) {
  const int row_words = groups * dim / 8;
  const int word = blockIdx.x * blockDim.x + threadIdx.x;
  if (word >= row_words) return;
  const int64_t from = int64_t(blockIdx.y) * row_words + word;
  const int64_t to = int64_t(positions[blockIdx.y]) * row_words + word;
  k_cache[to] = k[from];
  v_cache[to] = v[from];
}

// k and v (tokens, groups, dim) fp16 into int8 caches [positions][groups][dim] with fp32 scales
// [positions][groups]: a head's scale is its largest magnitude over 127. One warp a head: grid
// (ceil(tokens*groups / 4), 2), block 128; blockIdx.y is 0 for k and 1 for v.
extern "C" __global__ void quantize_kv_int8(
    int8_t *__restrict__ k_cache, int8_t *__restrict__ v_cache, float *__restrict__ k_scales,
    float *__restrict__ v_scales, const half_t *__restrict__ k, const half_t *__restrict__ v,
    const int32_t *__restrict__ positions, int32_t tokens, int32_t groups, int32_t dim) {
  const int lane = threadIdx.x % WARP_SIZE;
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE;
  if (row >= tokens * groups) return;
  const bool is_k = blockIdx.y == 0;
  const half_t *const x = (is_k ? k : v) + int64_t(row) * dim;
  float largest = 0.0f;
  for (int i = lane; i < dim; i += WARP_SIZE) largest = fmaxf(largest, fabsf(half_to_float(x[i])));
  largest = warp_max(largest);

  const Int8Row rounded(largest);
  const int64_t to = int64_t(positions[row / groups]) * groups + row % groups;
  int8_t *const quantized = (is_k ? k_cache : v_cache) + to * dim;
  for (int i = lane; i < dim; i += WARP_SIZE) {
    quantized[i] = rounded.level(x[i]);
  }
  if (lane == 0) (is_k ? k_scales : v_scales)[to] = rounded.scale;
}
