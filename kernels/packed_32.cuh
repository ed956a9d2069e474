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

// Formats with 32 weights a block in the packed layout (packed.cuh): a group is a block.
//
//   Q4_0  1152 bytes: nibbles [64][16], d [64]
//   Q4_1  1280 bytes: nibbles, (d, m) [64]
//   Q5_0  1408 bytes: nibbles, fifth bits [64][4], d [64]
//   Q5_1  1536 bytes: nibbles, fifth bits, (d, m) [64]
//   Q8_0  2176 bytes: Q8Layout

#pragma once

#include "blocks.cuh"
#include "packed.cuh"

// The four formats of nibbles. A weight is d * (level - MIDDLE), or d * level + m.
template <bool FIFTH_BIT, bool MINIMUM, int MIDDLE>
struct PackedNibbles {
  static constexpr int FIFTH = Nibbles::PLANE, SCALES = FIFTH + (FIFTH_BIT ? 256 : 0);
  static constexpr int BYTES = SCALES + (MINIMUM ? 256 : 128);

  static __device__ __forceinline__ float factor(const uint8_t *step, int half, int lane) {
    if (MINIMUM) return half_to_float(half_t(lane_part<uint32_t>(step + SCALES, half, lane)));
    return half_to_float(lane_part<half_t>(step + SCALES, half, lane));
  }
  static __device__ __forceinline__ float minimum(const uint8_t *step, int half, int lane) {
    return half_to_float(half_t(lane_part<uint32_t>(step + SCALES, half, lane) >> 16));
  }

  template <int WORDS>
  static __device__ __forceinline__ float dot(const uint8_t *step, int half, int lane,
                                              const Activations<WORDS> &x,
                                              const ActivationScale &scale, float sum) {
    const Nibbles q(step, half, lane);
    uint32_t low[4], high[4];
    uint32_t fifth = 0;
    if (FIFTH_BIT) fifth = lane_part<uint32_t>(step + FIFTH, half, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = FIFTH_BIT ? q.low(i, fifth) : q.low(i);
      high[i] = FIFTH_BIT ? q.high(i, fifth) : q.high(i);
    }
    const int total = dot16<UnsignedBytes, WORDS>(low, x.first) +
                      dot16<UnsignedBytes, WORDS>(high, x.last);
    const float unit = factor(step, half, lane) * scale.unit;
    if (!MINIMUM) {
      return fmaf(__int2float_rn(total - MIDDLE * (scale.low + scale.high)), unit, sum);
    }
    sum = fmaf(__int2float_rn(total), unit, sum);
    return fmaf(minimum(step, half, lane), scale.sum, sum);
  }

  static __device__ __forceinline__ void dequantize4(float *w, const uint8_t *step, int half,
                                                     int lane, int word) {
    uint32_t fifth = 0;
    if (FIFTH_BIT) fifth = lane_part<uint32_t>(step + FIFTH, half, lane);
    const float d = factor(step, half, lane);
    ::dequantize4(w, Nibbles::four(step, half, lane, word, fifth), d,
                  MINIMUM ? minimum(step, half, lane) : -float(MIDDLE) * d);
  }
};

typedef PackedNibbles<false, false, 8> PackedQ4_0;
typedef PackedNibbles<false, true, 0> PackedQ4_1;
typedef PackedNibbles<true, false, 16> PackedQ5_0;
typedef PackedNibbles<true, true, 0> PackedQ5_1;

struct PackedQ8_0 : Q8Layout {
  template <int WORDS>
  static __device__ __forceinline__ float dot(const uint8_t *step, int half, int lane,
                                              const Activations<WORDS> &x,
                                              const ActivationScale &scale, float sum) {
    const uint8_t *const words = step + half * HALF + lane * 16;
    const uint4 a = *reinterpret_cast<const uint4 *>(words);
    const uint4 b = *reinterpret_cast<const uint4 *>(words + LAST);
    const uint32_t first[4] = {a.x, a.y, a.z, a.w}, last[4] = {b.x, b.y, b.z, b.w};
    const int total =
        dot16<SignedBytes, WORDS>(first, x.first) + dot16<SignedBytes, WORDS>(last, x.last);
    const float d = half_to_float(lane_part<half_t>(step + SCALES, half, lane));
    return fmaf(__int2float_rn(total), d * scale.unit, sum);
  }

  static __device__ __forceinline__ void dequantize4(float *w, const uint8_t *step, int half,
                                                     int lane, int word) {
    const uint8_t *const words = step + half * HALF + word / 4 * LAST + lane * 16;
    const float d = half_to_float(lane_part<half_t>(step + SCALES, half, lane));
    Q8_0::dequantize_signed(w, reinterpret_cast<const uint32_t *>(words)[word % 4], d);
  }
};

static_assert(PackedQ4_0::BYTES == 64 * 18 && PackedQ4_1::BYTES == 64 * 20, "");
static_assert(PackedQ5_0::BYTES == 64 * 22 && PackedQ5_1::BYTES == 64 * 24, "");
static_assert(PackedQ8_0::BYTES == 64 * 34, "");
