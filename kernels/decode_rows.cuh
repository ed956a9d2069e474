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

// Rows of the cache in the persistent decode kernel: a warp multiplies 16 keys at a time with the
// queries of a group, and their values with the weights, on tensor cores.
//
// A row's elements are an index that both factors share, and so are positions, so lanes hold them
// as 16-byte loads bring them. Queries and weights are two fp16 numbers each, a rounded one and
// what it left, which keeps 22 bits.

#pragma once

#include "decode_block.cuh"
#include "mma.cuh"

constexpr int ROWS = 16;  // that a warp multiplies at once
// Columns of a product are the heads of a group: of up to four, both numbers of each; of more,
// one number a product.
constexpr int PASSES = SHARED_HEADS > 4 ? 2 : 1;
constexpr int LANE_HEADS = PASSES;  // heads whose scores a lane has
// Weights may grow to 2^8 before a larger score becomes their reference.
constexpr float HEADROOM = 8.0f;

// The first of the heads whose columns of a product a lane has; the others follow.
__device__ __forceinline__ int first_lane_head() {
  return threadIdx.x % 4 * LANE_HEADS;
}

// Rows of keys as the left factor: lane 4 g + t has of rows g and g + 8 elements 8 t to 8 t + 7 of
// each 32.
struct KeyRows {
  uint4 low[DIM / 32], high[DIM / 32];

  __device__ __forceinline__ void load(const half_t *keys, int first, int end) {
    const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
    const half_t *const a = keys + int64_t(min(first + g, end - 1)) * KEY + 8 * t;
    const half_t *const b = keys + int64_t(min(first + g + 8, end - 1)) * KEY + 8 * t;
#pragma unroll
    for (int i = 0; i < DIM / 32; ++i) {
      low[i] = __ldcg(reinterpret_cast<const uint4 *>(a + 32 * i));
      high[i] = __ldcg(reinterpret_cast<const uint4 *>(b + 32 * i));
    }
  }
};

// Rows of values, to be transposed: lane 4 g + t has of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9
// elements 8 g to 8 g + 7 of each 64.
struct ValueRows {
  uint4 rows[4][DIM / 64];

  __device__ __forceinline__ void load(const half_t *values, int first, int end) {
    const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = min(first + 2 * t + i % 2 + i / 2 * 8, end - 1);
      const half_t *const from = values + int64_t(row) * KEY + 8 * g;
#pragma unroll
      for (int half = 0; half < DIM / 64; ++half) {
        rows[i][half] = __ldcg(reinterpret_cast<const uint4 *>(from + 64 * half));
      }
    }
  }
};

__device__ __forceinline__ uint32_t word_of(const uint4 &words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// The rounded number of a value, and of what that left.
__device__ __forceinline__ uint32_t split(float value) {
  const half_t high = float_to_half(value);
  return high | uint32_t(float_to_half(value - half_to_float(high))) << 16;
}

// What a warp knows of its rows: of each head a reference that scores are given relative to, the
// sum of weights (its own rows' until `end`) and weighted values, as the product leaves them.
struct WarpAttention {
  float largest[LANE_HEADS], total[LANE_HEADS];
  MatrixC sums[DIM / 16];

  __device__ __forceinline__ WarpAttention() {
#pragma unroll
    for (int j = 0; j < LANE_HEADS; ++j) {
      largest[j] = NOTHING;
      total[j] = 0.0f;
    }
#pragma unroll
    for (MatrixC &c : sums) c = {};
  }

  // Makes the largest score of the warp the reference where one has outgrown it.
  __device__ __forceinline__ void refer(const float (&score)[2][LANE_HEADS]) {
    bool outgrown = false;
#pragma unroll
    for (int j = 0; j < LANE_HEADS; ++j) {
      outgrown |= fmaxf(score[0][j], score[1][j]) > largest[j] + HEADROOM;
    }
    if (!__any_sync(EVERY_LANE, outgrown)) return;
#pragma unroll
    for (int j = 0; j < LANE_HEADS; ++j) {
      float now = fmaxf(score[0][j], score[1][j]);
#pragma unroll
      for (int lanes = 4; lanes < WARP_SIZE; lanes *= 2) {
        now = fmaxf(now, __shfl_xor_sync(EVERY_LANE, now, lanes));
      }
      now = fmaxf(now, largest[j]);
      const float shrink = exp2f(largest[j] - now);
      largest[j] = now;
      total[j] *= shrink;
#pragma unroll
      for (MatrixC &c : sums) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (PASSES == 1 || i % 2 == j) c.values[i] *= shrink;
        }
      }
    }
  }

  // Adds values weighted by one product's numbers: `low` of rows 0 to 7, `high` of the others.
  __device__ __forceinline__ void add(const ValueRows &values, uint32_t low, uint32_t high) {
    const MatrixB weights = {{transposed(low), transposed(high)}};
#pragma unroll
    for (int half = 0; half < DIM / 64; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t word[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) word[row] = word_of(values.rows[row][half], i);
        const MatrixA pairs = {{__byte_perm(word[0], word[1], 0x5410),
                                __byte_perm(word[0], word[1], 0x7632),
                                __byte_perm(word[2], word[3], 0x5410),
                                __byte_perm(word[2], word[3], 0x7632)}};
        multiply_add(sums[half * 4 + i], pairs, weights);
      }
    }
  }

  // Takes all lanes' sums of weights together.
  __device__ __forceinline__ void end() {
#pragma unroll
    for (int j = 0; j < LANE_HEADS; ++j) {
#pragma unroll
      for (int lanes = 4; lanes < WARP_SIZE; lanes *= 2) {
        total[j] += __shfl_xor_sync(EVERY_LANE, total[j], lanes);
      }
    }
  }

  // One of the 16 elements that this lane has of its head j: 8 g + i % 8 + 64 (i / 8).
  __device__ __forceinline__ float element(int j, int i) const {
    const float *const c = sums[i / 8 * 4 + i % 8 / 2].values + i % 2 * 2;
    return PASSES == 1 ? c[0] + c[1] : c[j];
  }
};

