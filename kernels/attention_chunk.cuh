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

// Attention over one chunk of the KV cache, by one block, for a few query heads.
//
// A row of keys or values is read by 8 neighbouring threads, VECTORS loads of 8 elements a thread,
// so a block reads 16 rows at a time, and 8 loads of a thread are on their way together.

#pragma once

#include "device.cuh"

constexpr int CHUNK = 128;
constexpr int THREADS = 128;
constexpr int WARPS = THREADS / WARP_SIZE;
constexpr int LANES = 8;
constexpr int ELEMENTS = 8;
constexpr int ROWS = THREADS / LANES;
constexpr int LOADS = 8;
constexpr float LOG2_E = 1.44269504088896341f;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// A cache [positions][groups][dim] of fp16.
struct HalfCache {
  using Words = uint4;
  const half_t *values;

  __device__ __forceinline__ Words load(int64_t row, int dim, int element) const {
    return *reinterpret_cast<const uint4 *>(values + row * dim + element);
  }
  __device__ __forceinline__ float scale(int64_t) const { return 1.0f; }
  static __device__ __forceinline__ void unpack(float (&out)[ELEMENTS], const Words &words) {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = half_to_float(half_t(word[i] & 0xffffu));
      out[2 * i + 1] = half_to_float(half_t(word[i] >> 16));
    }
  }
};

// A cache [positions][groups][dim] of int8 with scales [positions][groups].
struct Int8Cache {
  using Words = uint2;
  const int8_t *values;
  const float *scales;

  __device__ __forceinline__ Words load(int64_t row, int dim, int element) const {
    return *reinterpret_cast<const uint2 *>(values + row * dim + element);
  }
  __device__ __forceinline__ float scale(int64_t row) const { return scales[row]; }
  static __device__ __forceinline__ void unpack(float (&out)[ELEMENTS], const Words &words) {
    const uint32_t word[2] = {words.x ^ 0x80808080u, words.y ^ 0x80808080u};
    // A conversion instruction runs at an eighth of the rate of these two: the byte plus 128
    // becomes the low bits of 2^23, and subtracting 2^23 + 128 is exact.
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bits = __byte_perm(word[i / 4], 0x4b000000u, 0x7440u | (i % 4));
      out[i] = __uint_as_float(bits) - 8388736.0f;
    }
  }
};

// Rows of a cache: `count` positions from `start` on, 1 to CHUNK, of one key/value head.
struct Chunk {
  int start, count;
  int group, groups;

  // Rows behind the last are the last, so that no load depends on a condition.
  __device__ __forceinline__ int64_t row(int index) const {
    return int64_t(start + min(index, count - 1)) * groups + group;
  }
};

// A thread's part of STEPS rows, ROWS apart.
template <int VECTORS, typename Cache>
struct Rows {
  static constexpr int STEPS = LOADS / VECTORS;
  typename Cache::Words words[STEPS][VECTORS];
  float scales[STEPS];

  __device__ __forceinline__ void load(const Cache &cache, const Chunk &chunk, int first,
                                       int dim) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int64_t row = chunk.row(first + step * ROWS);
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const int element = (v * LANES + threadIdx.x % LANES) * ELEMENTS;
        words[step][v] = cache.load(row, dim, element < dim ? element : 0);
      }
      scales[step] = cache.scale(row);
    }
  }
};

// What a block knows of a chunk, for HEADS query heads: HEADS * (CHUNK + 4 * dim + 2) floats.
template <int HEADS>
struct Partial {
  float *weights;  // [HEADS][CHUNK]: scores first
  float *sums;     // [HEADS][WARPS][dim]: of weighted values
  float *largest;  // [HEADS]: score, in powers of 2
  float *total;    // [HEADS]: of the weights

  __device__ __forceinline__ Partial(float *shared, int dim)
      : weights(shared),
        sums(weights + HEADS * CHUNK),
        largest(sums + HEADS * WARPS * dim),
        total(largest + HEADS) {}

  __device__ __forceinline__ float sum(int head, int element, int dim) const {
    const float *const parts = sums + head * WARPS * dim + element;
    float all = parts[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) all += parts[warp * dim];
    return all;
  }
};

// The scores of HEADS queries q (heads, dim); those from `heads` on repeat the last.
template <int HEADS, int VECTORS, typename Cache>
__device__ __forceinline__ void score(const Partial<HEADS> &partial, const half_t *q, int heads,
                                      const Cache &keys, const Chunk &chunk, int dim,
                                      float scale) {
  using Loaded = Rows<VECTORS, Cache>;
  float query[HEADS][VECTORS][ELEMENTS];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const int element = (v * LANES + threadIdx.x % LANES) * ELEMENTS;
      const bool exists = element < dim;
      HalfCache::unpack(query[h][v],
                        HalfCache{q}.load(min(h, heads - 1), dim, exists ? element : 0));
#pragma unroll
      for (int i = 0; i < ELEMENTS; ++i) {
        query[h][v][i] = exists ? query[h][v][i] * (scale * LOG2_E) : 0.0f;
      }
    }
  }
  for (int start = 0; start < chunk.count; start += Loaded::STEPS * ROWS) {
    const int first = start + threadIdx.x / LANES;
    Loaded rows;
    rows.load(keys, chunk, first, dim);
#pragma unroll
    for (int step = 0; step < Loaded::STEPS; ++step) {
      float dot[HEADS] = {};
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        float key[ELEMENTS];
        Cache::unpack(key, rows.words[step][v]);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
#pragma unroll
          for (int i = 0; i < ELEMENTS; ++i) dot[h] = fmaf(query[h][v][i], key[i], dot[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
          dot[h] += __shfl_xor_sync(0xffffffffu, dot[h], lanes);
        }
        if (threadIdx.x % LANES == 0) {
          partial.weights[h * CHUNK + first + step * ROWS] = dot[h] * rows.scales[step];
        }
      }
    }
  }
}

