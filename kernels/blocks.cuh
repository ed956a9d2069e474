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

// GGUF weight formats as the kernels read them: the layout of a block, and how one lane of a
// warp dequantizes its share of it in registers.
//
// A format W says: its Block of W::WEIGHTS weights in a row of the matrix, and that W::LANES
// lanes share a block, W::PER_LANE weights each. In the quantized formats a lane has four
// neighbours from x_offset(part) on and four more W::STRIDE further (they share packed bytes);
// part is the lane's number in the block. The formulas are those of ggml's block formats.
//
// Packed words go through load4, which the format's alignment decides: by bytes, by halves
// (every block size is even), or as a word where blocks lie on multiples of four.

#pragma once

#include "device.cuh"

struct Bytes {
  static __device__ __forceinline__ uint32_t load4(const uint8_t *at) {
    return at[0] | at[1] << 8 | at[2] << 16 | uint32_t(at[3]) << 24;
  }
};

struct Halves {
  static __device__ __forceinline__ uint32_t load4(const uint8_t *at) {
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(at);
    return halves[0] | uint32_t(halves[1]) << 16;
  }
};

struct Words {
  static __device__ __forceinline__ uint32_t load4(const uint8_t *at) {
    return *reinterpret_cast<const uint32_t *>(at);
  }
};

// 128 plus one of four bytes below 128, put into the mantissa of a float. One instruction at
// full rate, where a conversion from integer runs at a quarter of it on 8.7.
__device__ __forceinline__ float plus_128(uint32_t bytes, int index) {
  return __uint_as_float(__byte_perm(bytes, 0x43000000u, 0x7044u | index << 8));
}

// Four weights scale * q + shift, from four bytes q.
__device__ __forceinline__ void dequantize4(float *w, uint32_t q, float scale, float shift) {
  const float unbiased = fmaf(-128.0f, scale, shift);
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = fmaf(scale, plus_128(q, i), unbiased);
}

// Four bits to the lowest bit of four bytes.
__device__ __forceinline__ uint32_t spread_bits(uint32_t bits) {
  return (bits & 15) * 0x00204081u & 0x01010101u;
}

// Scales and mins of two neighbouring sub-blocks, two bytes each, from Q4_K's and Q5_K's twelve.
struct ScalePair {
  uint32_t scale, min;

  __device__ __forceinline__ ScalePair(const uint8_t *packed, int pair) {
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(packed) + (pair & 1);
    const uint32_t low = halves[0], middle = halves[2], high = halves[4];
    const bool first = pair < 2;
    scale = first ? low & 0x3f3f : (high & 0x0f0f) | (low >> 2 & 0x3030);
    min = first ? middle & 0x3f3f : (high >> 4 & 0x0f0f) | (middle >> 2 & 0x3030);
  }

  static __device__ __forceinline__ float value(uint32_t bytes, int index) {
    return plus_128(bytes, index) - 128.0f;
  }
};

// Q4_K and Q5_K: eight sub-blocks of 32; bytes 32g to 32g+31 hold 2g and 2g+1, low nibbles first.
struct SuperBlockLanes {
  static constexpr int WEIGHTS = 256, LANES = 32, PER_LANE = 8, STRIDE = 32;

  static __device__ __forceinline__ int x_offset(int part) {
    return 64 * (part >> 3) + 4 * (part & 7);
  }

  template <class Block>
  static __device__ __forceinline__ void dequantize_pair(
      float (&w)[8], const Block &block, int pair, uint32_t low, uint32_t high) {
    const ScalePair pairs(block.scales, pair);
    const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      dequantize4(w + 4 * i, i ? high : low, d * ScalePair::value(pairs.scale, i),
                  -dmin * ScalePair::value(pairs.min, i));
    }
  }
};

template <class Load>
struct Q4K : SuperBlockLanes {
  struct Block {
    half_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
  };

  static __device__ __forceinline__ void dequantize(float (&w)[8], const Block &block, int part) {
    const uint32_t q = Load::load4(block.qs + 4 * part);
    dequantize_pair(w, block, part >> 3, q & 0x0f0f0f0f, q >> 4 & 0x0f0f0f0f);
  }
};

struct Q5K : SuperBlockLanes {
  struct Block {
    half_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
  };

