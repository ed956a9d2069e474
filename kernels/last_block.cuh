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

// Says, to every thread alike, whether this block completes `blocks`. What the others wrote before
// their calls is then there for reads past the first-level cache. The counter is 0 before and
// after.
__device__ __forceinline__ bool completes(uint32_t *counter, int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == uint32_t(blocks - 1);
    if (last) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}
