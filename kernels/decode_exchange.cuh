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

// How blocks of the persistent decode kernel pass values on: in words of 64 bits that carry their
// own tag, so that a reader waits for the words themselves and needs neither barrier nor fence.
//
// A word is one value (fp32, tag of 32 bits) or a pair of values (of 24 bits: a relative error of
// 2^-17; tag of 16 bits). The tag counts layers over all steps, so a slot's next tag is always
// another; zeroed memory has none of them. A slot may be written again only when every reader has
// what it read there: decode.cu says why that holds. Pairs are for slots that every layer writes,
// since their tags repeat after 65536 layers; slots that a layer may leave alone take single
// values.

#pragma once

#include "device.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ uint64_t load_word(const uint64_t *from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ ulonglong2 load_two_words(const uint64_t *from) {
  ulonglong2 words;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words.x), "=l"(words.y) : "l"(from) : "memory");
  return words;
}
__device__ __forceinline__ void store_word(uint64_t *to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ void store_two_words(uint64_t *to, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};"
               :: "l"(to), "l"(first), "l"(second) : "memory");
}
// Where blocks are fibers of one thread, a waiting one lets others run.
__device__ __forceinline__ void yield_block() {}
#else
struct ulonglong2 {
  uint64_t x, y;
};
static inline uint64_t load_word(const uint64_t *from) { return *from; }
static inline ulonglong2 load_two_words(const uint64_t *from) { return {from[0], from[1]}; }
static inline void store_word(uint64_t *to, uint64_t word) { *to = word; }
static inline void store_two_words(uint64_t *to, uint64_t first, uint64_t second) {
  to[0] = first;
  to[1] = second;
}
static inline void yield_block() { shim::yield(); }
#endif

// One value a word.

__device__ __forceinline__ uint64_t tagged(float value, uint32_t tag) {
  return uint64_t(tag) << 32 | __float_as_uint(value);
}

__device__ __forceinline__ void publish(uint64_t *slot, float value, uint32_t tag) {
  store_word(slot, tagged(value, tag));
}

// In a slot and the next; the first has an even number.
__device__ __forceinline__ void publish_two(uint64_t *slot, float first, float second,
                                            uint32_t tag) {
  store_two_words(slot, tagged(first, tag), tagged(second, tag));
}

__device__ __forceinline__ float value_of(uint64_t word) {
  return __uint_as_float(uint32_t(word));
}

template <class... Words>
__device__ __forceinline__ bool are_values_of(uint32_t tag, Words... words) {
  return ((uint32_t(words >> 32) ^ tag) | ...) == 0;
}

// Waits, a whole warp, for COUNT values a lane, `stride` slots apart.
template <int COUNT>
__device__ __forceinline__ void await(float (&values)[COUNT], const uint64_t *slots, int stride,
                                      uint32_t tag) {
  uint64_t words[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) words[i] = load_word(slots + i * stride);
  for (bool late = true; late;) {
    late = false;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (are_values_of(tag, words[i])) continue;
      words[i] = load_word(slots + i * stride);
      late = true;
    }
    if (late) yield_block();
  }
  __syncwarp();  // lanes that waited longer would make shuffles slow
#pragma unroll
  for (int i = 0; i < COUNT; ++i) values[i] = value_of(words[i]);
}

// Two values a word.

// Rounded to the upper 24 bits; infinity and NaN stay what they are.
__device__ __forceinline__ uint32_t upper_bits(float value) {
  const uint32_t bits = __float_as_uint(value);
  return ((bits & 0x7fffffffu) < 0x7f800000u ? bits + 0x80u : bits) & 0xffffff00u;
}

__device__ __forceinline__ void publish_pair(uint64_t *slot, float first, float second,
                                             uint32_t tag) {
  const uint32_t low = upper_bits(first) | (tag & 0xffu);
  const uint32_t high = upper_bits(second) | (tag >> 8 & 0xffu);
  store_word(slot, uint64_t(high) << 32 | low);
}

// Zero in the lowest bits where a word has a tag.
__device__ __forceinline__ uint32_t pair_difference(uint64_t word, uint32_t tag) {
  return (uint32_t(word) ^ tag) | (uint32_t(word >> 32) ^ tag >> 8);
}

template <class... Words>
__device__ __forceinline__ bool are_pairs_of(uint32_t tag, Words... words) {
  return ((pair_difference(words, tag) | ...) & 0xffu) == 0;
}

__device__ __forceinline__ float2 pair_of(uint64_t word) {
  return make_float2(__uint_as_float(uint32_t(word) & 0xffffff00u),
                     __uint_as_float(uint32_t(word >> 32) & 0xffffff00u));
}

// Where the pair with a number is, of K activations that a stage reads: even fours come first, so
// that lanes that have eight neighbours each still read 16 bytes next to each other.
template <int K>
__device__ __forceinline__ int pair_slot(int pair) {
  return pair / 4 * 2 + pair % 2 + pair / 2 % 2 * (K / 4);
}
