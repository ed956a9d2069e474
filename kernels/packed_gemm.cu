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
// row a warp, four a block: grid ceil(M / 4), 128 threads. Lanes have the weights that they have
// in gemm.cu, so the results equal that file's to the bit.
//
// W may share a packed matrix with another: its row r is row `first_row + r % rows_a_quad` of
// quad `first_quad + r / rows_a_quad`, as repack.cu has put it there.
//
//   packed_gemm         fp16 y, saturated
//   packed_gemm_logits  fp32 y
//   packed_gemm_add     fp32 y = residual + x W^T; y may be residual

#include "gemm.cuh"
#include "packed_formats.cuh"

struct RowPlace {
  int first_quad, rows_a_quad, first_row;
};

// A row as dot_row takes it: blocks of the file's size, from the packed layout.
struct PackedRow {
  const uint8_t *quad;
  int half, first_lane, block_weights;

  struct Block {
    const PackedRow &row;
    int first;  // column
  };

  __device__ __forceinline__ Block operator[](int block) const {
    return {*this, block * block_weights};
  }
};

template <class Packed, class File>
struct PackedBlocks : File {
  static __device__ __forceinline__ PackedRow row(const uint8_t *w, const RowPlace &place, int row,
                                                  int k) {
    const int quad = place.first_quad + row / place.rows_a_quad;
    const int row_of_quad = place.first_row + row % place.rows_a_quad;
    return {w + int64_t(quad) * (k / STEP_COLUMNS) * Packed::BYTES, row_of_quad / 2,
            row_of_quad % 2 * 16, File::WEIGHTS};
  }
  static __device__ __forceinline__ void dequantize(float (&w)[8], const PackedRow::Block &block,
                                                    int part) {
    const int column = block.first + File::x_offset(part);
    four(w, block.row, column);
    four(w + 4, block.row, column + File::STRIDE);
  }

 private:
  static __device__ __forceinline__ void four(float *w, const PackedRow &row, int column) {
    const int step = column / STEP_COLUMNS, group = column % STEP_COLUMNS / GROUP_COLUMNS;
    Packed::dequantize4(w, row.quad + step * Packed::BYTES, row.half, row.first_lane + group,
                        column % GROUP_COLUMNS / 4);
  }
};

// Sum of the warp's row with the lane's token; false where there is none.
template <class W>
__device__ __forceinline__ bool row_sum(float *sum, int *at, const half_t *x, const uint8_t *w,
                                        int n, int m, int k, const RowPlace &place) {
  const int row = blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP_SIZE;
  if (row >= m) return false;
  *sum = token_sums<W>(W::row(w, place, row, k), x, n, k);
  const int token = threadIdx.x % WARP_SIZE;
  *at = token * m + row;
  return token < n;
}

#define PACKED_GEMM(name, Packed, File)                                                     \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) packed_gemm_##name(           \
      half_t *__restrict__ y, const half_t *__restrict__ x, const uint8_t *__restrict__ w,  \
      int32_t n, int32_t m, int32_t k, int32_t first_quad, int32_t rows_a_quad,             \
      int32_t first_row) {                                                                  \
    float sum;                                                                              \
    int at;                                                                                 \
    typedef PackedBlocks<Packed, File> W;                                                   \
    const RowPlace place = {first_quad, rows_a_quad, first_row};                            \
    if (row_sum<W>(&sum, &at, x, w, n, m, k, place)) y[at] = float_to_half(sum);            \
  }                                                                                         \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) packed_gemm_logits_##name(    \
      float *__restrict__ y, const half_t *__restrict__ x, const uint8_t *__restrict__ w,   \
      int32_t n, int32_t m, int32_t k, int32_t first_quad, int32_t rows_a_quad,             \
      int32_t first_row) {                                                                  \
    float sum;                                                                              \
    int at;                                                                                 \
    typedef PackedBlocks<Packed, File> W;                                                   \
    const RowPlace place = {first_quad, rows_a_quad, first_row};                            \
    if (row_sum<W>(&sum, &at, x, w, n, m, k, place)) y[at] = sum;                           \
  }                                                                                         \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) packed_gemm_add_##name(       \
      float *y, const float *residual, const half_t *__restrict__ x,                        \
      const uint8_t *__restrict__ w, int32_t n, int32_t m, int32_t k, int32_t first_quad,   \
      int32_t rows_a_quad, int32_t first_row) {                                             \
    float sum;                                                                              \
    int at;                                                                                 \
    typedef PackedBlocks<Packed, File> W;                                                   \
    const RowPlace place = {first_quad, rows_a_quad, first_row};                            \
    if (row_sum<W>(&sum, &at, x, w, n, m, k, place)) y[at] = residual[at] + sum;            \
  }

FOR_EACH_PACKED_FORMAT(PACKED_GEMM)
