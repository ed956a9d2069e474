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

// Element by element: SwiGLU, residual add, conversions. Grid ceil(count / 128), block 128.

#include "device.cuh"

// out = silu(gate) * up, all (count) fp16. out may be gate or up.
extern "C" __global__ void swiglu(half_t *out, const half_t *gate, const half_t *up,
                                  int32_t count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float x = half_to_float(gate[i]);
  // A large negative gate overflows to infinity, and dividing by that is the right zero.
  out[i] = float_to_half(x / (1.0f + expf(-x)) * half_to_float(up[i]));
}

// x += y: x (count) fp32, y (count) fp16.
extern "C" __global__ void residual_add(float *__restrict__ x, const half_t *__restrict__ y,
                                        int32_t count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) x[i] += half_to_float(y[i]);
}

// The names of the spec's half_to_float and its inverse belong to the conversions of one number.
extern "C" __global__ void halves_to_floats(float *__restrict__ out, const half_t *__restrict__ x,
                                            int32_t count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = half_to_float(x[i]);
}

extern "C" __global__ void floats_to_halves(half_t *__restrict__ out, const float *__restrict__ x,
                                            int32_t count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = float_to_half(x[i]);
}
