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

// The packed layout of matrices, and what dot products with int8 activations are made of.
//
// Rows are taken four at a time (a quad) and columns 512 at a time: such a tile is one contiguous
// step, which a warp copies and multiplies as a whole. Columns come in groups of 32. Lane l of 32
// holds group l % 16 of the step's columns, of row l / 16, and again of row l / 16 + 2: the two
// halves of a step. Every plane of a step lies on 16 bytes, and a lane's share of it on its own
// size. All formats (packed_k.cuh, packed_32.cuh) take exactly the bytes of the file's blocks.
//
// A format says: BYTES of a step; dot, which adds the product of one half of a step to a sum, by
// a warp; and dequantize4, of four neighbours, with the arithmetic of blocks.cuh, so that the
// weights are the same to the bit.

#pragma once

#include "device.cuh"

constexpr int STEP_COLUMNS = 512, QUAD = 4, GROUP_COLUMNS = 32;

// Where a row's group of 32 weights lies: the step, counted from the matrix's first, half, lane.
struct PackedPlace {
  int64_t step;
  int half, lane;

  __device__ __forceinline__ PackedPlace(int64_t quad, int row, int steps, int group) {
    step = quad * steps + group / 16;
    half = row >> 1;
    lane = (row & 1) * 16 + group % 16;
  }
};

// Q8_0, a group of which is a block of the file: for each half, the first 16 weights of its groups
// [32][16] and the last 16; then d [64].
struct Q8Layout {
  static constexpr int HALF = 1024, LAST = 512, SCALES = 2 * HALF;
  static constexpr int BYTES = SCALES + 128;
};

// What a dot product needs of 32 activations besides their int8 words: the value of one unit,
// the sum of all in float, and the sums of each 16 in units.
struct alignas(16) ActivationScale {
  float unit, sum;
  int low, high;
};

// Four bytes times four signed bytes.
struct UnsignedBytes {
#ifdef __CUDACC__
  static __device__ __forceinline__ int dot4(uint32_t weights, int activations, int sum) {
    int result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;"
        : "=r"(result) : "r"(weights), "r"(activations), "r"(sum));
    return result;
  }
#else
  static int dot4(uint32_t weights, int activations, int sum) {
    for (int i = 0; i < 4; ++i) sum += int(weights >> 8 * i & 255) * int8_t(activations >> 8 * i);
    return sum;
  }
#endif
};

struct SignedBytes {
  static __device__ __forceinline__ int dot4(uint32_t weights, int activations, int sum) {
    return __dp4a(int(weights), activations, sum);
  }
};

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

// In units, from `start` on.
template <class Bytes, int WORDS>
__device__ __forceinline__ int dot16(const uint32_t (&w)[4], const int4 (&x)[WORDS],
                                     int start = 0) {
  int dots[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    dots[i] = Bytes::dot4(w[0], x[i].x, i + 1 == WORDS ? start : 0);
    dots[i] = Bytes::dot4(w[1], x[i].y, dots[i]);
    dots[i] = Bytes::dot4(w[2], x[i].z, dots[i]);
    dots[i] = Bytes::dot4(w[3], x[i].w, dots[i]);
  }
  return in_units<WORDS>(dots);
}

// A lane's part of a plane of Ts, 64 of which belong to a step.
template <class T>
__device__ __forceinline__ T lane_part(const uint8_t *plane, int half, int lane) {
  return reinterpret_cast<const T *>(plane)[half * WARP_SIZE + lane];
}

// Levels of 32 weights below 16, in 16 bytes: byte i holds weight i low and weight i + 16 high.
// `fifth` of 4 bytes: byte j has bit 4 of weights j, 4 + j, ... in its bits from the lowest on.
struct Nibbles {
  static constexpr int PLANE = 1024;  // of a step

  uint32_t words[4];

  __device__ __forceinline__ Nibbles(const uint8_t *step, int half, int lane) {
    const uint4 q = lane_part<uint4>(step, half, lane);
    words[0] = q.x, words[1] = q.y, words[2] = q.z, words[3] = q.w;
  }
  __device__ __forceinline__ uint32_t low(int i) const { return words[i] & 0x0f0f0f0fu; }
  __device__ __forceinline__ uint32_t high(int i) const { return words[i] >> 4 & 0x0f0f0f0fu; }
  __device__ __forceinline__ uint32_t low(int i, uint32_t fifth) const {
    return low(i) | (fifth << (4 - i) & 0x10101010u);
  }
  __device__ __forceinline__ uint32_t high(int i, uint32_t fifth) const {
    return high(i) | (fifth >> i & 0x10101010u);
  }

  // Levels 4 * word to 4 * word + 3 of a group, without a fifth bit.
  static __device__ __forceinline__ uint32_t four(const uint8_t *step, int half, int lane,
                                                  int word) {
    const uint8_t *const group = step + (half * WARP_SIZE + lane) * 16;
    const uint32_t q = reinterpret_cast<const uint32_t *>(group)[word % 4];
    return (word < 4 ? q : q >> 4) & 0x0f0f0f0fu;
  }
  static __device__ __forceinline__ uint32_t four(const uint8_t *step, int half, int lane,
                                                  int word, uint32_t fifth) {
    return four(step, half, lane, word) | (fifth >> word & 0x01010101u) << 4;
  }
};
