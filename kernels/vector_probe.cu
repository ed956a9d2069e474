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

// What a debug run prints of a vector, to find where a hidden state collapses or explodes: its
// Euclidean norm and first values. out (1 + first,) fp32. Grid 1, block any number of warps.

#include "reduce.cuh"

__device__ __forceinline__ float value_at(const float *x, int i) { return x[i]; }
__device__ __forceinline__ float value_at(const half_t *x, int i) { return half_to_float(x[i]); }

template <class T>
__device__ __forceinline__ void probe(float *out, const T *x, int count, int first) {
  __shared__ float partial[WARP_SIZE];
  float squares = 0.0f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const float value = value_at(x, i);
    squares = fmaf(value, value, squares);
  }
  const float norm = sqrtf(block_sum(squares, partial));
  if (threadIdx.x == 0) out[0] = norm;
  for (int i = threadIdx.x; i < min(first, count); i += blockDim.x) out[1 + i] = value_at(x, i);
}

// Of x (count,) fp32: the residual stream after a layer.
extern "C" __global__ void l2_probe(float *__restrict__ out, const float *__restrict__ x,
                                    int32_t count, int32_t first) {
  probe(out, x, count, first);
}

// Of each head of x (heads, dim) fp16, out (heads, 1 + first): grid heads.
extern "C" __global__ void head_probe(float *__restrict__ out, const half_t *__restrict__ x,
                                      int32_t dim, int32_t first) {
  probe(out + int64_t(blockIdx.x) * (1 + first), x + int64_t(blockIdx.x) * dim, dim, first);
}
