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

// Attention of the persistent decode kernel: one token's query heads against a cache of fp16 rows
// [positions][GROUPS][DIM]. A unit is one group's heads against one part of the cache; units are
// spread over the blocks.
//
// A warp multiplies 16 rows at a time on tensor cores. A row's elements are an index that both
// factors share, and so are positions, so lanes hold them as 16-byte loads bring them. Queries
// and weights are two fp16 numbers each, a rounded one and what it left, which keeps 22 bits.
// The newest position comes from this step itself: it is a part of its own within the last unit.

#pragma once

#include "decode_block.cuh"
#include "decode_exchange.cuh"
#include "mma.cuh"
#include "rope.cuh"

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

// Sines and cosines of the position, which all layers share.
__device__ __forceinline__ void set_rotation(float2 (&rotation)[DIM / 2],
                                             const uint64_t *turns, int position) {
  for (int i = threadIdx.x; i < DIM / 2; i += THREADS) {
    rope_angle(position, turns[i], &rotation[i].x, &rotation[i].y);
  }
}

// Norm and rotation of one head by one warp: lane holds elements lane + 32 i.
__device__ __forceinline__ void norm_and_rotate(float (&v)[4], const float (&weight)[4], float eps,
                                                const float2 (&rotation)[DIM / 2]) {
  const int lane = threadIdx.x % WARP_SIZE;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) squares = fmaf(v[i], v[i], squares);
  const float norm = rsqrtf(warp_sum(squares) * (1.0f / DIM) + eps);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= norm * weight[i];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 angle = rotation[lane + 32 * i];
    const float first = v[i], second = v[i + 2];
    v[i] = fmaf(first, angle.y, -(second * angle.x));
    v[i + 2] = fmaf(first, angle.x, second * angle.y);
  }
}

// Waits for the group's queries, a warp a head, and in the last unit for the newest key and value;
// puts them where the others find them, the newest also into the cache. `v` keeps a query.
__device__ __forceinline__ void receive(Block &block, float (&v)[4], int group, bool has_newest,
                                        int position, float eps, float score_scale) {
  Shared *const shared = block.shared;
  const Layer &layer = shared->layer;
  auto &scratch = shared->attention;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const bool is_query = warp < SHARED_HEADS, is_key = warp == SHARED_HEADS;
  if (warp >= (has_newest ? SHARED_HEADS + 2 : SHARED_HEADS)) return;
  const float *const norm = is_query ? layer.q_norm : layer.k_norm;
  float weight[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) weight[i] = norm[lane + 32 * i];
  await(v, block.work.qkv + lane + (is_query ? (group * SHARED_HEADS + warp) * DIM
                                    : is_key ? QUERY + group * DIM
                                             : QUERY + KEY + group * DIM), WARP_SIZE, block.tag);
  if (is_query || is_key) norm_and_rotate(v, weight, eps, shared->rotation);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int element = lane + 32 * i;
    if (is_query) {
      v[i] *= score_scale * LOG2_E;
      const uint32_t numbers = split(v[i]);
      const int column = PASSES == 1 ? 2 * warp : warp;
      scratch.queries[column][element] = half_t(numbers);
      scratch.queries[column + (PASSES == 1 ? 1 : SHARED_HEADS)][element] = half_t(numbers >> 16);
    } else {
      const half_t rounded = float_to_half(v[i]);
      const int64_t at = (int64_t(position) * GROUPS + group) * DIM + element;
      (is_key ? layer.keys : layer.values)[at] = rounded;
      (is_key ? scratch.newest_key : scratch.newest_value)[element] = half_to_float(rounded);
    }
  }
}