// Scores to weights relative to the largest, 0 behind the last row: a warp a head.
template <int HEADS>
__device__ __forceinline__ void weigh(const Partial<HEADS> &partial, int count) {
  const int lane = threadIdx.x % WARP_SIZE;
  for (int h = threadIdx.x / WARP_SIZE; h < HEADS; h += WARPS) {
    float *const weights = partial.weights + h * CHUNK;
    float weight[CHUNK / WARP_SIZE];
    float largest = minus_infinity(), total = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNK / WARP_SIZE; ++i) {
      const int row = i * WARP_SIZE + lane;
      weight[i] = row < count ? weights[row] : minus_infinity();
      largest = fmaxf(largest, weight[i]);
    }
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < CHUNK / WARP_SIZE; ++i) {
      weight[i] = exp2f(weight[i] - largest);
      weights[i * WARP_SIZE + lane] = weight[i];
      total += weight[i];
    }
    total = warp_sum(total);
    if (lane == 0) {
      partial.largest[h] = largest;
      partial.total[h] = total;
    }
  }
}

// The sums of weighted values, a warp's at a time.
template <int HEADS, int VECTORS, typename Cache>
__device__ __forceinline__ void add_values(const Partial<HEADS> &partial, const Cache &values,
                                           const Chunk &chunk, int dim) {
  using Loaded = Rows<VECTORS, Cache>;
  float sum[HEADS][VECTORS][ELEMENTS] = {};
  for (int start = 0; start < chunk.count; start += Loaded::STEPS * ROWS) {
    const int first = start + threadIdx.x / LANES;
    Loaded rows;
    rows.load(values, chunk, first, dim);
#pragma unroll
    for (int step = 0; step < Loaded::STEPS; ++step) {
      float weight[HEADS];
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        weight[h] = partial.weights[h * CHUNK + first + step * ROWS] * rows.scales[step];
      }
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        float value[ELEMENTS];
        Cache::unpack(value, rows.words[step][v]);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
#pragma unroll
          for (int i = 0; i < ELEMENTS; ++i) {
            sum[h][v][i] = fmaf(weight[h], value[i], sum[h][v][i]);
          }
        }
      }
    }
  }
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
      for (int i = 0; i < ELEMENTS; ++i) {
#pragma unroll
        for (int lanes = LANES; lanes < WARP_SIZE; lanes *= 2) {
          sum[h][v][i] += __shfl_xor_sync(0xffffffffu, sum[h][v][i], lanes);
        }
      }
      const int element = (v * LANES + lane) * ELEMENTS;
      if (lane < LANES && element < dim) {
        float4 *const out =
            reinterpret_cast<float4 *>(partial.sums + (h * WARPS + warp) * dim + element);
        const float *const s = sum[h][v];
        out[0] = make_float4(s[0], s[1], s[2], s[3]);
        out[1] = make_float4(s[4], s[5], s[6], s[7]);
      }
    }
  }
}

// Fills `partial`, which the whole block may read afterwards.
template <int HEADS, int VECTORS, typename Cache>
__device__ __forceinline__ void attend_chunk(const Partial<HEADS> &partial, const half_t *q,
                                             int heads, const Cache &keys, const Cache &values,
                                             const Chunk &chunk, int dim, float scale) {
  score<HEADS, VECTORS>(partial, q, heads, keys, chunk, dim, scale);
  __syncthreads();
  weigh(partial, chunk.count);
  __syncthreads();
  add_values<HEADS, VECTORS>(partial, values, chunk, dim);
  __syncthreads();
}

// N elements of a head's output: chunks are added in ascending order.
template <int N>
struct Output {
  float largest = minus_infinity();
  float total = 0.0f;
  float sum[N] = {};

  __device__ __forceinline__ void add(float chunk_largest, float chunk_total,
                                      const float (&chunk_sum)[N]) {
    const float both = fmaxf(largest, chunk_largest);
    const float before = exp2f(largest - both), chunk = exp2f(chunk_largest - both);
    largest = both;
    total = fmaf(total, before, chunk_total * chunk);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = fmaf(sum[i], before, chunk_sum[i] * chunk);
  }
  __device__ __forceinline__ half_t element(int i) const { return float_to_half(sum[i] / total); }
};
