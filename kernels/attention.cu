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

// Causal attention against the KV cache: online softmax over tiles of 64 positions.
//
// A block serves one query head of one token and never holds more than one tile of scores.
// Decode and prefill run the same function, so a token's output is the same to the bit whether it
// came alone or in a batch. Milakov and Gimelshein, "Online normalizer calculation for softmax",
// 2018; Dao et al., "FlashAttention", 2022.
//
// A row of keys or values is read by LANES neighbouring threads, 8 elements each, in one load a
// thread; the block reads 128 / LANES rows at a time.

#include "device.cuh"

constexpr int TILE = 64;
constexpr int THREADS = 128;
constexpr int ELEMENTS = 8;
constexpr float LOG2_E = 1.44269504088896341f;

// A cache [positions][groups][dim] of fp16.
struct HalfCache {
  const half_t *values;

  __device__ __forceinline__ void load(float *out, int64_t row, int dim, int element) const {
    const uint4 words = *reinterpret_cast<const uint4 *>(values + row * dim + element);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = half_to_float(half_t(word[i] & 0xffffu));
      out[2 * i + 1] = half_to_float(half_t(word[i] >> 16));
    }
  }
  __device__ __forceinline__ float scale(int64_t) const { return 1.0f; }
};

// A cache [positions][groups][dim] of int8 with scales [positions][groups].
struct Int8Cache {
  const int8_t *values;
  const float *scales;

  __device__ __forceinline__ void load(float *out, int64_t row, int dim, int element) const {
    const uint2 words = *reinterpret_cast<const uint2 *>(values + row * dim + element);
    const uint32_t word[2] = {words.x ^ 0x80808080u, words.y ^ 0x80808080u};
    // A conversion instruction runs at an eighth of the rate of these two: the byte plus 128
    // becomes the low bits of 2^23, and subtracting 2^23 + 128 is exact.
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bits = __byte_perm(word[i / 4], 0x4b000000u, 0x7440u | (i % 4));
      out[i] = __uint_as_float(bits) - 8388736.0f;
    }
  }
  __device__ __forceinline__ float scale(int64_t row) const { return scales[row]; }
};

// Attention of one head over positions 0 to length - 1 of key/value head `group`: out and q (dim).
// shared: TILE + dim floats.
template <int LANES, typename Cache>
__device__ __forceinline__ void attend(half_t *out, const half_t *q, const Cache &keys,
                                       const Cache &values, int length, int group, int groups,
                                       int dim, float scale, float *shared) {
  constexpr int ROWS = THREADS / LANES;
  float *const scores = shared;
  float *const sums = shared + TILE;
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
  const int first_row = threadIdx.x / LANES;
  const int element = threadIdx.x % LANES * ELEMENTS;
  const bool has_elements = element < dim;
  const float nothing = __uint_as_float(0xff800000u);  // minus infinity: the weight 0

  float query[ELEMENTS], sum[ELEMENTS];
#pragma unroll
  for (int i = 0; i < ELEMENTS; ++i) query[i] = sum[i] = 0.0f;
  if (has_elements) HalfCache{q}.load(query, 0, dim, element);
#pragma unroll
  for (int i = 0; i < ELEMENTS; ++i) query[i] *= scale * LOG2_E;  // powers of 2, not of e

  float largest = nothing, total = 0.0f;
  for (int start = 0; start < length; start += TILE) {
    const int count = min(TILE, length - start);
#pragma unroll 4
    for (int step = 0; step < TILE / ROWS; ++step) {
      const int row = step * ROWS + first_row;
      const int64_t cached = int64_t(start + row) * groups + group;
      float dot = 0.0f;
      if (has_elements && row < count) {
        float key[ELEMENTS];
        keys.load(key, cached, dim, element);
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) dot = fmaf(query[i], key[i], dot);
      }
#pragma unroll
      for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        dot += __shfl_xor_sync(0xffffffffu, dot, lanes);
      }
      if (element == 0) scores[row] = row < count ? dot * keys.scale(cached) : nothing;
    }
    __syncthreads();

    // Every warp does the same sums in the same order, which saves two barriers.
    const float low = scores[lane], high = scores[lane + WARP_SIZE];
    const float new_largest = fmaxf(largest, warp_max(fmaxf(low, high)));
    const float shrink = exp2f(largest - new_largest);
    total = total * shrink + warp_sum(exp2f(low - new_largest) + exp2f(high - new_largest));
    largest = new_largest;

