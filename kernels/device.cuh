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

// What every kernel needs of the machine: integer types, fp16 conversions, warp reductions.
//
// No header of the toolkit is included, so that NVRTC needs none. Kernels are compiled with
// --fmad=false: a product and a sum are fused only where the source says fmaf, and two kernels
// that must agree to the bit do on every compiler. What lies under __CUDACC__ is replaced where
// the kernels are compiled for the host.

#pragma once

#ifdef __CUDACC__

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// The bits of an IEEE binary16 number.
typedef unsigned short half_t;

__device__ __forceinline__ float half_to_float(half_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Rounds to nearest, ties to even; what does not fit becomes infinite.
__device__ __forceinline__ half_t float_to_half_unclamped(float value) {
  half_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// To within one unit in the last place; a denormal number counts as zero.
__device__ __forceinline__ float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// Shared memory whose size the launch gives.
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]

#endif

constexpr float HALF_MAX = 65504.0f;
constexpr int WARP_SIZE = 32;

// Saturates at the largest finite number: Qwen has activations beyond it. NaN stays NaN.
__device__ __forceinline__ half_t float_to_half(float value) {
  value = value > HALF_MAX ? HALF_MAX : value;
  value = value < -HALF_MAX ? -HALF_MAX : value;
  return float_to_half_unclamped(value);
}

// The quotient of a number below 2^20 and one below 2^10, exactly, in a quarter of the time.
__device__ __forceinline__ int quotient(int number, int divisor) {
  return int((float(number) + 0.5f) * reciprocal(float(divisor)));
}

// Every lane gets the sum over the warp, added in the same order on every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int lanes = WARP_SIZE / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lanes);
  }
  return value;
}

// Sums over the warp of the first `count` values; lane t returns that of value t.
template <int N>
__device__ __forceinline__ float own_sum(const float (&values)[N], int count) {
  const int lane = threadIdx.x % WARP_SIZE;
  float own = 0.0f;
#pragma unroll
  for (int t = 0; t < N; ++t) {
    if (t >= count) break;
    const float sum = warp_sum(values[t]);
    if (t == lane) own = sum;
  }
  return own;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int lanes = WARP_SIZE / 2; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  return value;
}