  static __device__ __forceinline__ void dequantize(float (&w)[8], const Block &block, int part) {
    const int pair = part >> 3;
    const uint32_t q = Bytes::load4(block.qs + 4 * part);
    const uint32_t fifth = Bytes::load4(block.qh + 4 * (part & 7)) >> 2 * pair;
    dequantize_pair(w, block, pair, (q & 0x0f0f0f0f) | (fifth << 4 & 0x10101010),
                    (q >> 4 & 0x0f0f0f0f) | (fifth << 3 & 0x10101010));
  }
};

// Two halves of 128; a half's 64 bytes ql hold the low nibbles of its first 64 weights and, in
// their high nibbles, those of its last 64; 32 bytes qh hold two more bits of four weights each.
struct Q6K {
  static constexpr int WEIGHTS = 256, LANES = 32, PER_LANE = 8, STRIDE = 64;

  struct Block {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    half_t d;
  };

  static __device__ __forceinline__ int x_offset(int part) {
    return 128 * (part >> 4) + 4 * (part & 15);
  }

  static __device__ __forceinline__ void dequantize(float (&w)[8], const Block &block, int part) {
    const int half = part >> 4, quad = part & 15;
    const uint32_t q = Halves::load4(block.ql + 4 * part);
    const uint32_t top = Halves::load4(block.qh + 32 * half + 4 * (quad & 7)) >> 2 * (quad >> 3);
    const int8_t *scale = block.scales + 8 * half + (quad >> 2);
    const float d = half_to_float(block.d);
    const float low = d * float(scale[0]), high = d * float(scale[4]);
    dequantize4(w, (q & 0x0f0f0f0f) | (top << 4 & 0x30303030), low, -32.0f * low);
    dequantize4(w + 4, (q >> 4 & 0x0f0f0f0f) | (top & 0x30303030), high, -32.0f * high);
  }
};

// The formats with 32 weights a block: byte i of qs holds weight i low and weight i + 16 high.
struct BlockLanes {
  static constexpr int WEIGHTS = 32, LANES = 4, PER_LANE = 8, STRIDE = 16;

  static __device__ __forceinline__ int x_offset(int part) { return 4 * part; }

  static __device__ __forceinline__ void dequantize_nibbles(
      float (&w)[8], const uint8_t *qs, int part, uint32_t fifth, float scale, float shift) {
    const uint32_t q = Halves::load4(qs + 4 * part);
    const uint32_t low = spread_bits(fifth >> 4 * part) << 4;
    const uint32_t high = spread_bits(fifth >> (16 + 4 * part)) << 4;
    dequantize4(w, (q & 0x0f0f0f0f) | low, scale, shift);
    dequantize4(w + 4, (q >> 4 & 0x0f0f0f0f) | high, scale, shift);
  }
};

struct Q4_0 : BlockLanes {
  struct Block {
    half_t d;
    uint8_t qs[16];
  };

  static __device__ __forceinline__ void dequantize(float (&w)[8], const Block &block, int part) {
    const float d = half_to_float(block.d);
    dequantize_nibbles(w, block.qs, part, 0, d, -8.0f * d);
  }
};

struct Q4_1 : BlockLanes {
  struct Block {
    half_t d, m;
    uint8_t qs[16];
  };

  static __device__ __forceinline__ void dequantize(float (&w)[8], const Block &block, int part) {
    dequantize_nibbles(w, block.qs, part, 0, half_to_float(block.d), half_to_float(block.m));
  }
};

struct Q5_0 : BlockLanes {
  struct Block {
    half_t d;
    uint8_t qh[4];
    uint8_t qs[16];
  };

  static __device__ __forceinline__ void dequantize(float (&w)[8], const Block &block, int part) {
    const float d = half_to_float(block.d);
    dequantize_nibbles(w, block.qs, part, Halves::load4(block.qh), d, -16.0f * d);
  }
};

struct Q5_1 : BlockLanes {
  struct Block {
    half_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
  };

  static __device__ __forceinline__ void dequantize(float (&w)[8], const Block &block, int part) {
    dequantize_nibbles(w, block.qs, part, Halves::load4(block.qh), half_to_float(block.d),
                       half_to_float(block.m));
  }
};

struct Q8_0 : BlockLanes {
  struct Block {
    half_t d;
    uint8_t qs[32];  // two's complement
  };

