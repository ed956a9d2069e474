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

// The packed layout of K-quant matrices, and their dot products with int8 activations.
//
// Rows are taken four at a time (a quad) and columns 512 at a time: such a tile is one contiguous
// step, which a warp copies and multiplies as a whole. Lane l of 32 holds sub-block l % 8 of block
// l / 8 % 2 of row l / 16, and again of row l / 16 + 2. A sub-block's 32 weights take 16 bytes:
// word i holds weights 4i to 4i+3 in the low nibbles, 16 weights further in the high ones.
//
// A step of Q4_K is 1152 bytes: nibbles [2 halves][32 lanes][16], then for each of the 2*2*2
// (half, row, block) 16 bytes: d, dmin, and 12 bits a sub-block, scale and min. A step of Q6_K is
// 1680 bytes: nibbles as above, upper bits [2][32][8], scales [8][16], d [8]. Both take exactly
// the bytes of the file's blocks.

#pragma once

#include "device.cuh"

constexpr int STEP_COLUMNS = 512, QUAD = 4;
constexpr int MAX_STEP_BYTES = 1680;

enum PackedType { PACKED_Q4K = 0, PACKED_Q6K = 1 };

// Where a row's sub-block lies: byte offset of the step, half, lane, and index among the scales.
struct PackedPlace {
  int64_t step;
  int half, lane, scale;

  __device__ __forceinline__ PackedPlace(int64_t quad, int row, int steps, int block, int sub) {
    const int pair = block & 1;
    step = quad * steps + block / 2;
    half = row >> 1;
    lane = (row & 1) * 16 + pair * 8 + sub;
    scale = half * 4 + (row & 1) * 2 + pair;
  }
};

// What a dot product needs of 32 activations besides their int8 words: the value of one unit,
// the sum of all in float, and the sums of each 16 in units.
struct ActivationScale {
  float unit, sum;
  int low, high;
};

#ifdef __CUDACC__
// Four unsigned bytes times four signed bytes.
__device__ __forceinline__ int dot_bytes(uint32_t weights, int activations, int sum) {
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(activations), "r"(sum));
  return result;
}
#else
__device__ __forceinline__ int dot_bytes(uint32_t weights, int activations, int sum) {
  for (int i = 0; i < 4; ++i) sum += int(weights >> 8 * i & 255) * int8_t(activations >> 8 * i);
  return sum;
}
#endif

// Int8 activations of 32 weights: the first 16 and the last 16, as one or two words each. Two
// words are units of 1/127 of the first word's: high * 127 + low.
template <int WORDS>
struct Activations {
  int4 first[WORDS], last[WORDS];
};

template <int WORDS>
__device__ __forceinline__ int in_units(const int (&dots)[WORDS]) {
  return WORDS == 1 ? dots[0] : dots[0] * 127 + dots[WORDS - 1];
}

template <int WORDS>
__device__ __forceinline__ int dot16(const uint32_t (&w)[4], const int4 (&x)[WORDS]) {
  int dots[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    dots[i] = dot_bytes(w[0], x[i].x, 0);
    dots[i] = dot_bytes(w[1], x[i].y, dots[i]);
    dots[i] = dot_bytes(w[2], x[i].z, dots[i]);
    dots[i] = dot_bytes(w[3], x[i].w, dots[i]);
  }
  return in_units<WORDS>(dots);
}

struct PackedQ4K {
  static constexpr int BYTES = 1152;

