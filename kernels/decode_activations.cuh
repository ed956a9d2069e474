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

// Activations of the persistent decode kernel: every block waits for those of a stage and
// quantizes them for itself, into one or two int8 words an activation and a unit for each 32. A
// thread has eight neighbours a turn, four lanes a unit; turns do not wait for each other.

#pragma once

#include "decode_clocks.cuh"

constexpr int EIGHT = 8;

template <int K>
constexpr int TURNS = (K / EIGHT + THREADS - 1) / THREADS;
// More at once would take too many registers.
constexpr int MOST_TURNS = 4;

// Whether a thread has activations in a turn: known early for all turns but the last.
template <int K>
__device__ __forceinline__ bool has_eight(int turn, int eight) {
  return (turn + 1) * THREADS <= K / EIGHT || eight < K / EIGHT;
}

// Waits for the activations of COUNT turns, of K that other blocks publish as pairs (see
// pair_slot); of quads of rows, whose pairs are (0, 2) and (1, 3), where CROSSED.
template <int K, bool CROSSED, int FIRST = 0, int COUNT>
__device__ __forceinline__ void await_activations(float (&v)[COUNT][EIGHT],
                                                  const uint64_t *words, uint32_t tag) {
  constexpr int ODD = K / 4;  // words until the second four
  const uint32_t thread = thread_number();
  ulonglong2 fours[COUNT][2];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int eight = (FIRST + i) * THREADS + thread;
    fours[i][0] = fours[i][1] = {0, 0};
    if (!has_eight<K>(FIRST + i, eight)) continue;
    fours[i][0] = load_two_words(words + 2 * eight);
    fours[i][1] = load_two_words(words + 2 * eight + ODD);
  }
  for (bool late = true; late;) {
    late = false;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int eight = (FIRST + i) * THREADS + thread;
      const ulonglong2 &a = fours[i][0], &b = fours[i][1];
      if (!has_eight<K>(FIRST + i, eight) || are_pairs_of(tag, a.x, a.y, b.x, b.y)) continue;
      fours[i][0] = load_two_words(words + 2 * eight);
      fours[i][1] = load_two_words(words + 2 * eight + ODD);
      late = true;
    }
    if (late) yield_block();
  }
  __syncwarp();  // lanes that waited longer would make shuffles slow
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float2 first = pair_of(fours[i][k].x), second = pair_of(fours[i][k].y);
      float *const four = v[i] + 4 * k;
      four[0] = first.x;
      four[CROSSED ? 2 : 1] = first.y;
      four[CROSSED ? 1 : 2] = second.x;
      four[3] = second.y;
    }
  }
}

// Four weights of a row, of the format that has a number in the list.
template <class First, class... Rest>
__device__ __forceinline__ void weights_as(int format, float (&w)[4], const Stage &table, int row,
                                           int four) {
  if constexpr (sizeof...(Rest) > 0) {
    if (format > 0) {
      weights_as<Rest...>(format - 1, w, table, row, four);
      return;
    }
  }
  const PackedPlace place(row / QUAD, row % QUAD, EMBEDDING / STEP_COLUMNS, four / 8);
  First::dequantize4(w, table.weights + place.step * First::BYTES, place.half, place.lane,
                     four % 8);
}

// A token's row of the table; the block keeps the rows of the residual stream that it adds to.
__device__ __forceinline__ void embed(float (&v)[TURNS<EMBEDDING>][EIGHT], float *residual,
                                      const Stage &table, int token) {
  const Share own(EMBEDDING / QUAD);
#pragma unroll
  for (int i = 0; i < TURNS<EMBEDDING>; ++i) {
    const int eight = i * THREADS + thread_number();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float w[4] = {};
      const int four = 2 * eight + half, row = four - own.first;
      if (has_eight<EMBEDDING>(i, eight)) {
        weights_as<DECODE_FORMATS>(table.format, w, table, token, four);
      }
      const bool owned = has_eight<EMBEDDING>(i, eight) && row >= 0 && row < own.count;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        v[i][4 * half + k] = w[k];
        if (owned) residual[row * QUAD + k] = w[k];
      }
    }
  }
}

// Added to a number, it leaves the nearest integer in the lowest bits.
constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23

__device__ __forceinline__ int lowest_bytes(const float (&v)[4]) {
  const uint32_t low = __byte_perm(__float_as_uint(v[0]), __float_as_uint(v[1]), 0x0040);
  const uint32_t high = __byte_perm(__float_as_uint(v[2]), __float_as_uint(v[3]), 0x0040);
  return int(__byte_perm(low, high, 0x5410));
}

