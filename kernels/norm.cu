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

// RMSNorm: of the residual stream, and of each head of q and k.
//
// out = x / sqrt(mean(x^2) + eps) * weight. Two passes over x, the second from the cache: a copy
// of the vector in shared memory would cost occupancy and save nothing.

#include "reduce.cuh"

// out (tokens, width) fp16; x (tokens, width); weight (width). Grid tokens, block any whole number
// of warps up to 1024; the order of summation, and so the last bit, depends on the block.
extern "C" __global__ void rmsnorm(half_t *__restrict__ out, const float *__restrict__ x,
                                   const float *__restrict__ weight, int32_t width, float eps) {
  __shared__ float partial[WARP_SIZE];
  x += int64_t(blockIdx.x) * width;
  out += int64_t(blockIdx.x) * width;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
  const float scale = 1.0f / sqrtf(block_sum(squares, partial) / float(width) + eps);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    out[i] = float_to_half(x[i] * scale * weight[i]);
  }
}

// q (tokens, heads, dim) and k (tokens, groups, dim) fp16, in place; q_weight and k_weight (dim).
// One warp a head: grid ceil(tokens*(heads+groups) / 4), block 128.
extern "C" __global__ void rmsnorm_heads(half_t *__restrict__ q, half_t *__restrict__ k,
                                         const float *__restrict__ q_weight,
                                         const float *__restrict__ k_weight, int32_t tokens,
                                         int32_t heads, int32_t groups, int32_t dim, float eps) {
  const int lane = threadIdx.x % WARP_SIZE;
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE;
  if (row >= tokens * (heads + groups)) return;
  const bool is_q = row < tokens * heads;
  half_t *const x = is_q ? q + int64_t(row) * dim : k + int64_t(row - tokens * heads) * dim;
  const float *const weight = is_q ? q_weight : k_weight;
  float squares = 0.0f;
  for (int i = lane; i < dim; i += WARP_SIZE) {
    const float value = half_to_float(x[i]);
    squares = fmaf(value, value, squares);
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / float(dim) + eps);
  for (int i = lane; i < dim; i += WARP_SIZE) {
    x[i] = float_to_half(half_to_float(x[i]) * scale * weight[i]);
  }
}