  // One half of a step: this lane's part of rows `half * 2` and up.
  template <int WORDS>
  static __device__ __forceinline__ float dot(const uint8_t *step, int half, int lane,
                                              const Activations<WORDS> &x,
                                              const ActivationScale &scale) {
    const int4 q = *reinterpret_cast<const int4 *>(step + half * 512 + lane * 16);
    const uint4 s = *reinterpret_cast<const uint4 *>(step + 1024 + (half * 4 + lane / 8) * 16);
    const uint32_t words[4] = {uint32_t(q.x), uint32_t(q.y), uint32_t(q.z), uint32_t(q.w)};
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = words[i] & 0x0f0f0f0fu;
      high[i] = words[i] & 0xf0f0f0f0u;  // sixteen times the nibble: taken back below
    }
    const int total = dot16<WORDS>(low, x.first) + (dot16<WORDS>(high, x.last) >> 4);
    const int sub = lane % 8;
    const uint32_t bits_low = sub < 3 ? s.y : sub < 6 ? s.z : s.w;
    const uint32_t bits_high = sub < 3 ? s.z : s.w;
    const uint32_t fields = __funnelshift_r(bits_low, bits_high, 12 * sub & 31);
    const float d = half_to_float(half_t(s.x & 0xffff)), dmin = half_to_float(half_t(s.x >> 16));
    const float weighted = __int2float_rn(total * int(fields & 63)) * (d * scale.unit);
    return fmaf(-dmin * scale.sum, __int2float_rn(int(fields >> 6 & 63)), weighted);
  }

  // Weight `column` of a row, as a float.
  static __device__ __forceinline__ float weight(const uint8_t *step, const PackedPlace &place,
                                                 int index) {
    const int byte = step[place.half * 512 + place.lane * 16 + index % 16];
    const uint32_t *s = reinterpret_cast<const uint32_t *>(step + 1024 + place.scale * 16);
    const int bit = 12 * (place.lane % 8), word = 1 + bit / 32;
    const uint64_t bits = s[word] | uint64_t(word < 3 ? s[word + 1] : 0) << 32;
    const uint32_t fields = uint32_t(bits >> bit % 32);
    const float d = half_to_float(half_t(s[0] & 0xffff)), m = half_to_float(half_t(s[0] >> 16));
    const int q = index < 16 ? byte & 15 : byte >> 4;
    return fmaf(d * float(fields & 63), float(q), -m * float(fields >> 6 & 63));
  }
};

struct PackedQ6K {
  static constexpr int BYTES = 1680;
  static constexpr int UPPER = 1024, SCALES = 1536, FACTORS = 1664;

  template <int WORDS>
  static __device__ __forceinline__ float dot(const uint8_t *step, int half, int lane,
                                              const Activations<WORDS> &x,
                                              const ActivationScale &scale) {
    const int4 q = *reinterpret_cast<const int4 *>(step + half * 512 + lane * 16);
    const uint2 h = *reinterpret_cast<const uint2 *>(step + UPPER + half * 256 + lane * 8);
    const int index = half * 4 + lane / 8;
    const uint32_t scales =
        *reinterpret_cast<const uint16_t *>(step + SCALES + index * 16 + lane % 8 * 2);
    const float d = half_to_float(*reinterpret_cast<const half_t *>(step + FACTORS + index * 2));
    const uint32_t words[4] = {uint32_t(q.x), uint32_t(q.y), uint32_t(q.z), uint32_t(q.w)};
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t upper = i < 2 ? h.x : h.y;
      const bool second = i & 1;
      low[i] = (words[i] & 0x0f0f0f0fu) | ((second ? upper : upper << 4) & 0x30303030u);
      high[i] =
          (words[i] >> 4 & 0x0f0f0f0fu) | ((second ? upper >> 2 : upper << 2) & 0x30303030u);
    }
    const int first = dot16<WORDS>(low, x.first) - 32 * scale.low;
    const int last = dot16<WORDS>(high, x.last) - 32 * scale.high;
    const float low_scale = __int2float_rn(int8_t(scales));
    const float high_scale = __int2float_rn(int8_t(scales >> 8));
    return d * scale.unit *
           fmaf(low_scale, __int2float_rn(first), high_scale * __int2float_rn(last));
  }

  static __device__ __forceinline__ float weight(const uint8_t *step, const PackedPlace &place,
                                                 int index) {
    const int byte = step[place.half * 512 + place.lane * 16 + index % 16];
    const int word = index % 16 / 4;
    const int upper = step[UPPER + place.half * 256 + place.lane * 8 + word / 2 * 4 + index % 4];
    const int field = word % 2 * 2 + (index < 16 ? 0 : 1);
    const int q = (index < 16 ? byte & 15 : byte >> 4) | (upper >> 2 * field & 3) << 4;
    const int8_t scale = step[SCALES + place.scale * 16 + place.lane % 8 * 2 + index / 16];
    const float d =
        half_to_float(*reinterpret_cast<const half_t *>(step + FACTORS + place.scale * 2));
    return d * float(scale) * float(q - 32);
  }
};
