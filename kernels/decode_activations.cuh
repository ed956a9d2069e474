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
// quantizes them for itself, into one or two int8 words an activation and a unit for each 32.

#pragma once

#include "decode_block.cuh"

// Activations that other blocks publish as pairs: fours of them, each in two words.
template <bool CROSSED>
struct Published {
  const uint64_t *words;
  uint32_t tag;

  template <int K, int TURNS>
  __device__ __forceinline__ void read(float4 (&v)[TURNS]) const {
    const int thread = thread_number();
    ulonglong2 pairs[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
      const int four = i * THREADS + thread;
      pairs[i] = {0, 0};
      if (four < K / 4) pairs[i] = load_two_words(words + 2 * four);
    }
    for (bool late = true; late;) {
      late = false;
#pragma unroll
      for (int i = 0; i < TURNS; ++i) {
        const int four = i * THREADS + thread;
        if (four >= K / 4) continue;
        if (is_pair_of(pairs[i].x, tag) && is_pair_of(pairs[i].y, tag)) continue;
        pairs[i] = load_two_words(words + 2 * four);
        late = true;
      }
      if (late) yield_block();
    }
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
      const float2 first = pair_of(pairs[i].x), second = pair_of(pairs[i].y);
      v[i] = CROSSED ? make_float4(first.x, second.x, first.y, second.y)
                     : make_float4(first.x, first.y, second.x, second.y);
    }
  }
};

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
  const PackedPlace place(row / QUAD, row % QUAD, table.steps, four / 8);
  First::dequantize4(w, table.weights + place.step * First::BYTES, place.half, place.lane,
                     four % 8);
}

// A token's row of the table; the block keeps the rows of the residual stream that it adds to.
struct Embedded {
  const Stage &table;
  int token;
  float *residual;

  template <int K, int TURNS>
  __device__ __forceinline__ void read(float4 (&v)[TURNS]) const {
    const int thread = thread_number();
    const Share own(EMBEDDING / QUAD);
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
      const int four = i * THREADS + thread;
      v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (four >= K / 4) continue;
      float w[4];
      weights_as<DECODE_FORMATS>(table.format, w, table, token, four);
      v[i] = make_float4(w[0], w[1], w[2], w[3]);
      if (four < own.first || four >= own.first + own.count) continue;
#pragma unroll
      for (int k = 0; k < QUAD; ++k) residual[(four - own.first) * QUAD + k] = w[k];
    }
  }
};

// Quantizes K activations, with NORM times `weight`: units of a 127th of the largest of 32. The
// norm's factor, which changes no word, is left to `norm_factor`.
template <int K, bool NORM, class Source>
__device__ __forceinline__ void quantize(Shared *shared, const Source &source,
                                         const float *weight) {
  constexpr int FOURS = K / 4, TURNS = (FOURS + THREADS - 1) / THREADS;
  const int thread = thread_number();
  float4 v[TURNS], w[TURNS];
  if (NORM) {
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
      const int four = i * THREADS + thread;
      w[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (four < FOURS) w[i] = reinterpret_cast<const float4 *>(weight)[four];
    }
  }
  source.template read<K>(v);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < TURNS; ++i) {
    const int four = i * THREADS + thread;
    if (four >= FOURS) break;  // whole warps: K is a multiple of 512
    float a[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    if (NORM) {
#pragma unroll
      for (int k = 0; k < 4; ++k) squares = fmaf(a[k], a[k], squares);
      a[0] *= w[i].x;
      a[1] *= w[i].y;
      a[2] *= w[i].z;
      a[3] *= w[i].w;
    }
    float largest = fmaxf(fmaxf(fabsf(a[0]), fabsf(a[1])), fmaxf(fabsf(a[2]), fabsf(a[3])));
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, lanes));
    }
    const float inverse = largest > 0.0f ? __fdividef(127.0f, largest) : 0.0f;
    uint32_t high = 0, low = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float units = a[k] * inverse;
      const int first = __float2int_rn(units);
      high |= uint32_t(first & 255) << 8 * k;
      if (WORDS == 2) {
        const int second = __float2int_rn((units - float(first)) * 127.0f);
        low |= uint32_t(second & 255) << 8 * k;
      }
    }
    constexpr int ONES = 0x01010101;
    int sum = __dp4a(int(high), ONES, 0);
    if (WORDS == 2) sum = __dp4a(int(low), ONES, sum * 127);
    sum += __shfl_xor_sync(EVERY_LANE, sum, 1);
    sum += __shfl_xor_sync(EVERY_LANE, sum, 2);
    const int other = __shfl_xor_sync(EVERY_LANE, sum, 4);
    const int sub = four / 8, word = four % 8;
    int *const first_plane = reinterpret_cast<int *>(shared->words[word / 4 * WORDS] + sub);
    first_plane[word % 4] = int(high);
    if (WORDS == 2) {
      reinterpret_cast<int *>(shared->words[word / 4 * WORDS + 1] + sub)[word % 4] = int(low);
    }
    if (word == 0) {
      const float unit = largest * (1.0f / 127.0f) * (WORDS == 2 ? 1.0f / 127.0f : 1.0f);
      shared->scales[sub] = {unit, unit * float(sum + other), sum, other};
    }
  }
  if (NORM) {
    squares = warp_sum(squares);
    if (thread_number() % WARP_SIZE == 0) shared->squares[thread_number() / WARP_SIZE] = squares;
  }
  __syncthreads();
}

// The factor of the norm of EMBEDDING activations that `quantize` left.
__device__ __forceinline__ float norm_factor(const Shared *shared, float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < WARPS / 4; ++i) {
    const float4 squares = reinterpret_cast<const float4 *>(shared->squares)[i];
    sum += squares.x + squares.y + (squares.z + squares.w);
  }
  return rsqrtf(sum * (1.0f / EMBEDDING) + eps);
}
