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

// Logits to probabilities.

#include "reduce.cuh"

// probabilities and logits (vocab), which may be the same. Three passes: the largest, the sum, the
// quotients. Grid 1, block 256.
extern "C" __global__ void softmax(float *probabilities, const float *logits, int32_t vocab) {
  __shared__ float partial[WARP_SIZE];
  float largest = __uint_as_float(0xff800000u);  // minus infinity
  for (int i = threadIdx.x; i < vocab; i += blockDim.x) largest = fmaxf(largest, logits[i]);
  largest = block_max(largest, partial);
  float total = 0.0f;
  for (int i = threadIdx.x; i < vocab; i += blockDim.x) total += expf(logits[i] - largest);
  total = block_sum(total, partial);
  for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
    probabilities[i] = expf(logits[i] - largest) / total;
  }
}
