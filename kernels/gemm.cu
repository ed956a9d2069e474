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

// Products with a short batch of tokens, for prefill in exact mode: y (N, M) = x (N, K) W^T with
// N <= 32 and x fp16. One row a warp, four a block: grid ceil(M / 4), 128 threads. Weights are
// read and dequantized once for all tokens; each token's sums are those of the matrix-vector
// kernels, added in the same order, so the results equal theirs to the bit.
//
// `output` (see Output) says what y is; one kernel does it all, as each takes the compiler long.

#include "dot.cuh"

constexpr int MAX_TOKENS = 32;

// Sums of row `row` with tokens 0 to n-1; lane t returns token t's.
template <class W>
__device__ __forceinline__ float token_sums(
    const typename W::Block *__restrict__ w, const half_t *__restrict__ x, int n, int row, int k) {
  float sum[MAX_TOKENS] = {};
  dot_row<W>(sum, w + int64_t(row) * (k / W::WEIGHTS), x, k, n);
  return own_sum(sum, n);
}

#define GEMM(name, W)                                                                      \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gemm_##name(                 \
      void *y, const float *residual, const half_t *__restrict__ x,                        \
      const W::Block *__restrict__ w, int32_t n, int32_t m, int32_t k, int32_t output) {   \
    const int row = blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP_SIZE;                \
    if (row >= m) return;                                                                  \
    const float sum = token_sums<W>(w, x, n, row, k);                                      \
    const int token = threadIdx.x % WARP_SIZE;                                             \
    if (token < n) put(y, residual, int64_t(token) * m + row, sum, output);                \
  }

FOR_EACH_FORMAT(GEMM)
