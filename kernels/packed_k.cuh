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

// K-quants in the packed layout (packed.cuh). Eight groups share a block of the file: lanes 8b to
// 8b + 7 of a half. Scales lie by block: half * 4 + lane / 8 of a step's eight.
//
//   Q4_K  1152 bytes: nibbles [64][16], then 16 bytes a block: d, dmin, and 12 bits a group, scale
//         and min
//   Q5_K  1408 bytes: nibbles, fifth bits [64][4], then as Q4_K
//   Q6_K  1680 bytes: nibbles, of the last 16 weights the upper four bits; the other two bits
//         [64][8]; scales [64][2]; d [8]. Byte j of a group's rest has, from the lowest bits on,
//         those of weights 20 + i, 16 + i, i and 4 + i, for i = j / 4 * 8 + j % 4.

#pragma once

#include "blocks.cuh"
#include "packed.cuh"

// The 16 bytes that Q4_K and Q5_K have for a block.
struct BlockScales {
  static constexpr int PLANE = 128;  // of a step

  float d, dmin;
  uint32_t scale, min;

  __device__ __forceinline__ BlockScales(const uint8_t *plane, int half, int lane) {
    const uint4 s = reinterpret_cast<const uint4 *>(plane)[half * 4 + lane / 8];
    const int sub = lane % 8;
    const uint32_t bits_low = sub < 3 ? s.y : sub < 6 ? s.z : s.w;
    const uint32_t bits_high = sub < 3 ? s.z : s.w;
    const uint32_t fields = __funnelshift_r(bits_low, bits_high, 12 * sub & 31);
    d = half_to_float(half_t(s.x & 0xffff));
    dmin = half_to_float(half_t(s.x >> 16));
    scale = fields & 63;
    min = fields >> 6 & 63;
  }

  // Adds what a sum of levels times activations, in units, is of the weights.
  __device__ __forceinline__ float add(float sum, int total, const ActivationScale &x) const {
    sum = fmaf(__int2float_rn(total * int(scale)), d * x.unit, sum);
    return fmaf(-dmin * x.sum, __int2float_rn(int(min)), sum);
  }
  __device__ __forceinline__ void dequantize(float *w, uint32_t levels) const {
    dequantize4(w, levels, d * float(scale), -dmin * float(min));
  }
};

struct PackedQ4K {
  static constexpr int BYTES = Nibbles::PLANE + BlockScales::PLANE;

  template <int WORDS>
  static __device__ __forceinline__ float dot(const uint8_t *step, int half, int lane,
                                              const Activations<WORDS> &x,
                                              const ActivationScale &scale, float sum) {
    const Nibbles q(step, half, lane);
    const BlockScales scales(step + Nibbles::PLANE, half, lane);
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = q.low(i);
      high[i] = q.words[i] & 0xf0f0f0f0u;  // sixteen times the nibble: taken back below
    }
    const int total = dot16<UnsignedBytes, WORDS>(low, x.first) +
                      (dot16<UnsignedBytes, WORDS>(high, x.last) >> 4);
    return scales.add(sum, total, scale);
  }

  static __device__ __forceinline__ void dequantize4(float *w, const uint8_t *step, int half,
                                                     int lane, int word) {
    const BlockScales scales(step + Nibbles::PLANE, half, lane);
    scales.dequantize(w, Nibbles::four(step, half, lane, word));
  }
};

struct PackedQ5K {
  static constexpr int FIFTH = Nibbles::PLANE, SCALES = FIFTH + 256;
  static constexpr int BYTES = SCALES + BlockScales::PLANE;

  template <int WORDS>
  static __device__ __forceinline__ float dot(const uint8_t *step, int half, int lane,
                                              const Activations<WORDS> &x,
                                              const ActivationScale &scale, float sum) {
    const Nibbles q(step, half, lane);
    const uint32_t fifth = lane_part<uint32_t>(step + FIFTH, half, lane);
    const BlockScales scales(step + SCALES, half, lane);
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = q.low(i, fifth);
      high[i] = q.high(i, fifth);
    }
    const int total = dot16<UnsignedBytes, WORDS>(low, x.first) +
                      dot16<UnsignedBytes, WORDS>(high, x.last);
    return scales.add(sum, total, scale);
  }

  static __device__ __forceinline__ void dequantize4(float *w, const uint8_t *step, int half,
                                                     int lane, int word) {
    const uint32_t fifth = lane_part<uint32_t>(step + FIFTH, half, lane);
    const BlockScales scales(step + SCALES, half, lane);
    scales.dequantize(w, Nibbles::four(step, half, lane, word, fifth));
  }
};

struct PackedQ6K {
  static constexpr int REST = Nibbles::PLANE, SCALES = REST + 512, FACTORS = SCALES + 128;
  static constexpr int BYTES = FACTORS + 16;

  static __device__ __forceinline__ float factor(const uint8_t *step, int half, int lane) {
    return half_to_float(
        reinterpret_cast<const half_t *>(step + FACTORS)[half * 4 + lane / 8]);
  }

  template <int WORDS>
  static __device__ __forceinline__ float dot(const uint8_t *step, int half, int lane,
                                              const Activations<WORDS> &x,
                                              const ActivationScale &scale, float sum) {
    const Nibbles q(step, half, lane);
    const uint2 h = lane_part<uint2>(step + REST, half, lane);
    const uint32_t scales = lane_part<uint16_t>(step + SCALES, half, lane);
    const float d = factor(step, half, lane);
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t rest = i < 2 ? h.x : h.y;
      low[i] = q.low(i) | ((i % 2 ? rest >> 2 : rest) & 0x30303030u);
      // Four times the level: taken back below.
      high[i] = (q.words[i] & 0xf0f0f0f0u) | ((i % 2 ? rest << 2 : rest) & 0x0c0c0c0cu);
    }
    const int first = dot16<UnsignedBytes, WORDS>(low, x.first, -32 * scale.low);
    const int last = dot16<UnsignedBytes, WORDS>(high, x.last, -128 * scale.high) >> 2;
    const int total = int8_t(scales) * first + int8_t(scales >> 8) * last;
    return fmaf(__int2float_rn(total), d * scale.unit, sum);
  }

  static __device__ __forceinline__ void dequantize4(float *w, const uint8_t *step, int half,
                                                     int lane, int word) {
    const uint8_t *const rest = step + REST + (half * WARP_SIZE + lane) * 8;
    const uint32_t bits = reinterpret_cast<const uint32_t *>(rest)[word % 4 / 2];
    const uint32_t nibbles = Nibbles::four(step, half, lane, word);
    const uint32_t levels = word < 4 ? nibbles | (bits >> (word % 2 ? 2 : 0) & 0x30303030u)
                                     : nibbles << 2 | (bits >> (word % 2 ? 0 : 2) & 0x03030303u);
    const uint32_t scales = lane_part<uint16_t>(step + SCALES, half, lane);
    const float scale =
        factor(step, half, lane) * float(int8_t(word < 4 ? scales : scales >> 8));
    ::dequantize4(w, levels, scale, -32.0f * scale);
  }
};
