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

// Matrix-vector products on weights as they lie in a GGUF file, for decode: y = W x with W
// (M, K) and x (K,) fp16. One row a warp, four a block: grid ceil(rows / 4), 128 threads. Lanes
// stride over K, a butterfly of shuffles sums, lane 0 writes. K is a multiple of the format's
// block; M is anything.
//
//   gemv         fp16 y, saturated
//   gemv_logits  fp32 y, for the head
//   gemv_add     fp32 y = residual + W x, for the output and down projections; y may be residual
//   gemv_pair    gate and up in one launch: rows 0 to M-1 are gate's, M to 2M-1 up's
//   gemv_triple  q, k and v in one launch, rows in this order

#include "dot.cuh"

__device__ __forceinline__ int warp_row() {
  return blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP_SIZE;
}

__device__ __forceinline__ bool writes() { return threadIdx.x % WARP_SIZE == 0; }

#define GEMV(name, W)                                                                     \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gemv_##name(                \
      half_t *__restrict__ y, const half_t *__restrict__ x,                               \
      const W::Block *__restrict__ w, int32_t m, int32_t k) {                             \
    const int row = warp_row();                                                           \
    if (row >= m) return;                                                                 \
    const float sum = dot<W>(w, x, row, k);                                               \
    if (writes()) y[row] = float_to_half(sum);                                            \
  }

#define GEMV_LOGITS(name, W)                                                              \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gemv_logits_##name(         \
      float *__restrict__ y, const half_t *__restrict__ x,                                \
      const W::Block *__restrict__ w, int32_t m, int32_t k) {                             \
    const int row = warp_row();                                                           \
    if (row >= m) return;                                                                 \
    const float sum = dot<W>(w, x, row, k);                                               \
    if (writes()) y[row] = sum;                                                           \
  }

#define GEMV_ADD(name, W)                                                                 \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gemv_add_##name(            \
      float *y, const float *residual, const half_t *__restrict__ x,                      \
      const W::Block *__restrict__ w, int32_t m, int32_t k) {                             \
    const int row = warp_row();                                                           \
    if (row >= m) return;                                                                 \
    const float sum = dot<W>(w, x, row, k);                                               \
    if (writes()) y[row] = residual[row] + sum;                                           \
  }

#define GEMV_PAIR(name, W)                                                                \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gemv_pair_##name(           \
      half_t *__restrict__ gate, half_t *__restrict__ up, const half_t *__restrict__ x,   \
      const W::Block *__restrict__ w_gate, const W::Block *__restrict__ w_up, int32_t m,  \
      int32_t k) {                                                                        \
    int row = warp_row();                                                                 \
    if (row >= 2 * m) return;                                                             \
    const bool second = row >= m;                                                         \
    if (second) row -= m;                                                                 \
    const float sum = dot<W>(second ? w_up : w_gate, x, row, k);                          \
    if (writes()) (second ? up : gate)[row] = float_to_half(sum);                         \
  }

#define GEMV_TRIPLE(name, QK, V)                                                          \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gemv_triple_##name(         \
      half_t *__restrict__ q, half_t *__restrict__ k, half_t *__restrict__ v,             \
      const half_t *__restrict__ x, const QK::Block *__restrict__ w_q,                    \
      const QK::Block *__restrict__ w_k, const V::Block *__restrict__ w_v, int32_t m_q,   \
      int32_t m_k, int32_t m_v, int32_t length) {                                         \
    int row = warp_row();                                                                 \
    if (row >= m_q + m_k + m_v) return;                                                   \
    half_t *y = v;                                                                        \
    float sum;                                                                            \
    if (row < m_q + m_k) {                                                                \
      const bool second = row >= m_q;                                                     \
      if (second) row -= m_q;                                                             \
      y = second ? k : q;                                                                 \
      sum = dot<QK>(second ? w_k : w_q, x, row, length);                                  \
    } else {                                                                              \
      row -= m_q + m_k;                                                                   \
      sum = dot<V>(w_v, x, row, length);                                                  \
    }                                                                                     \
    if (writes()) y[row] = float_to_half(sum);                                            \
  }

FOR_EACH_FORMAT(GEMV)
FOR_EACH_FORMAT(GEMV_LOGITS)
FOR_EACH_FORMAT(GEMV_ADD)
FOR_EACH_FORMAT(GEMV_PAIR)
#if HAS_Q4K
GEMV_TRIPLE(q4k_q4k_q4k, Q4K<Bytes>, Q4K<Bytes>)
GEMV_TRIPLE(q4k_q4k_q6k, Q4K<Bytes>, Q6K)
GEMV_TRIPLE(q4k_q4k_q4k_uint32, Q4K<Words>, Q4K<Words>)
GEMV_TRIPLE(q4k_q4k_q6k_uint32, Q4K<Words>, Q6K)
#endif
