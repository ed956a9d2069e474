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

// The input of a next-token-prediction head, out (N, 2E) fp32: the norm of the next token's
// embedding, then the norm of the hidden state, each RMSNorm with its own weight. Grid (N, 2),
// block any number of warps.

#include "reduce.cuh"

extern "C" __global__ void mtp_concat(float *__restrict__ out, const float *__restrict__ embedding,
                                      const float *__restrict__ hidden,
                                      const float *__restrict__ embedding_weight,
                                      const float *__restrict__ hidden_weight, int32_t e,
                                      float eps) {
  __shared__ float partial[WARP_SIZE];
  const bool second = blockIdx.y == 1;
  const float *const x = (second ? hidden : embedding) + int64_t(blockIdx.x) * e;
  const float *const weight = second ? hidden_weight : embedding_weight;
  out += int64_t(blockIdx.x) * 2 * e + (second ? e : 0);
  float squares = 0.0f;
  for (int i = threadIdx.x; i < e; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
  const float factor = 1.0f / sqrtf(block_sum(squares, partial) / float(e) + eps);
  for (int i = threadIdx.x; i < e; i += blockDim.x) out[i] = x[i] * factor * weight[i];
}
