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

// Products of packed matrices (packed.cuh) with a short batch of tokens, for prefill, and for
// decoding where the persistent kernel has failed: y (N, M) = x (N, K) W^T, N <= 32, x fp16. One
// row a warp, four a block: grid ceil(M / 4), 128 threads. Lanes have the weights that they have in
// gemm.cu, so the results equal that file's to the bit.
//
// W may share a packed matrix with another: its row r is row `first_row + r % rows_a_quad` of
// quad `first_quad + r / rows_a_quad`, as repack.cu has put it there.
//
// `output` (see Output) says what y is; one kernel does it all, as each takes the compiler long.

#include "dot.cuh"
#include "packed_formats.cuh"

constexpr int MAX_TOKENS = 32;

struct RowPlace {
  int first_quad, rows_a_quad, first_row;
};

// Block `block` of a row as File has it: this lane's share, `part`, from the packed layout.
template <class Packed, class File>
__device__ __forceinline__ void dequantize(float (&w)[8], const uint8_t *quad, int half,
                                           uint32_t first_lane, uint32_t block, int part) {
  // No offset has the stride's bit, nor a first lane one of the group's.
  const uint32_t column = block * File::WEIGHTS | uint32_t(File::x_offset(part));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t at = i ? column | File::STRIDE : column;
    const uint32_t group = at % STEP_COLUMNS / GROUP_COLUMNS;
    Packed::dequantize4(w + 4 * i, quad + at / STEP_COLUMNS * Packed::BYTES, half,
                        int(first_lane | group), int(at % GROUP_COLUMNS / 4));
  }
}

template <class Packed, class File>
__device__ __forceinline__ void multiply(void *y, const float *residual,
                                         const half_t *__restrict__ x,
                                         const uint8_t *__restrict__ w, int n, int m, int k,
                                         const RowPlace &place, int output) {
  const int row = blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP_SIZE;
  if (row >= m) return;
  const int64_t quad = place.first_quad + row / place.rows_a_quad;
  const int row_of_quad = place.first_row + row % place.rows_a_quad;
  w += quad * (k / STEP_COLUMNS) * Packed::BYTES;
  const int lane = threadIdx.x % WARP_SIZE, part = lane % File::LANES;
  const int blocks = k / File::WEIGHTS;
  const half_t *const x_part = x + File::x_offset(part);
  float sum[MAX_TOKENS] = {};
  for (int b = lane / File::LANES; b < blocks; b += WARP_SIZE / File::LANES) {
    float weights[8];
    dequantize<Packed, File>(weights, w, row_of_quad / 2, row_of_quad % 2 * 16, b, part);
    add_products<File>(sum, weights, x_part + b * File::WEIGHTS, k, n);
  }
  const float mine = own_sum(sum, n);
  if (lane < n) put(y, residual, int64_t(lane) * m + row, mine, output);
}

#define PACKED_GEMM(name, Packed, File)                                                   \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) packed_gemm_##name(         \
      void *y, const float *residual, const half_t *__restrict__ x,                       \
      const uint8_t *__restrict__ w, int32_t n, int32_t m, int32_t k, int32_t first_quad, \
      int32_t rows_a_quad, int32_t first_row, int32_t output) {                           \
    multiply<Packed, File>(y, residual, x, w, n, m, k,                                    \
                           RowPlace{first_quad, rows_a_quad, first_row}, output);         \
  }

FOR_EACH_PACKED_FORMAT(PACKED_GEMM)