#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) sum[i] *= shrink;
#pragma unroll 4
    for (int step = 0; step < TILE / ROWS; ++step) {
      const int row = step * ROWS + first_row;
      if (has_elements && row < count) {
        const int64_t cached = int64_t(start + row) * groups + group;
        const float weight = exp2f(scores[row] - largest) * values.scale(cached);
        float value[ELEMENTS];
        values.load(value, cached, dim, element);
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) sum[i] = fmaf(weight, value[i], sum[i]);
      }
    }
    __syncthreads();
  }

  // The rows' sums: over the lanes of a warp, then one warp after the other.
#pragma unroll
  for (int lanes = LANES; lanes < WARP_SIZE; lanes *= 2) {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], lanes);
  }
  for (int turn = 0; turn < THREADS / WARP_SIZE; ++turn) {
    if (warp == turn && lane < LANES && has_elements) {
#pragma unroll
      for (int i = 0; i < ELEMENTS; ++i) {
        sums[element + i] = turn == 0 ? sum[i] : sums[element + i] + sum[i];
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < dim; i += THREADS) out[i] = float_to_half(sums[i] / total);
}

// One head of one token: blockIdx.x is the head, blockIdx.y the token.
template <typename Cache>
__device__ __forceinline__ void attention(half_t *out, const half_t *q, const Cache &keys,
                                          const Cache &values, const int32_t *positions, int heads,
                                          int groups, int dim, float scale) {
  DYNAMIC_SHARED(float, shared);
  const int head = blockIdx.x, token = blockIdx.y;
  const int64_t offset = (int64_t(token) * heads + head) * dim;
  const int length = positions[token] + 1, group = head / (heads / groups);
  out += offset;
  q += offset;
  if (dim <= 64) {
    attend<8>(out, q, keys, values, length, group, groups, dim, scale, shared);
  } else if (dim <= 128) {
    attend<16>(out, q, keys, values, length, group, groups, dim, scale, shared);
  } else {
    attend<32>(out, q, keys, values, length, group, groups, dim, scale, shared);
  }
}

// Of all kernels below: out and q (tokens, heads, dim) fp16; token n attends to positions 0 to
// positions[n] of the caches, where its own key and value already are; query head h reads
// key/value head h / (heads / groups). dim is a multiple of 8 up to 256. Block 128, shared (64 +
// dim) floats.

// Grid (heads, 1): the token that positions[0] belongs to.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_decode(half_t *__restrict__ out, const half_t *__restrict__ q,
                     const half_t *__restrict__ k_cache, const half_t *__restrict__ v_cache,
                     const int32_t *__restrict__ positions, int32_t heads, int32_t groups,
                     int32_t dim, float scale) {
  attention(out, q, HalfCache{k_cache}, HalfCache{v_cache}, positions, heads, groups, dim, scale);
}

// Grid (heads, tokens).
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_prefill(half_t *__restrict__ out, const half_t *__restrict__ q,
                      const half_t *__restrict__ k_cache, const half_t *__restrict__ v_cache,
                      const int32_t *__restrict__ positions, int32_t heads, int32_t groups,
                      int32_t dim, float scale) {
  attention(out, q, HalfCache{k_cache}, HalfCache{v_cache}, positions, heads, groups, dim, scale);
}

// Grid (heads, 1).
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_decode_int8(half_t *__restrict__ out, const half_t *__restrict__ q,
                          const int8_t *__restrict__ k_cache, const int8_t *__restrict__ v_cache,
                          const float *__restrict__ k_scales, const float *__restrict__ v_scales,
                          const int32_t *__restrict__ positions, int32_t heads, int32_t groups,
                          int32_t dim, float scale) {
  attention(out, q, Int8Cache{k_cache, k_scales}, Int8Cache{v_cache, v_scales}, positions, heads,
            groups, dim, scale);
}

// Grid (heads, tokens).
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_prefill_int8(half_t *__restrict__ out, const half_t *__restrict__ q,
                           const int8_t *__restrict__ k_cache, const int8_t *__restrict__ v_cache,
                           const float *__restrict__ k_scales, const float *__restrict__ v_scales,
                           const int32_t *__restrict__ positions, int32_t heads, int32_t groups,
                           int32_t dim, float scale) {
  attention(out, q, Int8Cache{k_cache, k_scales}, Int8Cache{v_cache, v_scales}, positions, heads,
            groups, dim, scale);
}
