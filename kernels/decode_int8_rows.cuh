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

// Rows of an int8 cache in the persistent decode kernel, as the tensor cores' factors: an int8 is
// exact as fp16. A key's scale goes to its scores, a value's to its weights.

#pragma once

#include "decode_block.cuh"
#include "kv_int8.cuh"
#include "mma.cuh"

#ifdef __CUDACC__
// Of two fp16 numbers each.
__device__ __forceinline__ uint32_t subtract_pair(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
#else
static uint32_t subtract_pair(uint32_t a, uint32_t b) {
  const auto half = [=](int shift) {
    const float difference = half_to_float(half_t(a >> shift)) - half_to_float(half_t(b >> shift));
    return uint32_t(float_to_half(difference)) << shift;
  };
  return half(0) | half(16);
}
#endif

constexpr uint32_t ADD_128 = 0x80808080u;  // to four int8, by exclusive or

// Two fp16 numbers of bytes 0 and 1, or 2 and 3, to which 128 was added. A conversion runs at a
// fraction of the rate of these two: the byte becomes the low bits of 1024.
__device__ __forceinline__ uint32_t lower_pair(uint32_t bytes) {
  return subtract_pair(__byte_perm(bytes, 0x64646464u, 0x4140), 0x64806480u);
}
__device__ __forceinline__ uint32_t upper_pair(uint32_t bytes) {
  return subtract_pair(__byte_perm(bytes, 0x64646464u, 0x4342), 0x64806480u);
}

// The scales of rows g and g + 8.
__device__ __forceinline__ void load_scales(float (&scales)[2], const float *from, int group,
                                            int first, int end) {
  const int g = threadIdx.x % WARP_SIZE / 4;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    scales[row] = __ldcg(from + int64_t(min(first + g + 8 * row, end - 1)) * GROUPS + group);
  }
}

// Keys as the left factor: lane 4 g + t has of rows g and g + 8 elements 16 t to 16 t + 15 of each
// 64.
struct Int8KeyRows {
  uint4 low[DIM / 64], high[DIM / 64];
  float scales[2];

  __device__ __forceinline__ void load(const Int8Kv &kv, int group, int first, int end) {
    const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
    const int8_t *const keys = kv.keys + group * DIM + 16 * t;
    const int8_t *const a = keys + int64_t(min(first + g, end - 1)) * KEY;
    const int8_t *const b = keys + int64_t(min(first + g + 8, end - 1)) * KEY;
#pragma unroll
    for (int i = 0; i < DIM / 64; ++i) {
      low[i] = load_once(a + 64 * i);
      high[i] = load_once(b + 64 * i);
    }
    load_scales(scales, kv.key_scales, group, first, end);
  }

  // Adds products with the column of each pass, of which the first is given, to two chains.
  __device__ __forceinline__ void multiply(MatrixC (&c)[2], const half_t *column) const {
    const half_t *const queries = column + 16 * (threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < DIM / 32; ++i) {
      MatrixA keys[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t a = word_of(low[i / 2], i % 2 * 2 + k) ^ ADD_128;
        const uint32_t b = word_of(high[i / 2], i % 2 * 2 + k) ^ ADD_128;
        keys[k] = {{lower_pair(a), lower_pair(b), upper_pair(a), upper_pair(b)}};
      }
#pragma unroll
      for (int pass = 0; pass < PASSES; ++pass) {
        const uint4 q = *reinterpret_cast<const uint4 *>(
            queries + pass * PASS_COLUMNS * COLUMN_HALVES + i / 2 * 64 + i % 2 * 8);
        multiply_add(c[0], keys[0], {{q.x, q.y}});
        multiply_add(c[1], keys[1], {{q.z, q.w}});
      }
    }
  }

  // A product with row g (0) or g + 8 (1).
  __device__ __forceinline__ float scaled(int row, float product) const {
    return product * scales[row];
  }
};

// Values, to be transposed: lane 4 g + t has of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 elements
// 16 g to 16 g + 15; and the scales of rows g and g + 8.
struct Int8ValueRows {
  uint4 rows[4];
  float scales[2];

  __device__ __forceinline__ void load(const Int8Kv &kv, int group, int first, int end) {
    const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
    const int8_t *const values = kv.values + group * DIM + 16 * g;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = min(first + 2 * t + i % 2 + i / 2 * 8, end - 1);
      rows[i] = load_once(values + int64_t(row) * KEY);
    }
    load_scales(scales, kv.value_scales, group, first, end);
  }

  // The left factor of 16 of the elements: this lane's 2 i and 2 i + 1.
  __device__ __forceinline__ MatrixA pairs(int i) const {
    uint32_t word[4];
#pragma unroll
    for (int row = 0; row < 4; ++row) word[row] = word_of(rows[row], i / 2);
    const uint32_t bytes = i % 2 ? 0x7362 : 0x5140;  // of two rows in turn
    const uint32_t a = __byte_perm(word[0], word[1], bytes) ^ ADD_128;
    const uint32_t b = __byte_perm(word[2], word[3], bytes) ^ ADD_128;
    return {{lower_pair(a), upper_pair(a), lower_pair(b), upper_pair(b)}};
  }

  // Of row g (0) or g + 8 (1): a score as references count it, a weight as values take it. Both
  // have the scale, so that the largest product, not the largest weight, fills two fp16 numbers.
  // Rows of zeros have a scale of 0: a reference far below that of any other, but sums of weights
  // are to stay finite.
  __device__ __forceinline__ float raised(int row, float score) const {
    return score + __log2f(fmaxf(scales[row], 0x1p-80f));
  }
  __device__ __forceinline__ float scaled(int row, float weight) const {
    return weight * scales[row];
  }

  // Which element of a row is the `i`th of lane 4 g + t, and where it lies in shared memory: lanes
  // that write together use different banks.
  static __device__ __forceinline__ int element(int g, int i) { return 16 * g + i; }
  static __device__ __forceinline__ int place(int element) { return element ^ element / 32 * 4; }
};

// A head's row of the newest position, of a warp, on its way into the cache: what is kept of an
// element, and what is read of that. It is fp16 first, as where it passes through memory.
struct Int8NewestRow {
  Int8Row row{0.0f};

  __device__ __forceinline__ void measure(const float (&values)[4]) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      largest = fmaxf(largest, fabsf(half_to_float(float_to_half(values[i]))));
    }
    row = Int8Row(warp_max(largest));
  }
  __device__ __forceinline__ void store_scale(const Int8Kv &kv, bool is_key, int64_t at) const {
    if (threadIdx.x % WARP_SIZE == 0) (is_key ? kv.key_scales : kv.value_scales)[at] = row.scale;
  }
  __device__ __forceinline__ int8_t kept(float value) const {
    return row.level(float_to_half(value));
  }
  __device__ __forceinline__ float read(int8_t kept) const { return float(kept) * row.scale; }
};