  static __device__ __forceinline__ void dequantize(float (&w)[8], const Block &block, int part) {
    const float d = half_to_float(block.d);
    dequantize_signed(w, Halves::load4(block.qs + 4 * part), d);
    dequantize_signed(w + 4, Halves::load4(block.qs + 16 + 4 * part), d);
  }

  // As plus_128, for all values of a byte: 32768 + (q + 128) is exact.
  static __device__ __forceinline__ void dequantize_signed(float *w, uint32_t q, float d) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = __byte_perm(q ^ 0x80808080u, 0x47000000u, 0x7404u | i << 4);
      w[i] = d * (__uint_as_float(bits) - 32896.0f);
    }
  }
};

// Unquantized weights: a block is one weight, so a row may have any length.
struct FloatLanes {
  static constexpr int WEIGHTS = 1, LANES = 1, PER_LANE = 1, STRIDE = 0;
  static __device__ __forceinline__ int x_offset(int) { return 0; }
};

struct F16 : FloatLanes {
  typedef half_t Block;
  static __device__ __forceinline__ void dequantize(float (&w)[1], const Block &weight, int) {
    w[0] = half_to_float(weight);
  }
};

struct BF16 : FloatLanes {
  typedef uint16_t Block;
  static __device__ __forceinline__ void dequantize(float (&w)[1], const Block &weight, int) {
    w[0] = __uint_as_float(uint32_t(weight) << 16);
  }
};

struct F32 : FloatLanes {
  typedef float Block;
  static __device__ __forceinline__ void dequantize(float (&w)[1], const Block &weight, int) {
    w[0] = weight;
  }
};

static_assert(sizeof(Q4K<Bytes>::Block) == 144 && sizeof(Q5K::Block) == 176, "");
static_assert(sizeof(Q6K::Block) == 210 && sizeof(Q8_0::Block) == 34, "");
static_assert(sizeof(Q4_0::Block) == 18 && sizeof(Q4_1::Block) == 20, "");
static_assert(sizeof(Q5_0::Block) == 22 && sizeof(Q5_1::Block) == 24, "");

// The types that a file has kernels for, EACH(type, MACRO): all, or those of the model that it is
// compiled for.
#ifndef WEIGHT_TYPES
#define WEIGHT_TYPES(EACH, MACRO)                                                          \
  EACH(q4k, MACRO) EACH(q5k, MACRO) EACH(q6k, MACRO) EACH(q4_0, MACRO) EACH(q4_1, MACRO)   \
  EACH(q5_0, MACRO) EACH(q5_1, MACRO) EACH(q8_0, MACRO) EACH(f16, MACRO) EACH(bf16, MACRO) \
  EACH(f32, MACRO)
#endif

// Instantiates a kernel for every format of these types: MACRO(suffix of its name, format).
#define FOR_EACH_FORMAT(MACRO) WEIGHT_TYPES(FORMATS_OF, MACRO)
#define FORMATS_OF(type, MACRO) FORMATS_##type(MACRO)
#define FORMATS_q4k(MACRO) MACRO(q4k, Q4K<Bytes>) MACRO(q4k_uint32, Q4K<Words>)
#define FORMATS_q5k(MACRO) MACRO(q5k, Q5K)
#define FORMATS_q6k(MACRO) MACRO(q6k, Q6K)
#define FORMATS_q4_0(MACRO) MACRO(q4_0, Q4_0)
#define FORMATS_q4_1(MACRO) MACRO(q4_1, Q4_1)
#define FORMATS_q5_0(MACRO) MACRO(q5_0, Q5_0)
#define FORMATS_q5_1(MACRO) MACRO(q5_1, Q5_1)
#define FORMATS_q8_0(MACRO) MACRO(q8_0, Q8_0)
#define FORMATS_f16(MACRO) MACRO(f16, F16)
#define FORMATS_bf16(MACRO) MACRO(bf16, BF16)
#define FORMATS_f32(MACRO) MACRO(f32, F32)

// In a condition: whether q4k is among the types. Other names there count as 0.
#define HAS_Q4K (0 WEIGHT_TYPES(PLUS_IS_Q4K, ))
#define PLUS_IS_Q4K(type, MACRO) +IS_Q4K_##type
#define IS_Q4K_q4k 1
