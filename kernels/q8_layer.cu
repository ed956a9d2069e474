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

// The decode step of one token on Q8_0 planes in few launches: products whose last blocks do what
// follows. The results equal those of the separate kernels to the bit.
//
//   q8_qkv       q, k and v of a norm's output; then head norms, rotary embedding, cache
//   q8_add_norm  residual += W x; then the next norm
//   q8_gate_up   gate and up of a norm's output; then SwiGLU
//   q8_head      logits of a norm's output
//
// A group of rows (a head, or 32) is finished by the block that completes it, which a counter
// shows: every block writes its sums, then adds 1, and the one that finds all others there reads
// them back. Sums of a row's chunks of K are added in ascending order, whichever block is last.
// Counters are 0 before and after.
//
// Norms leave x * weight and sums of squares by groups of 32; products apply the factor (see
// NormFactor). Blocks are 128 threads, a warp a row, or two for _r2: grid (rows / 4 or 8,
// chunks of K). Rows are multiples of 32.

#include "last_block.cuh"
#include "q8_heads.cuh"

// The sum of one row, from partials [chunks][m].
__device__ __forceinline__ float combined(const float *partials, int m, int row, int chunks) {
  const volatile float *const parts = partials;
  float sum = parts[row];
  for (int chunk = 1; chunk < chunks; ++chunk) sum += parts[int64_t(chunk) * m + row];
  return sum;
}

// Writes y[r], r < ROWS: this warp's rows over this block's chunk of K.
template <int UNROLL, class X, int ROWS>
__device__ __forceinline__ void write_products(
    float *const (&y)[ROWS], const Row (&rows)[ROWS], const X &x, int k, int chunk) {
  const int begin = blockIdx.y * chunk;
  float sum[ROWS] = {};
  add_products<UNROLL>(sum, rows, x, begin, min(begin + chunk, k));
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const float total = warp_sum(sum[r]) * X::UNIT;
    if (threadIdx.x % WARP_SIZE == 0) *y[r] = total;
  }
}

// The same for rows of a norm's output.
template <int UNROLL, class X, int ROWS>
__device__ __forceinline__ void write_normed_products(
    float *const (&y)[ROWS], const Row (&rows)[ROWS], const X &x, const float *squares,
    float eps, int k, int chunk) {
  const NormFactor norm(squares, k);
  const int begin = blockIdx.y * chunk;
  float sum[ROWS] = {};
  add_products<UNROLL>(sum, rows, x, begin, min(begin + chunk, k));
  const float unit = X::UNIT * norm.value(k, eps);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const float total = warp_sum(sum[r]) * unit;
    if (threadIdx.x % WARP_SIZE == 0) *y[r] = total;
  }
}

template <int ROWS>
__device__ __forceinline__ int first_row() {
  return (blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP_SIZE) * ROWS;
}

// One of three matrices that lie apart, by the row of all.
struct Projections {
  const uint8_t *w_q, *w_k, *w_v;
  const half_t *d_q, *d_k, *d_v;
  int rows_q, rows_k;

  __device__ __forceinline__ Row row(int index, int k) const {
    if (index < rows_q) return Row(w_q, d_q, index, k);
    index -= rows_q;
    if (index < rows_k) return Row(w_k, d_k, index, k);
    return Row(w_v, d_v, index - rows_k, k);
  }
};

template <class X, int UNROLL, int ROWS>
__device__ __forceinline__ void qkv(
    const Heads &to, const int32_t *positions, float *partials, uint32_t *counters,
    const uint8_t *x, const float *squares, const Projections &w, int k, int chunk) {
  __shared__ float head_row[MAX_HEAD];
  const int m = (to.heads + 2 * to.groups) * to.dim;
  const int first = first_row<ROWS>();
  float *const y = partials + int64_t(blockIdx.y) * m + first;
  if constexpr (ROWS == 2) {
    float *const out[2] = {y, y + 1};
    const Row rows[2] = {w.row(first, k), w.row(first + 1, k)};
    write_normed_products<UNROLL>(out, rows, X(x, 1, k), squares, to.eps, k, chunk);
  } else {
    float *const out[1] = {y};
    const Row rows[1] = {w.row(first, k)};
    write_normed_products<UNROLL>(out, rows, X(x, 1, k), squares, to.eps, k, chunk);
  }
  const int per_block = WARPS_PER_BLOCK * ROWS;
  const int head = blockIdx.x * per_block / to.dim;
  const int32_t position = positions[0];
  if (!first_warp_completes(counters + head, to.dim / per_block * gridDim.y)) return;
  for (int i = threadIdx.x; i < to.dim; i += WARP_SIZE) {
    head_row[i] = combined(partials, m, head * to.dim + i, gridDim.y);
  }
  finish_head(to, head_row, head, 0, position);
}

