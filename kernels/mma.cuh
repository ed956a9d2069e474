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

// Products of small fp16 matrices by a warp, on tensor cores, accumulated in fp32.
//
// Lane 4 g + t holds, two fp16 a word, the lower first: of A (16, 16) rows g and g + 8, columns
// 2t, 2t + 1 (words 0, 1) and 2t + 8, 2t + 9 (words 2, 3); of B (16, 8) column g, rows 2t, 2t + 1
// and 2t + 8, 2t + 9; of C (16, 8) in fp32 rows g (0, 1) and g + 8 (2, 3), columns 2t, 2t + 1.

#pragma once

#include "device.cuh"

struct MatrixA {
  uint32_t words[4];
};

struct MatrixB {
  uint32_t words[2];
};

struct MatrixC {
  float values[4];
};

__device__ __forceinline__ uint32_t word_of(const uint4 &words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

#ifdef __CUDACC__
// c += a b
__device__ __forceinline__ void multiply_add(MatrixC &c, const MatrixA &a, const MatrixB &b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.values[0]), "+f"(c.values[1]), "+f"(c.values[2]), "+f"(c.values[3])
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]),
        "r"(b.words[1]));
}

// Of an (8, 8) matrix of fp16 of which lane 4 g + t holds row g, columns 2t and 2t + 1.
__device__ __forceinline__ uint32_t transposed(uint32_t word) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
}
#else
static void multiply_add(MatrixC &c, const MatrixA &a, const MatrixB &b) {
  const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
  for (int from = 0; from < 4; ++from) {
    const uint64_t below = __shfl_sync(~0u, a.words[0] | uint64_t(a.words[2]) << 32, 4 * g + from);
    const uint64_t above = __shfl_sync(~0u, a.words[1] | uint64_t(a.words[3]) << 32, 4 * g + from);
    const uint64_t mine = b.words[0] | uint64_t(b.words[1]) << 32;
    const uint64_t columns[2] = {__shfl_sync(~0u, mine, 8 * t + from),
                                 __shfl_sync(~0u, mine, 8 * t + 4 + from)};
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 64; k += 16) {
        c.values[i] = fmaf(half_to_float(half_t((i < 2 ? below : above) >> k)),
                           half_to_float(half_t(columns[i % 2] >> k)), c.values[i]);
      }
    }
  }
}

static uint32_t transposed(uint32_t word) {
  const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
  const uint32_t first = __shfl_sync(~0u, word, 8 * t + g / 2);
  const uint32_t second = __shfl_sync(~0u, word, 8 * t + 4 + g / 2);
  return __byte_perm(first, second, g % 2 ? 0x7632 : 0x5410);
}
#endif
