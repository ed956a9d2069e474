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

#include "decode_half_rows.cuh"
#include "decode_int8_rows.cuh"

template <class Kv>
struct RowsOf;
template <>
struct RowsOf<HalfKv> {
  using Keys = HalfKeyRows;
  using Values = HalfValueRows;
  using Newest = HalfNewestRow;
};
template <>
struct RowsOf<Int8Kv> {
  using Keys = Int8KeyRows;
  using Values = Int8ValueRows;
  using Newest = Int8NewestRow;
};
using KeyRows = RowsOf<Kv>::Keys;
using ValueRows = RowsOf<Kv>::Values;
using NewestRow = RowsOf<Kv>::Newest;

constexpr int ROWS = 16;  // that a warp multiplies at once
constexpr int LANE_HEADS = PASSES;  // heads whose scores a lane has
// Weights may grow to 2^8 before a larger score becomes their reference.
constexpr float HEADROOM = 8.0f;

// The first of the heads whose columns of a product a lane has; the others follow.
__device__ __forceinline__ int first_lane_head() {
  return threadIdx.x % 4 * LANE_HEADS;
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

  // Adds values weighted by the numbers of a product each: of rows 0 to 7, and of the others.
  __device__ __forceinline__ void add(const ValueRows &values,
                                      const uint32_t (&numbers)[PASSES][2]) {
    MatrixB weights[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
      weights[pass] = {{transposed(numbers[pass][0]), transposed(numbers[pass][1])}};
    }
#pragma unroll
    for (int i = 0; i < DIM / 16; ++i) {
      const MatrixA pairs = values.pairs(i);
#pragma unroll
      for (int pass = 0; pass < PASSES; ++pass) multiply_add(sums[i], pairs, weights[pass]);
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

  // One of the 16 elements that this lane has of its head j.
  __device__ __forceinline__ float element(int j, int i) const {
    const float *const c = sums[i / 2].values + i % 2 * 2;
    return PASSES == 1 ? c[0] + c[1] : c[j];
  }
};

// Scores of rows g and g + 8, in powers of 2.
__device__ __forceinline__ void score_rows(float (&score)[2][LANE_HEADS], const KeyRows &keys,
                                           const half_t (&queries)[QUERY_COLUMNS][COLUMN_HALVES],
                                           int first, int end) {
  const int g = threadIdx.x % WARP_SIZE / 4;
  MatrixC c[2] = {};
  keys.multiply(c, queries[min(g, PASS_COLUMNS - 1)]);  // those behind say nothing
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const bool exists = first + g + 8 * row < end;
    const float even = c[0].values[2 * row] + c[1].values[2 * row];
    const float odd = c[0].values[2 * row + 1] + c[1].values[2 * row + 1];
    if (PASSES == 1) {
      score[row][0] = exists ? keys.scaled(row, even + odd) : NOTHING;
    } else {
      score[row][0] = exists ? keys.scaled(row, even) : NOTHING;
      score[row][LANE_HEADS - 1] = exists ? keys.scaled(row, odd) : NOTHING;
    }
  }
}

// This warp's rows of a part: `keys` and `values` hold its first ones already.
__device__ __forceinline__ void attend_rows(WarpAttention &attention, KeyRows &keys,
                                            ValueRows &values, const Shared *shared, const Kv &kv,
                                            int group, int first, int end) {
#pragma unroll 1
  for (; first < end; first += WARPS * ROWS) {
    __syncwarp();  // else queries and addresses are kept in registers, which are few
    float score[2][LANE_HEADS];
    score_rows(score, keys, shared->attention.queries, first, end);
    const int next = first + WARPS * ROWS;
    if (next < end) keys.load(kv, group, next, end);
    float raised[2][LANE_HEADS];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int j = 0; j < LANE_HEADS; ++j) raised[row][j] = values.raised(row, score[row][j]);
    }
    attention.refer(raised);
    uint32_t numbers[2][LANE_HEADS];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int j = 0; j < LANE_HEADS; ++j) {
        const float weight = exp2f(score[row][j] - attention.largest[j]);
        attention.total[j] += weight;
        numbers[row][j] = split(values.scaled(row, weight));
      }
    }
    if constexpr (PASSES == 1) {
      attention.add(values, {{numbers[0][0], numbers[1][0]}});
    } else {
      uint32_t products[PASSES][2];
#pragma unroll
      for (int pass = 0; pass < PASSES; ++pass) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          products[pass][row] = __byte_perm(numbers[row][0], numbers[row][LANE_HEADS - 1],
                                            pass ? 0x7632 : 0x5410);
        }
      }
      attention.add(values, products);
    }
    if (next < end) values.load(kv, group, next, end);
  }
}
