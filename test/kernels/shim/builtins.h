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

// CUDA's built-in types and functions, as far as the kernels use them.

#pragma once

typedef unsigned short half_t;

// float_to_half_unclamped rounds to nearest, ties to even; what does not fit becomes infinite, as
// with cvt.rn.f16.f32.
#ifdef __x86_64__
// With -mf16c, which every x86-64 of the last decade has.
static inline float half_to_float(half_t bits) { return _cvtsh_ss(bits); }
static inline half_t float_to_half_unclamped(float value) { return _cvtss_sh(value, 0); }
#else
static inline float half_to_float(half_t bits) {
  __fp16 value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline half_t float_to_half_unclamped(float value) {
  const __fp16 rounded = value;
  half_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  return bits;
}
#endif

template <typename To, typename From>
static inline To shim_bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

#define SHIM_VECTOR(T, name, alignment)                                             \
  struct alignas(alignment) name##2 { T x, y; };                                    \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                 \
  struct alignas(2 * alignment) name##4 { T x, y, z, w; };                          \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SHIM_VECTOR(float, float, 8)
SHIM_VECTOR(int, int, 8)
SHIM_VECTOR(unsigned, uint, 8)
SHIM_VECTOR(unsigned short, ushort, 4)
#undef SHIM_VECTOR

static inline unsigned __float_as_uint(float value) { return shim_bit_cast<unsigned>(value); }
static inline int __float_as_int(float value) { return shim_bit_cast<int>(value); }
static inline float __uint_as_float(unsigned bits) { return shim_bit_cast<float>(bits); }
static inline float __int_as_float(int bits) { return shim_bit_cast<float>(bits); }

static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> 4 * i & 15;
    unsigned byte = bytes >> 8 * (nibble & 7) & 255;
    if (nibble & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}

static inline int __dp4a(int a, int b, int sum) {
  unsigned total = sum;
  for (int i = 0; i < 4; ++i) total += int8_t(a >> 8 * i) * int8_t(b >> 8 * i);
  return int(total);
}

template <typename T>
static inline T __ldg(const T *address) { return *address; }
template <typename T>
static inline T __ldcs(const T *address) { return *address; }
template <typename T>
static inline T __ldcg(const T *address) { return *address; }

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
static inline void sincospif(float half_turns, float *sine, float *cosine) {
  *sine = float(sin(M_PI * half_turns));
  *cosine = float(cos(M_PI * half_turns));
}
// glibc has functions of these names, so a macro.
#define __expf expf
#define __log2f log2f
#define __logf logf
#define __sinf sinf
#define __cosf cosf
#define __powf powf
static inline float reciprocal(float value) { return 1.0f / value; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float value) { return sqrtf(value); }
static inline int __float2int_rn(float value) { return int(lrintf(value)); }
static inline float __int2float_rn(int value) { return float(value); }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline void __threadfence() {}

// Fibers run one at a time, so plain reads and writes are atomic.
template <typename T>
static inline T atomicAdd(T *address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <typename T>
static inline T atomicMax(T *address, T value) {
  const T old = *address;
  if (value > old) *address = value;
  return old;
}
template <typename T>
static inline T atomicExch(T *address, T value) {
  const T old = *address;
  *address = value;
  return old;
}
template <typename T>
static inline T atomicCAS(T *address, T expected, T value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

#define DYNAMIC_SHARED(type, name) \
  type *const name = reinterpret_cast<type *>(shim::machine->running->dynamic_shared)
