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

// Rows of a packed token embedding (packed.cuh), dequantized: x (N, E) fp32, of N token ids that
// lie on the device. Four columns a thread: grid (ceil(E / 512), N), 128 threads. Equal to
// embed.cu's to the bit.

#include "packed_formats.cuh"

template <class Packed>
__device__ __forceinline__ void packed_embed(float *__restrict__ x,
                                             const int32_t *__restrict__ ids,
                                             const uint8_t *__restrict__ table, int e) {
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (column >= e) return;
  const int id = ids[blockIdx.y];
  const PackedPlace place(id / QUAD, id % QUAD, e / STEP_COLUMNS, column / GROUP_COLUMNS);
  float w[4];
  Packed::dequantize4(w, table + place.step * Packed::BYTES, place.half, place.lane,
                      column % GROUP_COLUMNS / 4);
  *reinterpret_cast<float4 *>(x + int64_t(blockIdx.y) * e + column) =
      make_float4(w[0], w[1], w[2], w[3]);
}

#define PACKED_EMBED(name, Packed, File)                                                    \
  extern "C" __global__ void packed_embed_##name(                                           \
      float *__restrict__ x, const int32_t *__restrict__ ids,                               \
      const uint8_t *__restrict__ table, int32_t e) {                                       \
    packed_embed<Packed>(x, ids, table, e);                                                 \
  }

FOR_EACH_PACKED_FORMAT(PACKED_EMBED)
