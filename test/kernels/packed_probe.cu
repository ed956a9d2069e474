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

// What the persistent decode kernel does with a quad of packed rows, by one warp, for tests.

#include "packed_formats.cuh"

// y (4): rows of a quad times activations, `words` [2 * WORDS][columns / 32] and `scales`.
template <class Format, int WORDS>
__device__ __forceinline__ void quad_dot(float *y, const uint8_t *quad, const int4 *words,
                                         const ActivationScale *scales, int steps) {
  const int lane = threadIdx.x, groups = steps * 16;
  float sums[2] = {0.0f, 0.0f};
  for (int step = 0; step < steps; ++step) {
    const int group = step * 16 + lane % 16;
    Activations<WORDS> x;
    for (int i = 0; i < WORDS; ++i) {
      x.first[i] = words[i * groups + group];
      x.last[i] = words[(WORDS + i) * groups + group];
    }
    for (int half = 0; half < 2; ++half) {
      sums[half] = Format::template dot<WORDS>(
          quad + step * Format::BYTES, half, lane, x, scales[group], sums[half]);
    }
  }
  for (int lanes = 8; lanes > 0; lanes /= 2) {
    sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], lanes);
    sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], lanes);
  }
  if (lane % 16 == 0) {
    y[lane / 16] = sums[0];
    y[lane / 16 + 2] = sums[1];
  }
}

#define PROBE(name, Packed, File)                                                           \
  extern "C" __global__ void quad_dot_##name##_1(                                           \
      float *y, const uint8_t *quad, const int4 *words, const ActivationScale *scales,      \
      int32_t steps) {                                                                      \
    quad_dot<Packed, 1>(y, quad, words, scales, steps);                                     \
  }                                                                                         \
  extern "C" __global__ void quad_dot_##name##_2(                                           \
      float *y, const uint8_t *quad, const int4 *words, const ActivationScale *scales,      \
      int32_t steps) {                                                                      \
    quad_dot<Packed, 2>(y, quad, words, scales, steps);                                     \
  }

FOR_EACH_PACKED_FORMAT(PROBE)