// partials [chunks][(heads + 2 groups) * dim], counters (heads + 2 groups).
#define QKV(name, X, UNROLL, ROWS)                                                       \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 8) q8_qkv_##name(          \
      HEADS_PARAMETERS, float *__restrict__ partials, uint32_t *__restrict__ counters,   \
      const uint8_t *__restrict__ x, const float *__restrict__ squares,                  \
      const uint8_t *__restrict__ w_q, const half_t *__restrict__ d_q,                   \
      const uint8_t *__restrict__ w_k, const half_t *__restrict__ d_k,                   \
      const uint8_t *__restrict__ w_v, const half_t *__restrict__ d_v, int32_t length,   \
      int32_t chunk) {                                                                   \
    const Projections w = {w_q, w_k, w_v, d_q, d_k, d_v, heads * dim, groups * dim};     \
    qkv<X, UNROLL, ROWS>(HEADS_ARGUMENTS, positions, partials, counters, x, squares, w,  \
                         length, chunk);                                                 \
  }

template <class X, int UNROLL, int ROWS>
__device__ __forceinline__ void add_norm(
    uint8_t *out, float *squares, float *residual, float *partials, uint32_t *counters,
    const uint8_t *x, const uint8_t *w, const half_t *d, const float *weight, int m, int k,
    int chunk) {
  const int first = first_row<ROWS>();
  float *const y = partials + int64_t(blockIdx.y) * m + first;
  if constexpr (ROWS == 2) {
    float *const to[2] = {y, y + 1};
    const Row rows[2] = {Row(w, d, first, k), Row(w, d, first + 1, k)};
    write_products<UNROLL>(to, rows, X(x, 1, k), k, chunk);
  } else {
    float *const to[1] = {y};
    const Row rows[1] = {Row(w, d, first, k)};
    write_products<UNROLL>(to, rows, X(x, 1, k), k, chunk);
  }
  const int per_block = WARPS_PER_BLOCK * ROWS;
  const int group = blockIdx.x * per_block / GROUP;
  // Loaded now, so that the last block need not wait for them; only it changes the residual.
  const int i = group * GROUP + threadIdx.x % WARP_SIZE;
  const float before = residual[i], norm_weight = weight[i];
  if (!first_warp_completes(counters + group, GROUP / per_block * gridDim.y)) return;
  const float value = before + combined(partials, m, i, gridDim.y);
  residual[i] = value;
  const float sum = store_normed<X>(out, 1, m, i, value, norm_weight);
  if (threadIdx.x == 0) squares[group] = sum;
}

// out: activations (1, M), squares (M/32), residual (M), partials [chunks][M], counters (M/32),
// x: activations (1, K), weight (M): the next norm's.
#define ADD_NORM(name, X, UNROLL, ROWS)                                                  \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) q8_add_norm_##name(        \
      uint8_t *__restrict__ out, float *__restrict__ squares,                            \
      float *__restrict__ residual, float *__restrict__ partials,                        \
      uint32_t *__restrict__ counters, const uint8_t *__restrict__ x,                    \
      const uint8_t *__restrict__ w, const half_t *__restrict__ d,                       \
      const float *__restrict__ weight, int32_t m, int32_t k, int32_t chunk) {           \
    add_norm<X, UNROLL, ROWS>(out, squares, residual, partials, counters, x, w, d,       \
                              weight, m, k, chunk);                                      \
  }

