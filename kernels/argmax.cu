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

// Greedy choice of the next token, and its way back into the next decode step.
//
// The lowest index wins a tie. NaN never wins; where no logit is above minus infinity there is
// no choice, which is NO_TOKEN. Grid 1, block 1024.

#include "device.cuh"

constexpr int THREADS = 1024;
constexpr int32_t NO_TOKEN = -1;

struct Candidate {
  float logit;
  int32_t token;
};

__device__ __forceinline__ Candidate better(Candidate a, Candidate b) {
  const bool second = b.logit > a.logit || (b.logit == a.logit && b.token < a.token);
  return second ? b : a;
}

__device__ __forceinline__ Candidate warp_best(Candidate best) {
#pragma unroll
  for (int lanes = WARP_SIZE / 2; lanes > 0; lanes /= 2) {
    const Candidate other = {__shfl_xor_sync(0xffffffffu, best.logit, lanes),
                             __shfl_xor_sync(0xffffffffu, best.token, lanes)};
    best = better(best, other);
  }
  return best;
}

// The first thread gets the index of the largest logit.
__device__ __forceinline__ int32_t largest_index(const float *logits, int32_t vocab) {
  __shared__ float warp_logits[WARP_SIZE];
  __shared__ int32_t warp_tokens[WARP_SIZE];
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
  Candidate best = {__uint_as_float(0xff800000u), vocab};  // loses against any number
#pragma unroll 8
  for (int32_t i = threadIdx.x; i < vocab; i += THREADS) {
    const float logit = logits[i];
    if (logit > best.logit) best = {logit, i};
  }
  best = warp_best(best);
  if (lane == 0) {
    warp_logits[warp] = best.logit;
    warp_tokens[warp] = best.token;
  }
  __syncthreads();
  if (warp == 0) best = warp_best({warp_logits[lane], warp_tokens[lane]});
  return best.token < vocab ? best.token : NO_TOKEN;
}

// Ends a decode step: `token` becomes the choice among logits (vocab), `position` and `step` go on
// by one, and the host finds the choice in ring[step % ring_size]. After NO_TOKEN, which only the
// ring holds, `token` is 0, so that a step already launched stays inside the embedding.
extern "C" __global__ void __launch_bounds__(THREADS)
    argmax(int32_t *__restrict__ token, int32_t *__restrict__ position,
           uint32_t *__restrict__ step, int32_t *__restrict__ ring,
           const float *__restrict__ logits, int32_t vocab, int32_t ring_size) {
  const int32_t chosen = largest_index(logits, vocab);
  if (threadIdx.x != 0) return;
  *token = max(chosen, 0);
  *position += 1;
  ring[*step % ring_size] = chosen;
  *step += 1;
}

// Only the choice, 0 where there is none: a draft is a guess, not a step.
extern "C" __global__ void __launch_bounds__(THREADS)
    argmax_only(int32_t *__restrict__ token, const float *__restrict__ logits, int32_t vocab) {
  const int32_t chosen = largest_index(logits, vocab);
  if (threadIdx.x == 0) *token = max(chosen, 0);
}
