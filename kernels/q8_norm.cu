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

// RMSNorm that writes activations for Q8_0 products (see q8.cuh), one token a block: grid N, block
// any number of warps.
//
// The norm is x * weight * factor with factor = 1 / sqrt(mean(x^2) + eps). The activations are
// x * weight; factors (N,) are left to the product, which is linear: so a group needs nothing of
// the others, and one pass is enough. squares (N, width/32) are the groups' sums of squares, from
// which the factor follows. The high words and scales of A8x2 are A8's.
//
//   rmsnorm_q8_*      x (N, width)
//   add_rmsnorm_q8_*  x += y first, both (N, width)
//   *_copy            the whole norm as fp32 too, for a consumer that reads fp32

#include "q8.cuh"

template <class X>
__device__ __forceinline__ void norm(
    uint8_t *out, float *factors, float *squares, float *copy, float *x, const float *y,
    const float *weight, int n, int width, float eps) {
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
  const int warps = blockDim.x / WARP_SIZE, groups = width / GROUP;
  const int64_t row = int64_t(blockIdx.x) * width;
  squares += int64_t(blockIdx.x) * groups;
  for (int group = warp; group < groups; group += warps) {
    const int i = group * GROUP + lane;
    float value = x[row + i];
    if (y) {
      value += y[row + i];
      x[row + i] = value;
    }
    const float sum = store_normed<X>(out, n, width, row + i, value, weight[i]);
    if (lane == 0) squares[group] = sum;
  }
  __syncthreads();
  const float factor = NormFactor(squares, width).value(width, eps);
  if (threadIdx.x == 0) factors[blockIdx.x] = factor;
  if (!copy) return;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    copy[row + i] = x[row + i] * weight[i] * factor;
  }
}

#define NORM(name, X)                                                                    \
  extern "C" __global__ void rmsnorm_q8_##name(                                          \
      uint8_t *__restrict__ out, float *__restrict__ factors, float *squares,           \
      float *__restrict__ x,                                                             \
      const float *__restrict__ weight, int32_t n, int32_t width, float eps) {           \
    norm<X>(out, factors, squares, nullptr, x, nullptr, weight, n, width, eps);                   \
  }                                                                                      \
  extern "C" __global__ void rmsnorm_q8_##name##_copy(                                   \
      uint8_t *__restrict__ out, float *__restrict__ factors, float *squares,           \
      float *__restrict__ copy,                                                          \
      float *__restrict__ x, const float *__restrict__ weight, int32_t n, int32_t width, \
      float eps) {                                                                       \
    norm<X>(out, factors, squares, copy, x, nullptr, weight, n, width, eps);                      \
  }                                                                                      \
  extern "C" __global__ void add_rmsnorm_q8_##name(                                      \
      uint8_t *__restrict__ out, float *__restrict__ factors, float *squares,           \
      float *__restrict__ x,                                                             \
      const float *__restrict__ y, const float *__restrict__ weight, int32_t n,          \
      int32_t width, float eps) {                                                        \
    norm<X>(out, factors, squares, nullptr, x, y, weight, n, width, eps);                         \
  }                                                                                      \
  extern "C" __global__ void add_rmsnorm_q8_##name##_copy(                               \
      uint8_t *__restrict__ out, float *__restrict__ factors, float *squares,           \
      float *__restrict__ copy,                                                          \
      float *__restrict__ x, const float *__restrict__ y,                                \
      const float *__restrict__ weight, int32_t n, int32_t width, float eps) {           \
    norm<X>(out, factors, squares, copy, x, y, weight, n, width, eps);                            \
  }

FOR_A8(NORM(a8, A8))
FOR_A8X2(NORM(a8x2, A8x2))
FOR_F32(NORM(f32, F32))

// factors (N,) from the sums of squares (N, width/32) that a fused kernel left. Grid N, block 32.
extern "C" __global__ void __launch_bounds__(WARP_SIZE)
    norm_factors(float *__restrict__ factors, const float *__restrict__ squares, int32_t width,
                 float eps) {
  const float factor =
      NormFactor(squares + int64_t(blockIdx.x) * (width / GROUP), width).value(width, eps);
  if (threadIdx.x == 0) factors[blockIdx.x] = factor;
}
