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

// SwiGLU that writes activations for Q8_0 products (see q8.cuh): silu(gate) * up of gate and up
// (N, K) fp32. The middle of the feed-forward goes through memory as int8 words. One warp a group
// of 32: grid ceil(N * K / 128), 128 threads.

#include "q8.cuh"

#define SWIGLU(name, X)                                                                  \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) name(                      \
      uint8_t *__restrict__ out, const float *__restrict__ gate,                         \
      const float *__restrict__ up, int32_t n, int32_t k) {                              \
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;                    \
    if (i < int64_t(n) * k) X::store(out, n, k, i, swiglu(gate[i], up[i]));              \
  }

FOR_A8(SWIGLU(swiglu_q8_a8, A8))
FOR_A8X2(SWIGLU(swiglu_q8_a8x2, A8x2))
FOR_F32(SWIGLU(swiglu_f32, F32))
