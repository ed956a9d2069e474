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

// The dot product of one matrix row and N activation vectors, by one warp: what every
// matrix-vector and small matrix-matrix kernel is made of.
//
// The sums of a vector are added in an order that does not depend on N, the epilogue or the
// width of the loads, so all kernels of a format agree to the bit.

#pragma once

#include "blocks.cuh"

constexpr int WARPS_PER_BLOCK = 4;  // blocks of 128 threads, a row a warp
constexpr int BLOCK_THREADS = WARPS_PER_BLOCK * WARP_SIZE;

__device__ __forceinline__ float dot4(const float *w, const half_t *x, float sum) {
  const uint2 bits = *reinterpret_cast<const uint2 *>(x);
  sum = fmaf(w[0], half_to_float(half_t(bits.x)), sum);
  sum = fmaf(w[1], half_to_float(half_t(bits.x >> 16)), sum);
  sum = fmaf(w[2], half_to_float(half_t(bits.y)), sum);
  return fmaf(w[3], half_to_float(half_t(bits.y >> 16)), sum);
}

template <class W>
__device__ __forceinline__ float dot_part(const float (&w)[8], const half_t *x, float sum) {
  return dot4(w + 4, x + W::STRIDE, dot4(w, x, sum));
}

template <class W>
__device__ __forceinline__ float dot_part(const float (&w)[1], const half_t *x, float sum) {
  return fmaf(w[0], half_to_float(*x), sum);
}

// What a kernel for a batch makes of its sums: fp16, saturated; fp32; fp32 residual + sum, where y
// may be residual, which is not read otherwise.
enum Output { ROUNDED, UNROUNDED, ADDED };

__device__ __forceinline__ void put(
    void *y, const float *residual, int64_t at, float sum, int output) {
  if (output == ROUNDED) {
    static_cast<half_t *>(y)[at] = float_to_half(sum);
  } else {
    static_cast<float *>(y)[at] = output == ADDED ? residual[at] + sum : sum;
  }
}

// Adds the products of weights w, this lane's of a block, with x[t] to sum[t], for x (N, K) and t
// below count <= N.
template <class W, int N, int PER_LANE>
__device__ __forceinline__ void add_products(
    float (&sum)[N], const float (&w)[PER_LANE], const half_t *x, int k, int count) {
  // Unrolled over all N, so that sums stay in registers.
#pragma unroll
  for (int t = 0; t < N; ++t) {
    if (N > 1 && t >= count) break;
    sum[t] = dot_part<W>(w, x + int64_t(t) * k, sum[t]);
  }
}

// Adds this lane's share of row x[t] to sum[t], for x (N, K) and t below count <= N.
template <class W, int N>
__device__ __forceinline__ void dot_row(
    float (&sum)[N], const typename W::Block *__restrict__ row, const half_t *__restrict__ x,
    int k, int count) {
  const int lane = threadIdx.x % WARP_SIZE, part = lane % W::LANES;
  const int blocks = k / W::WEIGHTS;
  x += W::x_offset(part);
  for (int b = lane / W::LANES; b < blocks; b += WARP_SIZE / W::LANES) {
    float w[W::PER_LANE];
    W::dequantize(w, row[b], part);
    add_products<W>(sum, w, x + b * W::WEIGHTS, k, count);
  }
}

// The whole product W[row] . x, on every lane.
template <class W>
__device__ __forceinline__ float dot(
    const typename W::Block *__restrict__ w, const half_t *__restrict__ x, int row, int k) {
  float sum[1] = {0.0f};
  dot_row<W>(sum, w + int64_t(row) * (k / W::WEIGHTS), x, k, 1);
  return warp_sum(sum[0]);
}
