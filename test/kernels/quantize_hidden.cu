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

// What the persistent decode kernel makes of the activations that a stage passes on.

#include "decode_activations.cuh"

// values: FEED_FORWARD, published as neighbours that come late. planes, scales: as in shared
// memory. Grid: 2 blocks that run at once; block 384.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    quantize_hidden(const float *values, uint64_t *words, int8_t *planes, ActivationScale *scales,
                    uint32_t tag) {
  DYNAMIC_SHARED(uint8_t, memory);
  if (blockIdx.x == 1) {
    for (int i = threadIdx.x; i < FEED_FORWARD / 2; i += THREADS) {
      publish_pair(words + pair_slot<FEED_FORWARD>(i), values[2 * i], values[2 * i + 1], tag);
      if (i % 1024 == 0) yield_block();
    }
    return;
  }
  Shared *const shared = reinterpret_cast<Shared *>(memory);
  await_and_quantize<FEED_FORWARD>(shared, words, tag);
  __syncthreads();
  for (int i = threadIdx.x; i < FEED_FORWARD / 32; i += THREADS) {
    scales[i] = shared->scales[i];
    for (int plane = 0; plane < 2 * WORDS; ++plane) {
      reinterpret_cast<int4 *>(planes)[plane * (FEED_FORWARD / 32) + i] = shared->words[plane][i];
    }
  }
}
