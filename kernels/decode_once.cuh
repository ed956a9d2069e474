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

// Memory that the persistent decode kernel reads once a step: weights and the cache. The L2 cache
// gives it up first, so that what blocks exchange stays there.

#pragma once

#include "device.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// A predicate rather than a branch, which would cost four more instructions.
__device__ __forceinline__ void copy_async_if(bool wanted, void *to, const void *from) {
  const uint32_t address = uint32_t(__cvta_generic_to_shared(to));
  asm volatile("{ .reg .pred wanted; setp.ne.u32 wanted, %2, 0;\n"
               "@wanted cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %3; }"
               :: "r"(address), "l"(from), "r"(uint32_t(wanted)), "l"(evict_first())
               : "memory");
}
__device__ __forceinline__ void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
__device__ __forceinline__ uint4 load_once(const void *from) {
  uint4 v;
  asm("ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(evict_first()));
  return v;
}
__device__ __forceinline__ void prefetch(const void *from) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
}
#else
static void copy_async_if(bool wanted, void *to, const void *from) {
  if (wanted) memcpy(to, from, 16);
}
static void end_copy_group() {}
template <int N>
static void wait_for_copies() {}
static uint4 load_once(const void *from) { return *static_cast<const uint4 *>(from); }
static void prefetch(const void *) {}
#endif
