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

// The products of one matrix row with a short batch of tokens, by one warp: gemm.cu, packed_gemm.cu.

#pragma once

#include "dot.cuh"

constexpr int MAX_TOKENS = 32;

// Sums of a row with tokens 0 to n-1; lane t returns token t's.
template <class W, class Row>
__device__ __forceinline__ float token_sums(const Row &row, const half_t *__restrict__ x, int n,
                                            int k) {
  float sum[MAX_TOKENS] = {};
  dot_row<W>(sum, row, x, k, n);
  const int lane = threadIdx.x % WARP_SIZE;
  float mine = 0.0f;
#pragma unroll
  for (int t = 0; t < MAX_TOKENS; ++t) {
    if (t >= n) break;
    const float total = warp_sum(sum[t]);
    if (t == lane) mine = total;
  }
  return mine;
}