// Scores of rows g and g + 8, in powers of 2.
__device__ __forceinline__ void score_rows(float (&score)[2][LANE_HEADS], const KeyRows &keys,
                                           const half_t (&queries)[QUERY_COLUMNS][DIM + 8],
                                           int first, int end) {
  constexpr int COLUMNS = QUERY_COLUMNS / PASSES;
  const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
  const half_t *const column = queries[min(g, COLUMNS - 1)] + 8 * t;  // those behind say nothing
  MatrixC c[2] = {};  // two chains
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
#pragma unroll
    for (int i = 0; i < DIM / 32; ++i) {
      const uint4 q =
          *reinterpret_cast<const uint4 *>(column + pass * COLUMNS * (DIM + 8) + 32 * i);
      const uint4 &low = keys.low[i], &high = keys.high[i];
      multiply_add(c[0], {{low.x, high.x, low.y, high.y}}, {{q.x, q.y}});
      multiply_add(c[1], {{low.z, high.z, low.w, high.w}}, {{q.z, q.w}});
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const bool exists = first + g + 8 * row < end;
    const float even = c[0].values[2 * row] + c[1].values[2 * row];
    const float odd = c[0].values[2 * row + 1] + c[1].values[2 * row + 1];
    if (PASSES == 1) {
      score[row][0] = exists ? even + odd : NOTHING;
    } else {
      score[row][0] = exists ? even : NOTHING;
      score[row][LANE_HEADS - 1] = exists ? odd : NOTHING;
    }
  }
}

// This warp's rows of a part: `keys` and `values` hold its first ones already.
__device__ __forceinline__ void attend_rows(WarpAttention &attention, KeyRows &keys,
                                            ValueRows &values, const Shared *shared, int group,
                                            int first, int end) {
#pragma unroll 1
  for (; first < end; first += WARPS * ROWS) {
    __syncwarp();  // else queries and addresses are kept in registers, which are few
    float score[2][LANE_HEADS];
    score_rows(score, keys, shared->attention.queries, first, end);
    const int next = first + WARPS * ROWS;
    if (next < end) keys.load(shared->layer.keys + group * DIM, next, end);
    attention.refer(score);
    uint32_t numbers[2][LANE_HEADS];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int j = 0; j < LANE_HEADS; ++j) {
        const float weight = exp2f(score[row][j] - attention.largest[j]);
        attention.total[j] += weight;
        numbers[row][j] = split(weight);
      }
    }
    if (PASSES == 1) {
      attention.add(values, numbers[0][0], numbers[1][0]);
    } else {
#pragma unroll
      for (int pass = 0; pass < PASSES; ++pass) {
        const uint32_t which = pass ? 0x7632 : 0x5410;
        attention.add(values, __byte_perm(numbers[0][0], numbers[0][LANE_HEADS - 1], which),
                      __byte_perm(numbers[1][0], numbers[1][LANE_HEADS - 1], which));
      }
    }
    if (next < end) values.load(shared->layer.values + group * DIM, next, end);
  }
}
