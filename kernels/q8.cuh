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

// Q8_0 weights as planes, the activations they meet, and the product of the two by one warp.
//
// A matrix (M, K) is int8 words [M][K] and fp16 scales [M][K/32], two planes: a block of the file
// has 34 bytes, so only planes allow aligned 16-byte loads. Activations of n tokens are one
// buffer, plane after plane, and come in three kinds:
//
//   A8    int8 [n][K], then fp32 scales [n][K/32]: a = s * high with s = largest / 127 of 32
//   A8x2  int8 high [n][K], int8 low [n][K], scales [n][K/32]: a = s * (high + low / 127), off
//         by at most s * 0.5 / 127; the high words and the scales are A8's
//   F32   fp32 [n][K]
//
// A lane takes 16 weights at a time, a warp 512, and adds them up in this order whatever the
// unrolling, the rows a warp or the tokens: such variants agree to the bit. The last step of a row
// whose length is no multiple of 512 keeps part of the lanes. K is a multiple of 32.

#pragma once

#include "device.cuh"

// Kernels of a kind of activations: of all kinds, or of the one with Q8_WORDS words that the file
// is compiled for.
#if !defined(Q8_WORDS) || Q8_WORDS == 1
#define FOR_A8(...) __VA_ARGS__
#else
#define FOR_A8(...)
#endif
#if !defined(Q8_WORDS) || Q8_WORDS == 2
#define FOR_A8X2(...) __VA_ARGS__
#else
#define FOR_A8X2(...)
#endif
#if !defined(Q8_WORDS) || Q8_WORDS == 0
#define FOR_F32(...) __VA_ARGS__
#else
#define FOR_F32(...)
#endif

constexpr int WARPS_PER_BLOCK = 4;
constexpr int BLOCK_THREADS = WARPS_PER_BLOCK * WARP_SIZE;
constexpr int GROUP = 32;        // weights or activations that share a scale
constexpr int PER_LANE = 16;     // weights of one 16-byte load
constexpr int WARP_STEP = WARP_SIZE * PER_LANE;
constexpr float WORD_MAX = 127.0f;

// The largest magnitude in the warp; NaN where there is one, which fmaxf would drop.
__device__ __forceinline__ float warp_largest(float value) {
  uint32_t bits = __float_as_uint(fabsf(value));
#pragma unroll
  for (int lanes = WARP_SIZE / 2; lanes > 0; lanes /= 2) {
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, lanes));
  }
  return __uint_as_float(bits);
}

__device__ __forceinline__ int dot16(const uint4 &a, const uint4 &b) {
  int sum = __dp4a(int(a.x), int(b.x), 0);
  sum = __dp4a(int(a.y), int(b.y), sum);
  sum = __dp4a(int(a.z), int(b.z), sum);
  return __dp4a(int(a.w), int(b.w), sum);
}

__device__ __forceinline__ int32_t nearest_word(float value) {
  return min(max(__float2int_rn(value), -127), 127);
}

struct A8 {
  static constexpr float UNIT = 1.0f;  // what a sum is in units of
  struct Part {
    uint4 high;
    float scale;
  };
  const uint8_t *high;
  const float *scales;

  __device__ __forceinline__ A8(const uint8_t *x, int n, int k)
      : high(x), scales(reinterpret_cast<const float *>(x + int64_t(n) * k)) {}
  // 16 activations from element i on of the tokens' rows laid end to end.
  __device__ __forceinline__ Part load(int64_t i) const {
    return {*reinterpret_cast<const uint4 *>(high + i), scales[i / GROUP]};
  }
  static __device__ __forceinline__ float add(
      float sum, const uint4 &weights, float scale, const Part &x) {
    return fmaf(float(dot16(weights, x.high)), scale * x.scale, sum);
  }
  // By a whole warp: element i is the lane's, of one group.
  static __device__ __forceinline__ void store(
      uint8_t *x, int n, int k, int64_t i, float value) {
    const float largest = warp_largest(value);
    const float inverse = largest > 1e-30f ? WORD_MAX / largest : 0.0f;
    reinterpret_cast<int8_t *>(x)[i] = int8_t(nearest_word(value * inverse));
    if (i % GROUP == 0) {
      reinterpret_cast<float *>(x + int64_t(n) * k)[i / GROUP] = largest / WORD_MAX;
    }
  }
};

struct A8x2 {
  static constexpr float UNIT = 1.0f / WORD_MAX;
  struct Part {
    uint4 high, low;
    float scale;
  };
  const uint8_t *high, *low;
  const float *scales;

  __device__ __forceinline__ A8x2(const uint8_t *x, int n, int k)
      : high(x), low(x + int64_t(n) * k),
        scales(reinterpret_cast<const float *>(x + 2 * int64_t(n) * k)) {}
  __device__ __forceinline__ Part load(int64_t i) const {
    return {*reinterpret_cast<const uint4 *>(high + i), *reinterpret_cast<const uint4 *>(low + i),
            scales[i / GROUP]};
  }
  static __device__ __forceinline__ float add(
      float sum, const uint4 &weights, float scale, const Part &x) {
    const int dot = dot16(weights, x.high) * int(WORD_MAX) + dot16(weights, x.low);
    return fmaf(float(dot), scale * x.scale, sum);
  }
  static __device__ __forceinline__ void store(
      uint8_t *x, int n, int k, int64_t i, float value) {
    const float largest = warp_largest(value);
    const float inverse = largest > 1e-30f ? WORD_MAX / largest : 0.0f;
    const float scaled = value * inverse;
    const int32_t word = nearest_word(scaled);
    reinterpret_cast<int8_t *>(x)[i] = int8_t(word);
    reinterpret_cast<int8_t *>(x + int64_t(n) * k)[i] =
        int8_t(nearest_word((scaled - float(word)) * WORD_MAX));
    if (i % GROUP == 0) {
      reinterpret_cast<float *>(x + 2 * int64_t(n) * k)[i / GROUP] = largest / WORD_MAX;
    }
  }
};

