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

// Causal attention against the KV cache, in chunks of 128 positions.
//
// A chunk's largest score, sum of weights and sum of weighted values depend on nothing outside it.
// They are added up over the chunks in ascending order, whoever computed them: one block, a chunk
// after the other (attention_decode, attention_prefill), or many blocks (attention_split). So a
// token's output is the same to the bit whether it came alone or in a batch, and on every device.
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
// "FlashAttention", 2022; Dao et al., "Flash-Decoding for long-context inference", 2023.

#include "attention_chunk.cuh"
#include "last_block.cuh"

// One head of one token, a chunk after the other: out and q (dim).
template <int VECTORS, typename Cache>
__device__ __forceinline__ void attend(half_t *out, const half_t *q, const Cache &keys,
                                       const Cache &values, int length, int group, int groups,
                                       int dim, float scale) {
  DYNAMIC_SHARED(float, shared);
  constexpr int OWN = VECTORS > 2 ? 2 : 1;  // elements of the output a thread
  const Partial<1> partial(shared, dim);
  Output<1> output[OWN];
  for (int start = 0; start < length; start += CHUNK) {
    const Chunk chunk{start, min(CHUNK, length - start), group, groups};
    attend_chunk<1, VECTORS>(partial, q, 1, keys, values, chunk, dim, scale);
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int element = threadIdx.x + i * THREADS;
      const float sum[1] = {element < dim ? partial.sum(0, element, dim) : 0.0f};
      output[i].add(partial.largest[0], partial.total[0], sum);
    }
  }
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const int element = threadIdx.x + i * THREADS;
    if (element < dim) out[element] = output[i].element(0);
  }
}

// Elements of a head: HEAD_DIM where the file is compiled for a model, so that code for others and
// much arithmetic are gone.
__device__ __forceinline__ int known(int dim) {
#ifdef HEAD_DIM
  return HEAD_DIM;
#else
  return dim;
#endif
}

// blockIdx.x is the head, blockIdx.y the token.
template <typename Cache>
__device__ __forceinline__ void attention(half_t *out, const half_t *q, const Cache &keys,
                                          const Cache &values, const int32_t *positions, int heads,
                                          int groups, int any_dim, float scale) {
  const int dim = known(any_dim);
  const int head = blockIdx.x, token = blockIdx.y;
  const int64_t offset = (int64_t(token) * heads + head) * dim;
  const int length = positions[token] + 1, group = head / (heads / groups);
  out += offset;
  q += offset;
  if (dim <= 64) {
    attend<1>(out, q, keys, values, length, group, groups, dim, scale);
  } else if (dim <= 128) {
    attend<2>(out, q, keys, values, length, group, groups, dim, scale);
  } else {
    attend<4>(out, q, keys, values, length, group, groups, dim, scale);
  }
}

// Where chunks wait for the last block: partials of `heads` heads.
struct Chunks {
  float *sums;  // [chunks][heads][dim]
  float *tops;  // [chunks][heads][2]: largest, total
  int count, heads, dim;

  __device__ __forceinline__ void write(int chunk, int head, int element,
                                        const float (&sum)[4]) const {
    *reinterpret_cast<float4 *>(sums + (int64_t(chunk) * heads + head) * dim + element) =
        make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  __device__ __forceinline__ void write_top(int chunk, int head, float largest,
                                            float total) const {
    *reinterpret_cast<float2 *>(tops + (int64_t(chunk) * heads + head) * 2) =
        make_float2(largest, total);
  }

  // Adds up all chunks of four elements; the loads of a few chunks are on their way together.
  __device__ __forceinline__ void add_up(Output<4> &output, int head, int element) const {
    constexpr int TOGETHER = 8;
    for (int first = 0; first < count; first += TOGETHER) {
      float4 sum[TOGETHER];
      float2 top[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        const int64_t row = int64_t(min(first + i, count - 1)) * heads + head;
        top[i] = __ldcg(reinterpret_cast<const float2 *>(tops + row * 2));
        sum[i] = __ldcg(reinterpret_cast<const float4 *>(sums + row * dim + element));
      }
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        if (first + i < count) {
          output.add(top[i].x, top[i].y, {sum[i].x, sum[i].y, sum[i].z, sum[i].w});
        }
      }
    }
  }
};

