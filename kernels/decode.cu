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

// A whole decode step of a Qwen3 in one persistent kernel: embedding, every layer, head, argmax.
//
// One block a multiprocessor runs through all stages; a barrier over the grid separates those
// that depend on each other. Weights depend on nothing, so each warp copies its own, in the
// packed layout, into a ring of steps in shared memory and runs ahead of the barriers: memory
// stays busy while blocks wait. Every block quantizes the activations of a stage for itself.
//
// Nothing depends on the order in which blocks or warps arrive: sums of rows that several warps
// share, and of attention over several parts of the cache, are added in a fixed order.

#include "decode_activations.cuh"
#include "decode_attention.cuh"
#include "decode_multiply.cuh"

// The token's row of the table, a share of it a block, into the residual stream.
template <class First, class... Rest>
__device__ __forceinline__ void embed_as(int format, float *x, const Stage &table, int token) {
  if constexpr (sizeof...(Rest) > 0) {
    if (format > 0) {
      embed_as<Rest...>(format - 1, x, table, token);
      return;
    }
  }
  for (int four = blockIdx.x * THREADS + threadIdx.x; four < EMBEDDING / 4;
       four += gridDim.x * THREADS) {
    const PackedPlace place(token / QUAD, token % QUAD, table.steps, four / 8);
    float w[4];
    First::dequantize4(w, table.weights + place.step * First::BYTES, place.half, place.lane,
                       four % 8);
    reinterpret_cast<float4 *>(x)[four] = make_float4(w[0], w[1], w[2], w[3]);
  }
}

__device__ __forceinline__ float2 better(float2 a, float2 b) {
  const int first = __float_as_int(a.y), second = __float_as_int(b.y);
  return b.x > a.x || (b.x == a.x && second < first) ? b : a;
}

__device__ __forceinline__ float2 warp_best(float2 best) {
#pragma unroll
  for (int lanes = WARP_SIZE / 2; lanes > 0; lanes /= 2) {
    best = better(best, make_float2(__shfl_xor_sync(EVERY_LANE, best.x, lanes),
                                    __shfl_xor_sync(EVERY_LANE, best.y, lanes)));
  }
  return best;
}

// The block's best logit goes to memory; the last block to arrive ends the step, as argmax does.
__device__ __forceinline__ void choose(Block &block, int32_t *token, int32_t *position,
                                       uint32_t *step, int32_t *ring, int ring_size) {
  Shared *const shared = block.shared;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const float2 none = make_float2(__uint_as_float(0xff800000u), __int_as_float(VOCAB));
  float2 best = warp_best(make_float2(block.best_logit, __int_as_float(block.best_token)));
  if (lane == 0) shared->best[warp] = best;
  __syncthreads();
  if (warp != 0) return;
  best = warp_best(lane < WARPS ? shared->best[lane] : none);
  if (lane == 0) {
    block.work.best[blockIdx.x] = best;
    __threadfence();
    shared->last = atomicAdd(block.work.arrived + 1, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncwarp();
  if (!shared->last) return;
  best = none;
  for (int i = lane; i < int(gridDim.x); i += WARP_SIZE) {
    best = better(best, __ldcg(block.work.best + i));
  }
  best = warp_best(best);
  if (lane != 0) return;
  const int chosen = __float_as_int(best.y) < VOCAB ? __float_as_int(best.y) : -1;
  *token = max(chosen, 0);
  *position += 1;
  ring[*step % ring_size] = chosen;
  *step += 1;
  block.work.arrived[0] = 0;
  block.work.arrived[1] = 0;
}

// Ends where argmax ends: `token` and `position` are the next step's, and `ring` has the choice.
// stages: query and key in one, value, output, gate and up in one, down, for each layer; then the
// head. Grid: at most as many blocks as run at once, one a multiprocessor; block 384; shared
// memory as decode_shared_bytes says. `parts`: most parts of the cache, at least 1.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_step(int32_t *token, int32_t *position, uint32_t *step, int32_t *ring, float *logits,
                const Stage *stages, const Layer *layers, const uint64_t *turns,
                const float *output_norm, const Stage *table, const Work *work_place,
                int32_t layer_count, int32_t parts, int32_t ring_size, float eps, float score_scale) {
  DYNAMIC_SHARED(uint8_t, memory);
  const int stage_count = layer_count * LAYER_STAGES + 1;
  Block block(memory, stages, stage_count);
  if (threadIdx.x == 0) block.shared->work = *work_place;
  __syncthreads();
  const Work &work = block.work;
  const int place = *position;
  embed_as<DECODE_FORMATS>(table->format, work.x, *table, *token);
  Stage stage = stages[0];
  const float *norm = layers[0].attn_norm;
  block.grid_barrier();
#pragma unroll 1
  for (int number = 0; number < stage_count; ++number) {
    const int kind = number + 1 == stage_count ? int(HEAD) : number % LAYER_STAGES;
    const int layer = number / LAYER_STAGES;
    Shared *const shared = block.shared;
    if (kind == QUERY_KEY || kind == GATE_UP || kind == HEAD) {
      quantize<EMBEDDING, true>(shared, work.x, norm, eps);
    } else if (kind == OUTPUT) {
      quantize<QUERY, false>(shared, work.heads, nullptr, eps);
    } else if (kind == DOWN) {
      quantize<FEED_FORWARD, false>(shared, work.hidden, nullptr, eps);
    }
    const Share share(stage.quads);
    multiply_as<DECODE_FORMATS>(stage.format, block, kind, share, stage.steps, logits);
    __syncthreads();
    finish_shared(block, kind, share, stage.steps, logits);
    if (kind == HEAD) break;
    // The next stage's addresses, before the wait rather than after it.
    stage = stages[number + 1];
    norm = kind == OUTPUT                    ? layers[layer].ffn_norm
           : kind != DOWN                    ? norm
           : number + 2 == stage_count       ? output_norm
                                             : layers[layer + 1].attn_norm;
    if (kind == QUERY_KEY) {
      prefetch_cache(layers[layer], place, parts);
      __syncthreads();  // the next stage uses shared->sums
      continue;
    }
    block.grid_barrier();
    if (kind != VALUE) continue;
    const int active = active_parts(place, parts);
    for (int unit = blockIdx.x; unit < GROUPS * active; unit += gridDim.x) {
      attend(block, layers[layer], unit % GROUPS, unit / GROUPS, active, place, turns, eps,
             score_scale);
      __syncthreads();
    }
    block.grid_barrier();
  }
  wait_for_copies<0>();
  choose(block, token, position, step, ring, ring_size);
}

// Bytes of shared memory that a launch of decode_step needs.
extern "C" __global__ void decode_shared_bytes(int32_t *bytes) {
  *bytes = RING_BYTES + int(sizeof(Shared));
}
