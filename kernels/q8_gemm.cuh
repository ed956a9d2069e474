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

// The product of a Q8_0 matrix, however it lies, with a short batch: q8_gemm.cu, q8_packed.cu.

#pragma once

#include "q8.cuh"

constexpr int MAX_TOKENS = 32;

// Rows of a matrix in planes.
struct Planes {
  const uint8_t *words;
  const half_t *scales;

  __device__ __forceinline__ Row row(int row, int k) const { return Row(words, scales, row, k); }
};

template <class X, class Matrix>
__device__ __forceinline__ void gemm(
    float *y, const uint8_t *x_planes, const float *factors, const Matrix &matrix, int n, int m,
    int k, int stride, int chunk) {
  const int row = blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP_SIZE;
  if (row >= m) return;
  const int lane = threadIdx.x % WARP_SIZE;
  const auto weights = matrix.row(row, k);
  const X x(x_planes, n, k);
  const float unit = X::UNIT * factors[min(lane, n - 1)];
  float mine = 0.0f;  // lane t keeps token t's
#pragma unroll 1
  for (int begin = 0; begin < k; begin += chunk) {
    float sum[MAX_TOKENS] = {};
    const int end = min(begin + chunk, k);
#pragma unroll 1
    for (int i = begin + lane * PER_LANE; i < end; i += WARP_STEP) {
      const uint4 words = weights.load(i);
      const float scale = half_to_float(weights.scale(i));
      // Unrolled over all tokens, so that sums stay in registers.
#pragma unroll
      for (int t = 0; t < MAX_TOKENS; ++t) {
        if (t >= n) break;
        sum[t] = X::add(sum[t], words, scale, x.load(int64_t(t) * k + i));
      }
    }
    const float part = own_sum(sum, n);
    mine = begin == 0 ? part * unit : mine + part * unit;
  }
  if (lane < n) y[int64_t(lane) * stride + row] = mine;
}
