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

// Reductions over a block, in a fixed order: lanes of a warp, then warps.
//
// Every thread of the block must call them; the block is whole warps. `partial` is shared memory
// of one element a warp and may be used again after the call returns.

#pragma once

#include "device.cuh"

__device__ __forceinline__ float block_sum(float value, float *partial) {
  const int warps = blockDim.x / WARP_SIZE;
  value = warp_sum(value);
  if (threadIdx.x % WARP_SIZE == 0) partial[threadIdx.x / WARP_SIZE] = value;
  __syncthreads();
  float total = partial[0];
  for (int warp = 1; warp < warps; ++warp) total += partial[warp];
  __syncthreads();
  return total;
}

__device__ __forceinline__ float block_max(float value, float *partial) {
  const int warps = blockDim.x / WARP_SIZE;
  value = warp_max(value);
  if (threadIdx.x % WARP_SIZE == 0) partial[threadIdx.x / WARP_SIZE] = value;
  __syncthreads();
  float largest = partial[0];
  for (int warp = 1; warp < warps; ++warp) largest = fmaxf(largest, partial[warp]);
  __syncthreads();
  return largest;
}
