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

// Every format of the packed layout, and a kernel for each.

#pragma once

#include "packed_32.cuh"
#include "packed_k.cuh"

// MACRO(suffix of the kernel's name, packed format, the file's format).
#define FOR_EACH_PACKED_FORMAT(MACRO)                                                       \
  MACRO(q4k, PackedQ4K, Q4K<Bytes>) MACRO(q5k, PackedQ5K, Q5K) MACRO(q6k, PackedQ6K, Q6K)   \
  MACRO(q4_0, PackedQ4_0, Q4_0) MACRO(q4_1, PackedQ4_1, Q4_1)                               \
  MACRO(q5_0, PackedQ5_0, Q5_0) MACRO(q5_1, PackedQ5_1, Q5_1)                               \
  MACRO(q8_0, PackedQ8_0, Q8_0)

// Bytes of the largest and of the smallest step among formats.
template <class... Formats>
__device__ constexpr int most_step_bytes() {
  int most = 0;
  ((most = Formats::BYTES > most ? Formats::BYTES : most), ...);
  return most;
}

template <class... Formats>
__device__ constexpr int least_step_bytes() {
  int least = 1 << 30;
  ((least = Formats::BYTES < least ? Formats::BYTES : least), ...);
  return least;
}
