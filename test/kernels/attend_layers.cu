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

// The attention of the persistent decode kernel alone: layers one after the other, each of which
// waits for the one before as it does in the kernel.

#include "decode_attention.cuh"

// qkv: QUERY + 2 * KEY of every layer (fp32). The heads' words are the result. Grid: blocks that
// run at once; block 384.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_layers(const Layer *layers, const float *qkv, int32_t position, const uint64_t *turns,
                  uint64_t *qkv_words, uint64_t *parts, uint64_t *weights, uint64_t *heads,
                  float eps, float score_scale, uint32_t first_tag) {
  DYNAMIC_SHARED(uint8_t, memory);
  Block block(memory, 0);
  if (threadIdx.x == 0) {
    block.shared->work.qkv = qkv_words;
    block.shared->work.parts = parts;
    block.shared->work.weights = weights;
    block.shared->work.heads = heads;
  }
  if (threadIdx.x < LAYERS) block.shared->layers[threadIdx.x] = layers[threadIdx.x];
  set_rotation(block.shared->rotation, turns, position);
  __syncthreads();
  const int active = active_parts(position);
  for (int layer = 0; layer < LAYERS; ++layer) {
    block.tag = first_tag + layer;
    if (layer > 0) {
      for (int i = threadIdx.x; i < QUERY / 2; i += THREADS) {
        while (!are_pairs_of(block.tag - 1, load_word(heads + i))) yield_block();
      }
      __syncthreads();
    }
    // Every group needs words of every block, which so has read the heads of the layer before.
    for (int i = threadIdx.x * gridDim.x + blockIdx.x; i < QUERY + 2 * KEY;
         i += gridDim.x * THREADS) {
      publish(qkv_words + i, qkv[layer * (QUERY + 2 * KEY) + i], block.tag);
    }
    __syncthreads();
    for (int unit = blockIdx.x; unit < GROUPS * active; unit += gridDim.x) {
      attend(block, block.shared->layers[layer], unit, active, position, eps, score_scale);
    }
  }
}

extern "C" __global__ void attend_shared_bytes(int32_t *bytes) {
  *bytes = RING_BYTES + int(sizeof(Shared));
}
