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

// Which block of several is the last: it can finish what all of them began.

#pragma once

#include "device.cuh"

// Adds 1 after everything that happened before in this thread and, through barriers, in its
// block. A fence by every thread would also empty the first-level cache of what the other blocks
// of the multiprocessor are about to read again.
__device__ __forceinline__ uint32_t count(uint32_t *counter) {
#ifdef __CUDACC__
  uint32_t earlier;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;"
               : "=r"(earlier) : "l"(counter) : "memory");
  return earlier;
#else
  return atomicAdd(counter, 1u);
#endif
}

// For one thread, after a barrier of its block: whether this block completes `blocks`. What the
// others wrote before their calls is then there for reads past the first-level cache. The counter
// is 0 before and after.
__device__ __forceinline__ bool counts_last(uint32_t *counter, int blocks) {
  if (count(counter) != uint32_t(blocks - 1)) return false;
  *counter = 0;
  __threadfence();
  return true;
}

// The same, said to every thread alike; a barrier by itself.
__device__ __forceinline__ bool completes(uint32_t *counter, int blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = counts_last(counter, blocks);
  __syncthreads();
  return last;
}

// The same, said to the first warp; the other warps are done.
__device__ __forceinline__ bool first_warp_completes(uint32_t *counter, int blocks) {
  __syncthreads();
  if (threadIdx.x >= WARP_SIZE) return false;
  int last = 0;
  if (threadIdx.x == 0) last = counts_last(counter, blocks);
  return __shfl_sync(0xffffffffu, last, 0) != 0;
}
