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

// Instantiates a kernel for every type that can be packed among WEIGHT_TYPES: MACRO(suffix of its
// name, packed format, the file's format).
#define FOR_EACH_PACKED_FORMAT(MACRO) WEIGHT_TYPES(PACKED_FORMAT_OF, MACRO)
#define PACKED_FORMAT_OF(type, MACRO) PACKED_##type(MACRO)
#define PACKED_q4k(MACRO) MACRO(q4k, PackedQ4K, Q4K<Bytes>)
#define PACKED_q5k(MACRO) MACRO(q5k, PackedQ5K, Q5K)
#define PACKED_q6k(MACRO) MACRO(q6k, PackedQ6K, Q6K)
#define PACKED_q4_0(MACRO) MACRO(q4_0, PackedQ4_0, Q4_0)
#define PACKED_q4_1(MACRO) MACRO(q4_1, PackedQ4_1, Q4_1)
#define PACKED_q5_0(MACRO) MACRO(q5_0, PackedQ5_0, Q5_0)
#define PACKED_q5_1(MACRO) MACRO(q5_1, PackedQ5_1, Q5_1)
#define PACKED_q8_0(MACRO) MACRO(q8_0, PackedQ8_0, Q8_0)
#define PACKED_f16(MACRO)
#define PACKED_bf16(MACRO)
#define PACKED_f32(MACRO)

// Bytes of the largest step among formats.
template <class... Formats>
__device__ constexpr int most_step_bytes() {
  int most = 0;
  ((most = Formats::BYTES > most ? Formats::BYTES : most), ...);
  return most;
}