// Quantizes the activations of COUNT turns, of K: units of a 127th of the largest of 32.
template <int K, int FIRST = 0, int COUNT>
__device__ __forceinline__ void quantize(Shared *shared, const float (&v)[COUNT][EIGHT]) {
  constexpr int LANES = 32 / EIGHT;
  constexpr float UNIT = WORDS == 2 ? 1.0f / (127.0f * 127.0f) : 1.0f / 127.0f;
  // Below this the reciprocal is no number; such activations are none either.
  constexpr float SMALLEST = 1e-36f;
  const uint32_t thread = thread_number(), part = thread % LANES;
  float largest[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    largest[i] = fabsf(v[i][0]);
#pragma unroll
    for (int k = 1; k < EIGHT; ++k) largest[i] = fmaxf(largest[i], fabsf(v[i][k]));
  }
#pragma unroll
  for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (float &most : largest) {
      most = fmaxf(most, __shfl_xor_sync(EVERY_LANE, most, lanes));
    }
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    // Whole warps: K is a multiple of 256.
    if (!has_eight<K>(FIRST + i, (FIRST + i) * THREADS + thread)) break;
    const int sub = (FIRST + i) * (THREADS / LANES) + thread / LANES;
    const float inverse = largest[i] > SMALLEST ? 127.0f * reciprocal(largest[i]) : 0.0f;
    int bytes[WORDS][2], sum = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float high[4], low[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float a = v[i][4 * half + k];
        high[k] = fmaf(a, inverse, ROUNDER);
        low[k] = fmaf(fmaf(a, inverse, ROUNDER - high[k]), 127.0f, ROUNDER);
      }
      bytes[0][half] = lowest_bytes(high);
      if (WORDS == 2) bytes[WORDS - 1][half] = lowest_bytes(low);
    }
    constexpr int ONES = 0x01010101;
#pragma unroll
    for (int word = 0; word < WORDS; ++word) {
      sum = __dp4a(bytes[word][0], ONES, __dp4a(bytes[word][1], ONES, sum * 127));
      int4 *const plane = shared->words[part / 2 * WORDS + word] + sub;
      reinterpret_cast<int2 *>(plane)[part % 2] = {bytes[word][0], bytes[word][1]};
    }
    sum += __shfl_xor_sync(EVERY_LANE, sum, 1);
    const int other = __shfl_xor_sync(EVERY_LANE, sum, 2);
    if (part == 0) {
      const float unit = largest[i] * UNIT;
      shared->scales[sub] = {unit, unit * float(sum + other), sum, other};
    }
  }
}

// Quantizes K activations as they come, as many turns at once as registers allow.
template <int K, int FIRST = 0>
__device__ __forceinline__ void await_and_quantize(Shared *shared, const uint64_t *words,
                                                   uint32_t tag) {
  constexpr int LEFT = TURNS<K> - FIRST, PASSES_LEFT = (LEFT + MOST_TURNS - 1) / MOST_TURNS;
  constexpr int COUNT = (LEFT + PASSES_LEFT - 1) / PASSES_LEFT;
  float v[COUNT][EIGHT];
  await_activations<K, false, FIRST>(v, words, tag);
  lap(shared, WAIT);
  quantize<K, FIRST>(shared, v);
  if constexpr (COUNT < LEFT) {
    lap(shared, QUANTIZE);
    await_and_quantize<K, FIRST + COUNT>(shared, words, tag);
  }
}

// A norm's weights of the activations that a thread has.
struct NormWeights {
  float4 fours[TURNS<EMBEDDING>][2];

  __device__ __forceinline__ explicit NormWeights(const float *weight) {
#pragma unroll
    for (int i = 0; i < TURNS<EMBEDDING>; ++i) {
      const int eight = i * THREADS + thread_number();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        fours[i][half] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (!has_eight<EMBEDDING>(i, eight)) continue;
        fours[i][half] = reinterpret_cast<const float4 *>(weight)[2 * eight + half];
      }
    }
  }

  // Multiplies with them and leaves the warp's sum of squares for `norm_factor`.
  __device__ __forceinline__ void apply(float (&v)[TURNS<EMBEDDING>][EIGHT],
                                        float (&squares)[WARPS]) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < TURNS<EMBEDDING>; ++i) {
#pragma unroll
      for (int k = 0; k < EIGHT; ++k) {
        const float4 &w = fours[i][k / 4];
        sum = fmaf(v[i][k], v[i][k], sum);
        v[i][k] *= k % 4 == 0 ? w.x : k % 4 == 1 ? w.y : k % 4 == 2 ? w.z : w.w;
      }
    }
    sum = warp_sum(sum);
    if (thread_number() % WARP_SIZE == 0) squares[thread_number() / WARP_SIZE] = sum;
  }
};

// The factor of the norm of EMBEDDING activations, which changes no word.
__device__ __forceinline__ float norm_factor(const Shared *shared, float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < WARPS / 4; ++i) {
    const float4 squares = reinterpret_cast<const float4 *>(shared->squares)[i];
    sum += squares.x + squares.y + (squares.z + squares.w);
  }
  return rsqrtf(sum * (1.0f / EMBEDDING) + eps);
}
