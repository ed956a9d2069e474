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

// Activations (N, K) for Q8_0 products, by kind (see q8.cuh): quantized, or as fp32. One warp a
// group of 32: grid ceil(N * K / 128), 128 threads. The _half kernels read fp16.

#include "q8.cuh"

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(half_t value) { return half_to_float(value); }

#define QUANTIZE(name, X, T)                                                             \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) name(                      \
      uint8_t *__restrict__ out, const T *__restrict__ x, int32_t n, int32_t k) {        \
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;                    \
    if (i < int64_t(n) * k) X::store(out, n, k, i, to_float(x[i]));                      \
  }

FOR_A8(QUANTIZE(quantize_a8, A8, float)
       QUANTIZE(quantize_a8_half, A8, half_t))
FOR_A8X2(QUANTIZE(quantize_a8x2, A8x2, float)
         QUANTIZE(quantize_a8x2_half, A8x2, half_t))
FOR_F32(QUANTIZE(quantize_f32_half, F32, half_t))
