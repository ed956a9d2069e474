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

// Products of a short batch with Q8_0 planes, for prefill: y (N, M) fp32, N <= 32, rows of y
// `stride` apart, y[t] = factors[t] * W x[t]. One row of W a warp, read once for all tokens: grid
// ceil(M / 4), 128 threads. A token's sums are those of the products of one token, so the results
// equal theirs to the bit, also where those take K in chunks; `chunk` is K where they do not.

#include "q8_gemm.cuh"

#define GEMM(name, X)                                                                    \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) gemm_q8_##name(         \
      float *__restrict__ y, const uint8_t *__restrict__ x,                              \
      const float *__restrict__ factors, const uint8_t *__restrict__ w,                  \
      const half_t *__restrict__ d, int32_t n, int32_t m, int32_t k, int32_t stride,     \
      int32_t chunk) {                                                                   \
    gemm<X>(y, x, factors, Planes{w, d}, n, m, k, stride, chunk);                        \
  }

FOR_A8(GEMM(a8, A8))
FOR_A8X2(GEMM(a8x2, A8x2))
FOR_F32(GEMM(f32, F32))
