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

// The next token by temperature, top-k, top-p and min-p, as engine/sampler.py chooses it.
//
// The vocabulary is cut into slices, a block each, which finds the slice's top k; a last block
// finds the top k of those and draws. Equal logits count by lower token. Draws, recent tokens and
// results lie at the position that the chosen token will have, modulo the length of each array:
// no counter is needed, and the host may launch steps ahead. Called after every decode step of an
// answer that is not greedy, by backends/cuda/sampling.py.

#include "device.cuh"

constexpr int THREADS = 256;
constexpr int SLICE = 2048;    // logits a block of sample_slices looks at
constexpr int MOST = 256;      // the largest top_k
constexpr int RECENT = 64;     // tokens that the repeat penalty looks at
constexpr uint32_t NO_KEY = 0;  // below every logit's
constexpr int32_t NO_TOKEN = -1;

// Orders as the logits do.
__device__ __forceinline__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The k largest keys: all above `key`, and the first `ties` of those equal to it.
struct Threshold {
  uint32_t key;
  int ties, equals;
};

// Finds it byte by byte, from the highest bit in which keys differ. Needs k <= count. Every thread
// of the block calls it and gets the same.
__device__ __forceinline__ Threshold find_threshold(const uint32_t *keys, int count, int k) {
  __shared__ uint32_t depth, highest, above, found;
  __shared__ int needed, histogram[256];
  if (threadIdx.x == 0) {
    depth = 0;
    highest = 0;
    above = 0;
    needed = k;
  }
  __syncthreads();
  uint32_t deep = 0, high = 0;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    deep = max(deep, ~keys[i]);
    high = max(high, keys[i]);
  }
  atomicMax(&depth, deep);
  atomicMax(&highest, high);
  __syncthreads();
  const uint32_t lowest = ~depth;
  int shift = highest == lowest ? 0 : 32 - __clz(int(highest - lowest));
  int equals = count;
  while (shift > 0) {
    const int bits = min(shift, 8);
    shift -= bits;
    for (int i = threadIdx.x; i < 256; i += THREADS) histogram[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
      const uint32_t height = keys[i] - lowest;
      if (shift + bits == 32 || height >> (shift + bits) == above) {
        atomicAdd(&histogram[height >> shift & ((1u << bits) - 1)], 1);
      }
    }
    __syncthreads();
    // Each thread has a byte: its place is where the keys above it are too few.
    int higher = 0;
    for (int i = threadIdx.x + 1; i < 256; ++i) higher += histogram[i];
    const int mine = histogram[threadIdx.x], still = needed;
    __syncthreads();
    if (higher < still && higher + mine >= still) {
      found = threadIdx.x;
      needed = still - higher;
    }
    __syncthreads();
    if (threadIdx.x == 0) above = above << bits | found;
    equals = histogram[found];
    __syncthreads();
  }
  return {lowest + above, needed, equals};
}

// The slices' top k: candidates (slices, k), in no order; what a slice lacks has NO_KEY. `logits`
// stay as they are. Where one is not finite, `damaged` becomes 1. `recent` (RECENT): tokens, or
// negative. Grid: slices of SLICE, block 256.
extern "C" __global__ void __launch_bounds__(THREADS)
    sample_slices(uint32_t *__restrict__ candidate_keys, int32_t *__restrict__ candidates,
                  int32_t *__restrict__ damaged, const float *__restrict__ logits,
                  const int32_t *__restrict__ recent, float repeat_penalty, int32_t vocab,
                  int32_t k) {
  __shared__ uint32_t keys[SLICE];
  __shared__ int taken;
  const int first = blockIdx.x * SLICE, count = min(SLICE, vocab - first);
  if (threadIdx.x == 0) taken = 0;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const float logit = logits[first + i];
    if (!(fabsf(logit) < __uint_as_float(0x7f800000u))) *damaged = 1;
    keys[i] = key_of(logit);
  }
  __syncthreads();
  if (repeat_penalty != 1.0f && threadIdx.x < RECENT) {
    const int at = recent[threadIdx.x] - first;
    bool counts = at >= 0 && at < count;
    for (int i = 0; i < int(threadIdx.x); ++i) counts = counts && recent[i] - first != at;
    if (counts) {
      const float logit = logit_of(keys[at]);
      keys[at] = key_of(logit > 0.0f ? logit / repeat_penalty : logit * repeat_penalty);
    }
  }
  __syncthreads();
  const int wanted = min(k, count);
  const Threshold threshold = find_threshold(keys, count, wanted);
  uint32_t *const out_keys = candidate_keys + blockIdx.x * k;
  int32_t *const out = candidates + blockIdx.x * k;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    bool take = keys[i] > threshold.key;
    if (keys[i] == threshold.key) {
      int before = 0;
      if (threshold.ties < threshold.equals) {
        for (int j = 0; j < i; ++j) before += keys[j] == threshold.key;
      }
      take = before < threshold.ties;
    }
    if (take) {
      const int at = atomicAdd(&taken, 1);
      out_keys[at] = keys[i];
      out[at] = first + i;
    }
  }
  for (int i = wanted + threadIdx.x; i < k; i += THREADS) out_keys[i] = NO_KEY;
}

