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
// One block a multiprocessor runs through all stages. What one stage passes to the next are words
// that carry a tag of the layer (decode_exchange.cuh): who needs them waits for the words. Weights
// depend on nothing, so each warp copies its own, in the packed layout, into a ring of steps in
// shared memory and runs ahead of the waiting: memory stays busy while blocks wait. Every block
// embeds the token and quantizes the activations of a stage for itself.
//
// A slot may be written again once every block has what it read there. A block publishes rows of a
// stage after it has all of that stage's activations, and all rows of a stage are needed before
// any of the next: x -> qkv -> (parts ->) heads -> attended -> hidden -> x. Whoever writes a slot
// again has seen, through that circle, the results of all blocks that read it a layer ago.
//
// Nothing depends on the order in which blocks or warps arrive: sums of rows that several warps
// share, and of attention over several parts of the cache, are added in a fixed order.

#include "decode_activations.cuh"
#include "decode_attention.cuh"
#include "decode_clocks.cuh"
#include "decode_multiply.cuh"

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
    shared->last = atomicAdd(block.work.arrived, 1u) == BLOCKS - 1;
    __threadfence();
  }
  __syncwarp();
  if (!shared->last) return;
  best = none;
  for (int i = lane; i < BLOCKS; i += WARP_SIZE) {
    best = better(best, __ldcg(block.work.best + i));
  }
  best = warp_best(best);
  if (lane != 0) return;
  const int chosen = __float_as_int(best.y) < VOCAB ? __float_as_int(best.y) : -1;
  *token = max(chosen, 0);
  *position += 1;
  ring[*step % ring_size] = chosen;
  *step += 1;
  *block.work.arrived = 0;
}

// Whether the block quantizes for a stage of which it has a share.
__device__ __forceinline__ bool reads(int kind, const Share &share) {
  return kind != VALUE &&
         (share.count > 0 || (kind == QUERY_KEY && Share(quads_of(VALUE)).count > 0));
}

// The norm before a layer, or before the head.
__device__ __forceinline__ const float *norm_before(const Shared *shared, int layer,
                                                    const float *output_norm) {
  return layer < LAYERS ? shared->layers[layer].attn_norm : output_norm;
}

// Asks for a norm's weights, a share of them a block: a step ago is too long for the L2 cache.
__device__ __forceinline__ void prefetch_norm(const float *norm) {
  constexpr int LINE = 32;
  const int at = (threadIdx.x * BLOCKS + blockIdx.x) * LINE;
  if (at < EMBEDDING) prefetch(norm + at);
}

// Ends where argmax ends: `token` and `position` are the next step's, and `ring` has the choice.
// stages: query and key in one, value, output, gate and up in one, down, for each layer; then the
// head. Grid: BLOCKS, which all run at once, one a multiprocessor; block 384; shared memory as
// decode_shared_bytes says.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_step(int32_t *token, int32_t *position, uint32_t *step, int32_t *ring, float *logits,
                const Stage *stages, const Layer *layers, const uint64_t *turns,
                const float *output_norm, const Stage *table, const Work *work_place,
                int32_t ring_size, float eps, float score_scale
#ifdef DECODE_CLOCKS
                , uint64_t *clock_sums
#endif
                ) {
  DYNAMIC_SHARED(uint8_t, memory);
  Shared *const shared = reinterpret_cast<Shared *>(memory + RING_BYTES);
  for (int i = threadIdx.x; i < STAGES; i += THREADS) shared->stages[i] = stages[i];
  for (int i = threadIdx.x; i < LAYERS; i += THREADS) shared->layers[i] = layers[i];
  if (threadIdx.x == 0) shared->work = *work_place;
  if (threadIdx.x < KINDS * WARPS) {
    const int kind = threadIdx.x / WARPS, warp = threadIdx.x % WARPS;
    divide_steps(shared->turns[kind][warp], shared->joints[kind][warp], kind, warp);
  }
  __syncthreads();
  Block block(memory, STAGES);
  set_rotation(shared->rotation, turns, *position);
  for (int i = threadIdx.x; i < KINDS * WARPS * 2 * QUAD; i += THREADS) {
    (&shared->sums[0][0][0][0])[i] = 0.0f;
  }
  __syncthreads();
  const Work &work = block.work;
  const int place = *position;
  block.tag = *step * LAYERS;
#ifdef DECODE_CLOCKS
  start_clock(shared, clock_sums);
#endif
#pragma unroll 1
  for (int number = 0; number < STAGES; ++number) {
    const int kind = kind_of(number), layer = number / LAYER_STAGES;
    const int format = shared->stages[number].format;
    const Share share(quads_of(kind));
    clock_products(shared, kind);
    if (!reads(kind, share) && number > 0) {
      // Nobody waits for this block, so what it would wait for may be gone.
    } else if (kind == OUTPUT) {
      await_and_quantize<QUERY>(shared, work.heads, block.tag);
      __syncthreads();
    } else if (kind == DOWN) {
      await_and_quantize<FEED_FORWARD>(shared, work.hidden, block.tag);
      __syncthreads();
    } else {
      const NormWeights weights(kind == GATE_UP ? shared->layers[layer].ffn_norm
                                                : norm_before(shared, layer, output_norm));
      float v[TURNS<EMBEDDING>][EIGHT];
      if (number == 0) {
        embed(v, shared->residual, *table, *token);
      } else {
        await_activations<EMBEDDING, true>(
            v, kind == GATE_UP ? work.attended : work.x, block.tag);
      }
      lap(shared, WAIT);
      weights.apply(v, shared->squares);
      quantize<EMBEDDING>(shared, v);
      __syncthreads();
    }
    if (kind == QUERY_KEY) ++block.tag;
    if (kind == OUTPUT || kind == DOWN) {
      block.norm = 1.0f;
    } else if (kind != VALUE) {
      block.norm = norm_factor(shared, eps);
    }
    lap(shared, QUANTIZE);
    multiply_as<DECODE_FORMATS>(format, block, kind, share, logits);
    // Norms a stage ahead.
    if (kind == GATE_UP) prefetch_norm(norm_before(shared, layer + 1, output_norm));
    if (kind == QUERY_KEY) {
      prefetch_norm(shared->layers[layer].ffn_norm);
      lap(shared, MULTIPLY);
      continue;
    }
    __syncthreads();
    lap(shared, MULTIPLY);
    const int warp = threadIdx.x / WARP_SIZE;
    if (warp == 0 || (warp == 1 && kind == VALUE)) {
      const int finished = warp == 0 ? kind : int(QUERY_KEY);
      finish_shared(block, finished, Share(quads_of(finished)), logits);
    }
    lap(shared, FINISH);
    if (kind != VALUE) continue;
    const int active = active_parts(place);
    clock_attention(shared);
    for (int unit = blockIdx.x; unit < GROUPS * active; unit += BLOCKS) {
      attend(block, shared->layers[layer], unit, active, place, eps, score_scale);
    }
  }
  wait_for_copies<0>();
  choose(block, token, position, step, ring, ring_size);
  lap(shared, FINISH);
  end_clock(shared);
}

// Bytes of shared memory that a launch of decode_step needs.
extern "C" __global__ void decode_shared_bytes(int32_t *bytes) {
  *bytes = RING_BYTES + int(sizeof(Shared));
}
