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

// Rows of an fp16 cache in the persistent decode kernel, as the tensor cores' factors.

#pragma once

#include "decode_block.cuh"
#include "mma.cuh"

// Keys as the left factor: lane 4 g + t has of rows g and g + 8 elements 8 t to 8 t + 7 of each
// 32.
struct HalfKeyRows {
  uint4 low[DIM / 32], high[DIM / 32];

  __device__ __forceinline__ void load(const HalfKv &kv, int group, int first, int end) {
    const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
    const half_t *const keys = kv.keys + group * DIM;
    const half_t *const a = keys + int64_t(min(first + g, end - 1)) * KEY + 8 * t;
    const half_t *const b = keys + int64_t(min(first + g + 8, end - 1)) * KEY + 8 * t;
#pragma unroll
    for (int i = 0; i < DIM / 32; ++i) {
      low[i] = load_once(a + 32 * i);
      high[i] = load_once(b + 32 * i);
    }
  }

  // Adds products with the column of each pass, of which the first is given, to two chains.
  __device__ __forceinline__ void multiply(MatrixC (&c)[2], const half_t *column) const {
    const half_t *const queries = column + 8 * (threadIdx.x % 4);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
#pragma unroll
      for (int i = 0; i < DIM / 32; ++i) {
        const uint4 q = *reinterpret_cast<const uint4 *>(
            queries + pass * PASS_COLUMNS * COLUMN_HALVES + 32 * i);
        multiply_add(c[0], {{low[i].x, high[i].x, low[i].y, high[i].y}}, {{q.x, q.y}});
        multiply_add(c[1], {{low[i].z, high[i].z, low[i].w, high[i].w}}, {{q.z, q.w}});
      }
    }
  }

  // A product with row g (0) or g + 8 (1).
  __device__ __forceinline__ float scaled(int, float product) const { return product; }
};

// Values, to be transposed: lane 4 g + t has of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 elements
// 8 g to 8 g + 7 of each 64.
struct HalfValueRows {
  uint4 rows[4][DIM / 64];

  __device__ __forceinline__ void load(const HalfKv &kv, int group, int first, int end) {
    const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
    const half_t *const values = kv.values + group * DIM;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = min(first + 2 * t + i % 2 + i / 2 * 8, end - 1);
      const half_t *const from = values + int64_t(row) * KEY + 8 * g;
#pragma unroll
      for (int half = 0; half < DIM / 64; ++half) {
        rows[i][half] = load_once(from + 64 * half);
      }
    }
  }

  // The left factor of 16 of the elements: this lane's 2 i and 2 i + 1.
  __device__ __forceinline__ MatrixA pairs(int i) const {
    uint32_t word[4];
#pragma unroll
    for (int row = 0; row < 4; ++row) word[row] = word_of(rows[row][i / 4], i % 4);
    return {{__byte_perm(word[0], word[1], 0x5410), __byte_perm(word[0], word[1], 0x7632),
             __byte_perm(word[2], word[3], 0x5410), __byte_perm(word[2], word[3], 0x7632)}};
  }

  // Of row g (0) or g + 8 (1): a score as references count it, a weight as values take it.
  __device__ __forceinline__ float raised(int, float score) const { return score; }
  __device__ __forceinline__ float scaled(int, float weight) const { return weight; }

  // Which element of a row is the `i`th of lane 4 g + t, and where it lies in shared memory.
  static __device__ __forceinline__ int element(int g, int i) {
    return 8 * g + i / 8 * 64 + i % 8;
  }
  static __device__ __forceinline__ int place(int element) { return element; }
};

// A head's row of the newest position, of a warp, on its way into the cache: what is kept of an
// element, and what is read of that.
struct HalfNewestRow {
  __device__ __forceinline__ void measure(const float (&)[4]) {}
  __device__ __forceinline__ void store_scale(const HalfKv &, bool, int64_t) const {}
  __device__ __forceinline__ half_t kept(float value) const { return float_to_half(value); }
  __device__ __forceinline__ float read(half_t kept) const { return half_to_float(kept); }
};
