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

// Splits the fused projection q, k, v of a batch, y (tokens, (heads + 2 groups) * dim) fp32: each
// head goes where finish_head says, keys and values into their caches at positions that lie on
// the device. One warp a head: grid (ceil((heads + 2 groups) / 4), tokens), 128 threads. dim is
// at most 256.

#include "q8_heads.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    q8_heads(HEADS_PARAMETERS, const float *__restrict__ y) {
  __shared__ float rows[WARPS_PER_BLOCK][MAX_HEAD];
  const int warp = threadIdx.x / WARP_SIZE, token = blockIdx.y;
  const int head = blockIdx.x * WARPS_PER_BLOCK + warp, all = heads + 2 * groups;
  if (head >= all) return;
  for (int i = threadIdx.x % WARP_SIZE; i < dim; i += WARP_SIZE) {
    rows[warp][i] = y[(int64_t(token) * all + head) * dim + i];
  }
  finish_head(HEADS_ARGUMENTS, rows[warp], head, token, positions[token]);
}