// Ends a step: `token`, `recent` and `chosen` at `position` get the choice. Where a logit is not
// finite `chosen` is NO_TOKEN and `token` 0, so that a step already launched stays inside the
// embedding. `position` is the chosen token's. draws (draw_count) are from 0 up to 1. Grid 1,
// block 256.
extern "C" __global__ void __launch_bounds__(THREADS)
    sample_token(int32_t *__restrict__ token, int32_t *__restrict__ recent,
                 int32_t *__restrict__ chosen, int32_t *__restrict__ damaged,
                 const int32_t *__restrict__ position, const uint32_t *__restrict__ candidate_keys,
                 const int32_t *__restrict__ candidates, const double *__restrict__ draws,
                 int32_t candidate_count, int32_t k, double temperature, double top_p,
                 double min_p, int32_t chosen_count, int32_t draw_count) {
  __shared__ uint32_t keys[MOST];
  __shared__ int32_t tokens[MOST];
  __shared__ float logits[MOST], weights[MOST];
  __shared__ int32_t order[MOST];
  __shared__ int taken, kept;
  if (threadIdx.x == 0) taken = 0;
  const Threshold threshold = find_threshold(candidate_keys, candidate_count, k);
  for (int i = threadIdx.x; i < candidate_count; i += THREADS) {
    const uint32_t key = candidate_keys[i];
    bool take = key > threshold.key;
    if (key == threshold.key) {
      int before = 0;
      if (threshold.ties < threshold.equals) {
        for (int j = 0; j < candidate_count; ++j) {
          before += candidate_keys[j] == key && candidates[j] < candidates[i];
        }
      }
      take = before < threshold.ties;
    }
    if (take) {
      const int at = atomicAdd(&taken, 1);
      keys[at] = key;
      tokens[at] = candidates[i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < k; i += THREADS) {
    int place = 0;
    for (int j = 0; j < k; ++j) {
      place += keys[j] > keys[i] || (keys[j] == keys[i] && tokens[j] < tokens[i]);
    }
    logits[place] = logit_of(keys[i]);
    order[place] = tokens[i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < k; i += THREADS) weights[i] = expf(logits[i] - logits[0]);
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0.0;
    for (int i = 0; i < k; ++i) total += double(weights[i]);
    double sum = double(weights[0]);
    int count = 1;
    // top_p keeps the one that reaches it.
    while (count < k && weights[count] >= min_p && (top_p >= 1.0 || sum < top_p * total)) {
      sum += double(weights[count++]);
    }
    kept = count;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kept; i += THREADS) {
    weights[i] = expf(float(double(logits[i] - logits[0]) / temperature));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (int i = 0; i < kept; ++i) total += double(weights[i]);
  const double goal = draws[*position % draw_count] * total;
  double sum = double(weights[0]);
  int at = 0;
  while (at + 1 < kept && sum <= goal) sum += double(weights[++at]);
  const int32_t choice = *damaged ? NO_TOKEN : order[at];
  *damaged = 0;
  *token = max(choice, 0);
  recent[*position % RECENT] = choice;
  chosen[*position % chosen_count] = choice;
}