__device__ __forceinline__ void write_output(half_t *out, const Output<4> &output) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = output.element(i);
}

// All query heads of key/value head blockIdx.x, HEADS at a time; every gridDim.y-th chunk from
// blockIdx.y on. The last block of a key/value head adds the chunks up.
template <int HEADS, int VECTORS, typename Cache>
__device__ __forceinline__ void attend_split(half_t *out, const half_t *q, const Cache &keys,
                                             const Cache &values, int length, const Chunks &chunks,
                                             uint32_t *counters, int groups, float scale) {
  DYNAMIC_SHARED(float, shared);
  const int group = blockIdx.x, share = chunks.heads / groups, dim = chunks.dim;
  const Partial<HEADS> partial(shared, dim);
  for (int first = 0; first < share; first += HEADS) {
    const int head = group * share + first, heads = min(HEADS, share - first);
    for (int index = blockIdx.y; index < chunks.count; index += gridDim.y) {
      const int start = index * CHUNK;
      const Chunk chunk{start, min(CHUNK, length - start), group, groups};
      attend_chunk<HEADS, VECTORS>(partial, q + int64_t(head) * dim, heads, keys, values, chunk,
                                   dim, scale);
      for (int i = 4 * threadIdx.x; i < heads * dim; i += 4 * THREADS) {
        const int own = i / dim, element = i % dim;
        const float sum[4] = {partial.sum(own, element, dim), partial.sum(own, element + 1, dim),
                              partial.sum(own, element + 2, dim),
                              partial.sum(own, element + 3, dim)};
        if (chunks.count > 1) {
          chunks.write(index, head + own, element, sum);
        } else {
          Output<4> output;
          output.add(partial.largest[own], partial.total[own], sum);
          write_output(out + int64_t(head) * dim + i, output);
        }
      }
      if (chunks.count > 1 && threadIdx.x < heads) {
        chunks.write_top(index, head + threadIdx.x, partial.largest[threadIdx.x],
                         partial.total[threadIdx.x]);
      }
    }
  }
  if (chunks.count == 1 || !completes(counters + group, min(chunks.count, int(gridDim.y)))) return;
  for (int i = 4 * threadIdx.x; i < share * dim; i += 4 * THREADS) {
    Output<4> output;
    chunks.add_up(output, group * share + i / dim, i % dim);
    write_output(out + int64_t(group) * share * dim + i, output);
  }
}

template <typename Cache>
__device__ __forceinline__ void split(half_t *out, const half_t *q, const Cache &keys,
                                      const Cache &values, const int32_t *positions, float *sums,
                                      float *tops, uint32_t *counters, int heads, int groups,
                                      int any_dim, float scale) {
  const int length = positions[0] + 1, dim = known(any_dim);
  const Chunks chunks{sums, tops, (length + CHUNK - 1) / CHUNK, heads, dim};
  if (blockIdx.y >= chunks.count) return;
  if (dim <= 64) {
    attend_split<4, 1>(out, q, keys, values, length, chunks, counters, groups, scale);
  } else if (dim <= 128) {
    attend_split<4, 2>(out, q, keys, values, length, chunks, counters, groups, scale);
  } else {
    attend_split<2, 4>(out, q, keys, values, length, chunks, counters, groups, scale);
  }
}

// Of all kernels below: out and q (tokens, heads, dim) fp16; token n attends to positions 0 to
// positions[n] of the caches, where its own key and value already are; query head h reads
// key/value head h / (heads / groups). dim is a multiple of 8 up to 256. Block 128.
// INT8_CACHE, 0 or 1, leaves out the kernels of the other cache.