template <class X, int UNROLL>
__device__ __forceinline__ void gate_up(
    uint8_t *out, float *sums, uint32_t *counters, const uint8_t *x, const float *squares,
    const uint8_t *w_gate, const half_t *d_gate, const uint8_t *w_up, const half_t *d_up, int m,
    int k, float eps) {
  const int row = first_row<1>();
  float *const to[2] = {sums + row, sums + m + row};
  const Row rows[2] = {Row(w_gate, d_gate, row, k), Row(w_up, d_up, row, k)};
  write_normed_products<UNROLL>(to, rows, X(x, 1, k), squares, eps, k, k);
  const int group = blockIdx.x * WARPS_PER_BLOCK / GROUP;
  if (!first_warp_completes(counters + group, GROUP / WARPS_PER_BLOCK)) return;
  const int i = group * GROUP + threadIdx.x;
  X::store(out, 1, m, i, swiglu(combined(sums, m, i, 1), combined(sums, m, m + i, 1)));
}

// A warp has one row of each matrix: they share the activations' loads as two rows of one would.
// out: activations (1, M), sums [2][M], counters (M/32). Grid M / 4.
#define GATE_UP(name, X, UNROLL)                                                         \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) q8_gate_up_##name(         \
      uint8_t *__restrict__ out, float *__restrict__ sums,                               \
      uint32_t *__restrict__ counters, const uint8_t *__restrict__ x,                    \
      const float *__restrict__ squares, const uint8_t *__restrict__ w_gate,             \
      const half_t *__restrict__ d_gate, const uint8_t *__restrict__ w_up,               \
      const half_t *__restrict__ d_up, int32_t m, int32_t k, float eps) {                \
    gate_up<X, UNROLL>(out, sums, counters, x, squares, w_gate, d_gate, w_up, d_up, m, k, \
                       eps);                                                             \
  }

// logits (M): any M, grid ceil(M / 4 or 8).
template <class X, int UNROLL, int ROWS>
__device__ __forceinline__ void head(
    float *logits, const uint8_t *x, const float *squares, const uint8_t *w, const half_t *d,
    int m, int k, float eps) {
  const int first = first_row<ROWS>();
  if (first >= m) return;
  if constexpr (ROWS == 2) {
    const int last = min(first + 1, m - 1);  // the first again where there is no second
    float *const to[2] = {logits + first, logits + last};
    const Row rows[2] = {Row(w, d, first, k), Row(w, d, last, k)};
    write_normed_products<UNROLL>(to, rows, X(x, 1, k), squares, eps, k, k);
  } else {
    float *const to[1] = {logits + first};
    const Row rows[1] = {Row(w, d, first, k)};
    write_normed_products<UNROLL>(to, rows, X(x, 1, k), squares, eps, k, k);
  }
}

#define HEAD(name, X, UNROLL, ROWS)                                                      \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) q8_head_##name(            \
      float *__restrict__ logits, const uint8_t *__restrict__ x,                         \
      const float *__restrict__ squares, const uint8_t *__restrict__ w,                  \
      const half_t *__restrict__ d, int32_t m, int32_t k, float eps) {                   \
    head<X, UNROLL, ROWS>(logits, x, squares, w, d, m, k, eps);                          \
  }

#define WITH_ROWS(name, X, UNROLL, ROWS) \
  QKV(name, X, UNROLL, ROWS)             \
  ADD_NORM(name, X, UNROLL, ROWS)        \
  HEAD(name, X, UNROLL, ROWS)
#define EVERY(name, X, UNROLL)   \
  WITH_ROWS(name, X, UNROLL, 1)  \
  GATE_UP(name, X, UNROLL)

FOR_A8(EVERY(a8, A8, 1)
       EVERY(a8_u2, A8, 2)
       EVERY(a8_u4, A8, 4)
       WITH_ROWS(a8_r2, A8, 2, 2))
FOR_A8X2(EVERY(a8x2, A8x2, 1)
         EVERY(a8x2_u2, A8x2, 2)
         EVERY(a8x2_u4, A8x2, 4)
         WITH_ROWS(a8x2_r2, A8x2, 2, 2))
FOR_F32(EVERY(f32, F32, 1))