// Of each head the sum over this block's rows goes out: as the result where there is one part.
__device__ __forceinline__ void combine_warps(Block &block, const WarpAttention &attention,
                                              int group, int part, int active, int row_warps) {
  Shared *const shared = block.shared;
  auto &scratch = shared->attention;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const bool has_newest = part == active - 1;
  // Slot 0 is the newest position's, others are the warps'.
  const auto most_of = [&](int head) {
    float most = has_newest ? shared->head_largest[0][head] : NOTHING;
    for (int i = 1; i <= row_warps; ++i) most = fmaxf(most, shared->head_largest[i][head]);
    return most;
  };
  float shrink[LANE_HEADS];
#pragma unroll
  for (int j = 0; j < LANE_HEADS; ++j) {
    const int head = first_lane_head() + j;
    if (warp >= row_warps || head >= SHARED_HEADS) continue;
    shrink[j] = exp2f(attention.largest[j] - most_of(head));
    if (lane < 4) shared->head_total[warp + 1][head] = attention.total[j] * shrink[j];
  }
  if (warp == WARPS - 1 && lane < SHARED_HEADS) {
    const float most = most_of(lane);
    shared->head_most[lane] = most;
    shared->head_total[0][lane] =
        has_newest ? exp2f(shared->head_largest[0][lane] - most) : 0.0f;
  }
  const int at_once = min(SHARED_HEADS, WARPS / max(row_warps, 1));
#pragma unroll 1
  for (int first = 0; first < SHARED_HEADS; first += at_once) {
    if (first > 0) __syncthreads();
#pragma unroll
    for (int j = 0; j < LANE_HEADS; ++j) {
      const int head = first_lane_head() + j, slot = head - first;
      if (warp >= row_warps || head >= SHARED_HEADS || slot < 0 || slot >= at_once) continue;
      float *const row = scratch.rows[slot * row_warps + warp] + lane / 4 * 8;
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        *reinterpret_cast<float4 *>(row + i / 8 * 64 + i % 8) = make_float4(
            attention.element(j, i) * shrink[j], attention.element(j, i + 1) * shrink[j],
            attention.element(j, i + 2) * shrink[j], attention.element(j, i + 3) * shrink[j]);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < min(at_once, SHARED_HEADS - first) * DIM; i += THREADS) {
      const int head = first + i / DIM, element = i % DIM, number = group * SHARED_HEADS + head;
      const float newest = shared->head_total[0][head];
      float total = newest;
      float value = has_newest ? newest * scratch.newest_value[element] : 0.0f;
      for (int j = 0; j < row_warps; ++j) {
        total += shared->head_total[j + 1][head];
        value += scratch.rows[i / DIM * row_warps + j][element];
      }
      if (active == 1) {
        const float even = value / total, odd = __shfl_xor_sync(EVERY_LANE, even, 1);
        if (element % 2 == 0) {
          publish_pair(block.work.heads + pair_slot<QUERY>((number * DIM + element) / 2), even,
                       odd, block.tag);
        }
      } else {
        publish(block.work.parts + (part * HEADS + number) * DIM + element, value, block.tag);
        if (element < 2) {
          publish(block.work.weights + (part * HEADS + number) * 2 + element,
                  element == 0 ? shared->head_most[head] : total, block.tag);
        }
      }
    }
  }
}

// Each unit of a group adds the parts of its share of the group's elements, in their order.
__device__ __forceinline__ void combine_parts(Block &block, int group, int part, int active) {
  constexpr int ALL = SHARED_HEADS * DIM;
  constexpr int COUNT = (ALL + 2 * MOST_PARTS + THREADS - 1) / THREADS;
  Shared *const shared = block.shared;
  const int begin = ALL / 2 * part / active * 2;  // pairs
  const int count = ALL / 2 * (part + 1) / active * 2 - begin;
  const int first_head = begin / DIM, heads = (begin + count - 1) / DIM - first_head + 1;
  // The weights' words and the last of the values wait for each other, not for a second trip.
  uint64_t words[COUNT + 1];
  const uint64_t *from[COUNT + 1];
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const int i = min(int(threadIdx.x) + k * THREADS, count * active - 1);
    from[k] = block.work.parts + (i / count * HEADS + group * SHARED_HEADS) * DIM + begin +
              i % count;
  }
  const int last = active * heads * 2 - 1, i = min(THREADS - 1 - int(threadIdx.x), last);
  from[COUNT] = block.work.weights +
                (i / (heads * 2) * HEADS + group * SHARED_HEADS + first_head) * 2 +
                i % (heads * 2);