#if !defined(INT8_CACHE) || INT8_CACHE == 0

// Grid (groups, n) for any n: the token that positions[0] belongs to, the same to the bit as from
// attention_decode. sums (C, heads, dim) and tops (C, heads, 2) are scratch, C the chunks of 128
// positions that the caches hold; counters (groups) are 0 before and after. Shared 4 * (128 + 4 *
// dim + 2) floats.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    attention_split(half_t *__restrict__ out, const half_t *__restrict__ q,
                    const half_t *__restrict__ k_cache, const half_t *__restrict__ v_cache,
                    const int32_t *__restrict__ positions, float *sums, float *tops,
                    uint32_t *counters, int32_t heads, int32_t groups, int32_t dim, float scale) {
  split(out, q, HalfCache{k_cache}, HalfCache{v_cache}, positions, sums, tops, counters, heads,
        groups, dim, scale);
}

// Grid (heads, 1): the token that positions[0] belongs to. Shared 128 + 4 * dim + 2 floats.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    attention_decode(half_t *__restrict__ out, const half_t *__restrict__ q,
                     const half_t *__restrict__ k_cache, const half_t *__restrict__ v_cache,
                     const int32_t *__restrict__ positions, int32_t heads, int32_t groups,
                     int32_t dim, float scale) {
  attention(out, q, HalfCache{k_cache}, HalfCache{v_cache}, positions, heads, groups, dim, scale);
}

// Grid (heads, tokens). Shared as attention_decode.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    attention_prefill(half_t *__restrict__ out, const half_t *__restrict__ q,
                      const half_t *__restrict__ k_cache, const half_t *__restrict__ v_cache,
                      const int32_t *__restrict__ positions, int32_t heads, int32_t groups,
                      int32_t dim, float scale) {
  attention(out, q, HalfCache{k_cache}, HalfCache{v_cache}, positions, heads, groups, dim, scale);
}

#endif
#if !defined(INT8_CACHE) || INT8_CACHE == 1

// With a fourth block a multiprocessor it spills registers.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    attention_split_int8(half_t *__restrict__ out, const half_t *__restrict__ q,
                         const int8_t *__restrict__ k_cache, const int8_t *__restrict__ v_cache,
                         const float *__restrict__ k_scales, const float *__restrict__ v_scales,
                         const int32_t *__restrict__ positions, float *sums, float *tops,
                         uint32_t *counters, int32_t heads, int32_t groups, int32_t dim,
                         float scale) {
  split(out, q, Int8Cache{k_cache, k_scales}, Int8Cache{v_cache, v_scales}, positions, sums, tops,
        counters, heads, groups, dim, scale);
}

// Grid (heads, 1).
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    attention_decode_int8(half_t *__restrict__ out, const half_t *__restrict__ q,
                          const int8_t *__restrict__ k_cache, const int8_t *__restrict__ v_cache,
                          const float *__restrict__ k_scales, const float *__restrict__ v_scales,
                          const int32_t *__restrict__ positions, int32_t heads, int32_t groups,
                          int32_t dim, float scale) {
  attention(out, q, Int8Cache{k_cache, k_scales}, Int8Cache{v_cache, v_scales}, positions, heads,
            groups, dim, scale);
}

// Grid (heads, tokens).
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    attention_prefill_int8(half_t *__restrict__ out, const half_t *__restrict__ q,
                           const int8_t *__restrict__ k_cache, const int8_t *__restrict__ v_cache,
                           const float *__restrict__ k_scales, const float *__restrict__ v_scales,
                           const int32_t *__restrict__ positions, int32_t heads, int32_t groups,
                           int32_t dim, float scale) {
  attention(out, q, Int8Cache{k_cache, k_scales}, Int8Cache{v_cache, v_scales}, positions, heads,
            groups, dim, scale);
}

#endif
