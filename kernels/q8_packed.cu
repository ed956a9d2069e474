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

// Packed Q8_0 matrices (packed.cuh) in place of planes: what q8_gemm.cu and q8_embed.cu compute,
// to the bit, for models whose matrices the persistent decode kernel reads.

#include "packed.cuh"
#include "q8_gemm.cuh"

// One row, read as planes are.
struct PackedQ8Row {
  const uint8_t *quad;
  int half, first_lane;

  __device__ __forceinline__ const uint8_t *step(int i) const {
    return quad + i / STEP_COLUMNS * Q8Layout::BYTES;
  }
  __device__ __forceinline__ int lane(int i) const {
    return first_lane + i % STEP_COLUMNS / GROUP_COLUMNS;
  }
  // The 16 words of which element i is one.
  __device__ __forceinline__ const uint8_t *words(int i) const {
    return step(i) + half * Q8Layout::HALF + i % GROUP_COLUMNS / 16 * Q8Layout::LAST +
           lane(i) * 16;
  }
  __device__ __forceinline__ uint4 load(int i) const {
    return __ldcs(reinterpret_cast<const uint4 *>(words(i)));
  }
  __device__ __forceinline__ half_t scale(int i) const {
    return reinterpret_cast<const half_t *>(step(i) + Q8Layout::SCALES)[half * WARP_SIZE +
                                                                        lane(i)];
  }
};

// Row r lies as row `first_row + r % rows_a_quad` of quad `first_quad + r / rows_a_quad`.
struct PackedQ8 {
  const uint8_t *steps;
  int first_quad, rows_a_quad, first_row;

  __device__ __forceinline__ PackedQ8Row row(int row, int k) const {
    const int64_t quad = first_quad + row / rows_a_quad;
    const int row_of_quad = first_row + row % rows_a_quad;
    return {steps + quad * (k / STEP_COLUMNS) * Q8Layout::BYTES, row_of_quad / 2,
            row_of_quad % 2 * 16};
  }
};

#define GEMM(name, X)                                                                    \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) gemm_q8_packed_##name(  \
      float *__restrict__ y, const uint8_t *__restrict__ x,                              \
      const float *__restrict__ factors, const uint8_t *__restrict__ w,                  \
      int32_t first_quad, int32_t rows_a_quad, int32_t first_row, int32_t n, int32_t m,  \
      int32_t k, int32_t stride, int32_t chunk) {                                        \
    gemm<X>(y, x, factors, PackedQ8{w, first_quad, rows_a_quad, first_row}, n, m, k,     \
            stride, chunk);                                                              \
  }

FOR_A8(GEMM(a8, A8))
FOR_A8X2(GEMM(a8x2, A8x2))

// x (N, E) fp32: rows ids[0..N-1], which lie on the device. Grid (ceil(E / 128), N), 128 threads.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    embed_q8_packed(float *__restrict__ x, const int32_t *__restrict__ ids,
                    const uint8_t *__restrict__ w, int32_t first_quad, int32_t rows_a_quad,
                    int32_t first_row, int32_t e) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= e) return;
  const PackedQ8Row row =
      PackedQ8{w, first_quad, rows_a_quad, first_row}.row(ids[blockIdx.y], e);
  const int8_t word = reinterpret_cast<const int8_t *>(row.words(i))[i % 16];
  x[int64_t(blockIdx.y) * e + i] = float(word) * half_to_float(row.scale(i));
}
