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

// The time, in cycles of a multiprocessor and in nanoseconds.

#pragma once

#include "device.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ uint64_t cycles() { return clock64(); }
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
#else
// A clock of 1 GHz that moves whenever it is read.
static uint64_t ticks = 0;
static uint64_t cycles() { return ticks += 1000; }
static uint64_t nanoseconds() { return ticks += 1000; }
#endif
