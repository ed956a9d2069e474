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

// The angle of the rotary position embedding.

#pragma once

#include "device.cuh"

// turns: how far one position turns a pair, in units of 2^-64 of a full turn. A position times
// that, modulo 2^64, is the angle with whole turns already gone: exact at any position, where the
// product of two fp32 numbers is off by 0.004 radians at position 100,000.
__device__ __forceinline__ void rope_angle(int32_t position, uint64_t turns, float *sine,
                                           float *cosine) {
  const uint64_t turned = uint64_t(position) * turns;
  const float half_turns = float(int32_t(turned >> 32)) * (1.0f / 2147483648.0f);  // -1 to 1
  sincospif(half_turns, sine, cosine);
}
