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

// Matrix-vector products on Q8_0 planes: y = factor * W x, y (M,) fp32, one token. Blocks of four
// warps, a warp a row: grid ceil(M / 4), 128 threads; the _r2 kernels have two rows a warp: grid
// ceil(M / 8). factor (1,) is a norm's, or 1.
//
//   gemv_q8_a8, gemv_q8_a8x2, gemv_q8_f32  by kind of activations (see q8.cuh)
//   _u2, _u4                               with 2 and 4 steps of weights in flight
//   _r2                                    two rows a warp share the activations' loads
//   _split, splitk_combine                 K in chunks, for matrices of few rows
//
// All but _split equal each other to the bit, given the kind.

#include "q8.cuh"

template <class X, int UNROLL, int ROWS>
__device__ __forceinline__ void gemv(
    float *y, const uint8_t *x, const float *factor, const uint8_t *w, const half_t *d, int m,
    int k, int begin, int end) {
  const int warp = blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP_SIZE;
  const int first = warp * ROWS;
  if (first >= m) return;
  const float unit = X::UNIT * *factor;
  // A second row past the end is the first again: loads stay inside, nothing is written.
  const int last = min(first + ROWS - 1, m - 1);
  float sum[ROWS] = {};
  if constexpr (ROWS == 2) {
    const Row rows[2] = {Row(w, d, first, k), Row(w, d, last, k)};
    add_products<UNROLL>(sum, rows, X(x, 1, k), begin, end);
  } else {
    const Row rows[1] = {Row(w, d, first, k)};
    add_products<UNROLL>(sum, rows, X(x, 1, k), begin, end);
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const float total = warp_sum(sum[r]) * unit;
    if (threadIdx.x % WARP_SIZE == 0 && first + r < m) y[first + r] = total;
  }
}

#define GEMV(name, X, UNROLL, ROWS)                                                      \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gemv_q8_##name(            \
      float *__restrict__ y, const uint8_t *__restrict__ x,                              \
      const float *__restrict__ factor, const uint8_t *__restrict__ w,                   \
      const half_t *__restrict__ d, int32_t m, int32_t k) {                              \
    gemv<X, UNROLL, ROWS>(y, x, factor, w, d, m, k, 0, k);                               \
  }

FOR_A8(GEMV(a8, A8, 1, 1)
       GEMV(a8_u2, A8, 2, 1)
       GEMV(a8_u4, A8, 4, 1)
       GEMV(a8_r2, A8, 2, 2))
FOR_A8X2(GEMV(a8x2, A8x2, 1, 1)
         GEMV(a8x2_u2, A8x2, 2, 1)
         GEMV(a8x2_u4, A8x2, 4, 1)
         GEMV(a8x2_r2, A8x2, 2, 2))
FOR_F32(GEMV(f32, F32, 1, 1)
        GEMV(f32_r2, F32, 1, 2))

// Chunk blockIdx.y of K, `chunk` long, a multiple of 512: partials [chunks][M]. Grid
// (ceil(M / 4), ceil(K / chunk)).
#define GEMV_SPLIT(name, X)                                                              \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 8) gemv_q8_##name##_split( \
      float *__restrict__ partials, const uint8_t *__restrict__ x,                       \
      const float *__restrict__ factor, const uint8_t *__restrict__ w,                   \
      const half_t *__restrict__ d, int32_t m, int32_t k, int32_t chunk) {               \
    const int begin = blockIdx.y * chunk;                                                \
    gemv<X, 4, 1>(partials + int64_t(blockIdx.y) * m, x, factor, w, d, m, k, begin,      \
                  min(begin + chunk, k));                                                \
  }

FOR_A8(GEMV_SPLIT(a8, A8))
FOR_A8X2(GEMV_SPLIT(a8x2, A8x2))

// y (M,): the partials [chunks][M], added in ascending order. Grid ceil(M / 128), 128 threads.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    splitk_combine(float *__restrict__ y, const float *__restrict__ partials, int32_t m,
                   int32_t chunks) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= m) return;
  float sum = partials[row];
  for (int chunk = 1; chunk < chunks; ++chunk) sum += partials[int64_t(chunk) * m + row];
  y[row] = sum;
}

// y (M,) = W x of fp32 weights (M, K) and activations, for gates: small, and quantizing them would
// cost accuracy. Any K. Grid ceil(M / 4), 128 threads.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    gemv_f32w(float *__restrict__ y, const float *__restrict__ x, const float *__restrict__ w,
              int32_t m, int32_t k) {
  const int row = blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP_SIZE;
  if (row >= m) return;
  const int lane = threadIdx.x % WARP_SIZE;
  const float *const weights = w + int64_t(row) * k;
  float sum = 0.0f;
#pragma unroll 4
  for (int i = lane; i < k; i += WARP_SIZE) sum = fmaf(weights[i], x[i], sum);
  sum = warp_sum(sum);
  if (lane == 0) y[row] = sum;
}
