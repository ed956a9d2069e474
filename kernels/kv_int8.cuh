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

// A head's row of keys or values as int8, for all who write the cache: the same to the bit.

#pragma once

#include "device.cuh"

// Quantizes a row whose largest magnitude is given.
struct Int8Row {
  float scale, inverse;

  __device__ __forceinline__ explicit Int8Row(float largest)
      : scale(largest / 127.0f), inverse(largest > 0.0f ? 127.0f / largest : 0.0f) {}

  __device__ __forceinline__ int8_t level(half_t x) const {
    return int8_t(__float2int_rn(half_to_float(x) * inverse));
  }
};
