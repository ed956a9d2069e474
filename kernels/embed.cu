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

// Rows of the token embedding, dequantized: x (N, E) fp32 from a table (V, E) as it lies in the
// GGUF file and N token ids that lie on the device. Grid (ceil(E / 1024), N), 128 threads; a
// grid of any width gives the same result.

#include "dot.cuh"

__device__ __forceinline__ void store_part(float *x, const float (&w)[1], int) { *x = w[0]; }

__device__ __forceinline__ void store_part(float *x, const float (&w)[8], int stride) {
  *reinterpret_cast<float4 *>(x) = make_float4(w[0], w[1], w[2], w[3]);
  *reinterpret_cast<float4 *>(x + stride) = make_float4(w[4], w[5], w[6], w[7]);
}

template <class W>
__device__ __forceinline__ void embed_row(
    float *__restrict__ x, const int32_t *__restrict__ ids,
    const typename W::Block *__restrict__ table, int e) {
  const int part = threadIdx.x % W::LANES, blocks = e / W::WEIGHTS;
  const int per_step = BLOCK_THREADS / W::LANES;
  const typename W::Block *row = table + int64_t(ids[blockIdx.y]) * blocks;
  x += int64_t(blockIdx.y) * e + W::x_offset(part);
  for (int b = blockIdx.x * per_step + threadIdx.x / W::LANES; b < blocks;
       b += gridDim.x * per_step) {
    float w[W::PER_LANE];
    W::dequantize(w, row[b], part);
    store_part(x + int64_t(b) * W::WEIGHTS, w, W::STRIDE);
  }
}

#define EMBED_ROW(name, W)                                                               \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) embed_row_##name(          \
      float *__restrict__ x, const int32_t *__restrict__ ids,                            \
      const W::Block *__restrict__ table, int32_t e) {                                   \
    embed_row<W>(x, ids, table, e);                                                      \
  }

FOR_EACH_FORMAT(EMBED_ROW)
