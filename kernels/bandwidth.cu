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

// What the benchmark compares decoding with: bytes read a second, and the clock.

#include "clock.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ uint4 read_once(const uint4 *from) { return __ldcs(from); }
#else
static uint4 read_once(const uint4 *from) { return *from; }
#endif

// Reads count times 16 bytes; out (1) keeps the reads from being left out. Any grid.
extern "C" __global__ void read_bytes(const uint4 *from, uint32_t *out, int64_t count) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  uint32_t sum = 0;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[k] = uint4{0, 0, 0, 0};
      if (i + k * stride < count) v[k] = read_once(from + i + k * stride);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x12345) *out = sum;
}

// elapsed (2): cycles, and the nanoseconds that they took, at least those given. One thread.
extern "C" __global__ void clock_rate(uint64_t *elapsed, int64_t least) {
  const uint64_t start = nanoseconds(), first = cycles();
  uint64_t now = start;
  while (now - start < uint64_t(least)) now = nanoseconds();
  elapsed[0] = cycles() - first;
  elapsed[1] = now - start;
}