#pragma unroll
  for (int k = 0; k <= COUNT; ++k) words[k] = load_word(from[k]);
#pragma unroll
  for (int k = 0; k <= COUNT; ++k) {
    while (uint32_t(words[k] >> 32) != block.tag) {
      yield_block();
      words[k] = load_word(from[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const int at = threadIdx.x + k * THREADS;
    if (at < count * active) shared->part_values[at] = value_of(words[k]);
  }
  reinterpret_cast<float *>(shared->part_weights)[i] = value_of(words[COUNT]);
  __syncthreads();
  for (int at = 2 * threadIdx.x; at < count; at += 2 * THREADS) {
    const float2 *const weights = shared->part_weights + (begin + at) / DIM - first_head;
    float most = NOTHING, total = 0.0f, even = 0.0f, odd = 0.0f;
#pragma unroll 4
    for (int j = 0; j < active; ++j) most = fmaxf(most, weights[j * heads].x);
#pragma unroll 4
    for (int j = 0; j < active; ++j) {
      const float2 values =
          *reinterpret_cast<const float2 *>(shared->part_values + j * count + at);
      const float shrink = exp2f(weights[j * heads].x - most);
      total = fmaf(weights[j * heads].y, shrink, total);
      even = fmaf(values.x, shrink, even);
      odd = fmaf(values.y, shrink, odd);
    }
    publish_pair(block.work.heads + pair_slot<QUERY>((group * ALL + begin + at) / 2),
                 even / total, odd / total, block.tag);
  }
}

// How many parts a cache of `position` rows is attended in.
__device__ __forceinline__ int active_parts(int position, int parts) {
  if (position <= ONE_PART) return 1;
  return min(parts, (position + POSITIONS_A_PART - 1) / POSITIONS_A_PART);
}

__device__ __forceinline__ int part_begin(int position, int part, int active) {
  return int(uint32_t(position) * part / active);
}

// Attention of the query heads of one group to one part of the cache. Where there are several
// parts, each has a block of its own, which runs at once with the others.
__device__ __forceinline__ void attend(Block &block, int unit, int active, int position, float eps,
                                       float score_scale) {
  Shared *const shared = block.shared;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int group = unit % GROUPS, part = unit / GROUPS;
  const int begin = part_begin(position, part, active);
  const int end = part_begin(position, part + 1, active);
  const int row_warps = min(WARPS, (end - begin + ROWS - 1) / ROWS);
  const bool has_newest = part == active - 1;
  const int first = begin + warp * ROWS;
  KeyRows keys;
  ValueRows values;
  if (first < end) {  // what is there already, before the wait for what is not
    keys.load(shared->layer.keys + group * DIM, first, end);
    values.load(shared->layer.values + group * DIM, first, end);
  }
  float query[4];
  receive(block, query, group, has_newest, position, eps, score_scale);
  __syncthreads();
  if (has_newest && warp < SHARED_HEADS) {
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score = fmaf(query[i], shared->attention.newest_key[lane + 32 * i], score);
    }
    score = warp_sum(score);
    if (lane == 0) shared->head_largest[0][warp] = score;
  }
  WarpAttention attention;
  if (first < end) {
    attend_rows(attention, keys, values, shared, group, first, end);
    attention.end();
#pragma unroll
    for (int j = 0; j < LANE_HEADS; ++j) {
      const int head = first_lane_head() + j;
      if (lane < 4 && head < SHARED_HEADS) {
        shared->head_largest[warp + 1][head] = attention.largest[j];
      }
    }
  }
  __syncthreads();
  combine_warps(block, attention, group, part, active, row_warps);
  if (active == 1) {
    __syncthreads();
  } else {
    combine_parts(block, group, part, active);
  }
}