struct F32 {
  static constexpr float UNIT = 1.0f;
  struct Part {
    float4 x[PER_LANE / 4];
  };
  const float *values;

  __device__ __forceinline__ F32(const uint8_t *x, int, int)
      : values(reinterpret_cast<const float *>(x)) {}
  __device__ __forceinline__ Part load(int64_t i) const {
    const float4 *at = reinterpret_cast<const float4 *>(values + i);
    return {{at[0], at[1], at[2], at[3]}};
  }
  // Weights stay in their words: the byte plus 128 becomes the low bits of 2^23, and subtracting
  // 2^23 + 128 is exact. A conversion instruction runs at a quarter of the rate of these two.
  static __device__ __forceinline__ float weight(uint32_t word, int index) {
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | index)) - 8388736.0f;
  }
  static __device__ __forceinline__ float add(
      float sum, const uint4 &weights, float scale, const Part &part) {
    const uint32_t words[4] = {weights.x ^ 0x80808080u, weights.y ^ 0x80808080u,
                               weights.z ^ 0x80808080u, weights.w ^ 0x80808080u};
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      dot = fmaf(weight(words[i], 0), part.x[i].x, dot);
      dot = fmaf(weight(words[i], 1), part.x[i].y, dot);
      dot = fmaf(weight(words[i], 2), part.x[i].z, dot);
      dot = fmaf(weight(words[i], 3), part.x[i].w, dot);
    }
    return fmaf(dot, scale, sum);
  }
  static __device__ __forceinline__ void store(uint8_t *x, int, int, int64_t i, float value) {
    reinterpret_cast<float *>(x)[i] = value;
  }
};

// One row of a matrix.
struct Row {
  const uint8_t *words;
  const half_t *scales;

  __device__ __forceinline__ Row(const uint8_t *w, const half_t *d, int row, int k)
      : words(w + int64_t(row) * k), scales(d + int64_t(row) * (k / GROUP)) {}
  __device__ __forceinline__ uint4 load(int i) const {
    return __ldcs(reinterpret_cast<const uint4 *>(words + i));
  }
  __device__ __forceinline__ half_t scale(int i) const { return scales[i / GROUP]; }
};

// Adds to sum[r] this lane's share of rows[r] . x over elements begin to end - 1. Weights of
// UNROLL steps are on their way before the first is used.
template <int UNROLL, class X, int ROWS>
__device__ __forceinline__ void add_products(
    float (&sum)[ROWS], const Row (&rows)[ROWS], const X &x, int begin, int end) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll 1
  for (int i = begin + lane * PER_LANE; i < end; i += UNROLL * WARP_STEP) {
    uint4 words[UNROLL][ROWS];
    half_t scales[UNROLL][ROWS];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = i + u * WARP_STEP;
      if (u > 0 && at >= end) break;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        words[u][r] = rows[r].load(at);
        scales[u][r] = rows[r].scale(at);
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = i + u * WARP_STEP;
      if (u > 0 && at >= end) break;
      const typename X::Part part = x.load(at);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        sum[r] = X::add(sum[r], words[u][r], half_to_float(scales[u][r]), part);
      }
    }
  }
}

// 1 / sqrt(mean of squares + eps), of a row of `width` from its groups' sums of squares. The
// norm's factor is the same for a whole row, so products apply it to their sums. `parts` are
// loaded when this is made and summed when the value is asked for, so that a product in between
// hides the loads.
struct NormFactor {
  static constexpr int EARLY = 4;  // rows of up to 4096
  const float *squares;
  float part[EARLY];
  int groups;

  __device__ __forceinline__ NormFactor(const float *squares_, int width)
      : squares(squares_), groups(width / GROUP) {
    const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int i = 0; i < EARLY; ++i) {
      const int group = lane + i * WARP_SIZE;
      part[i] = group < groups ? squares[group] : 0.0f;
    }
  }
  __device__ __forceinline__ float value(int width, float eps) const {
    float sum = part[0];
#pragma unroll
    for (int i = 1; i < EARLY; ++i) sum += part[i];
    for (int group = threadIdx.x % WARP_SIZE + EARLY * WARP_SIZE; group < groups;
         group += WARP_SIZE) {
      sum += squares[group];
    }
    return 1.0f / sqrtf(warp_sum(sum) / float(width) + eps);
  }
};

// One group of a norm's output, without the norm's factor; returns the group's sum of squares.
// By a whole warp: element i is the lane's, of the tokens' rows laid end to end.
template <class X>
__device__ __forceinline__ float store_normed(
    uint8_t *out, int n, int k, int64_t i, float x, float weight) {
  X::store(out, n, k, i, x * weight);
  return warp_sum(x * x);
}

// silu(gate) * up. A large negative gate overflows to infinity, and dividing by that is the right
// zero.
__device__ __forceinline__ float swiglu(float gate, float up) {
  return gate / (1.0f + expf(-gate)) * up;
}
