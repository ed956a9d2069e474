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

// Rotary position embedding.

#include "rope.cuh"

// Rotates each pair of q (tokens, heads, dim) and k (tokens, groups, dim), fp16, in place: pairs
// (i, i + dim/2), or (2i, 2i + 1) when `adjacent` is not 0. One thread a pair: grid
// (ceil((heads+groups)*dim/2 / 128), tokens), block 128.
//
// turns (dim/2): of each pair, see rope_angle.
extern "C" __global__ void rope(half_t *__restrict__ q, half_t *__restrict__ k,
                                const int32_t *__restrict__ positions,
                                const uint64_t *__restrict__ turns, int32_t heads, int32_t groups,
                                int32_t dim, int32_t adjacent) {
  const int half = dim / 2;
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= (heads + groups) * half) return;
  const int head = thread / half, pair = thread % half;
  const int token = blockIdx.y;
  half_t *const x = head < heads ? q + (int64_t(token) * heads + head) * dim
                                 : k + (int64_t(token) * groups + head - heads) * dim;
  const int first = adjacent ? 2 * pair : pair;
  const int second = adjacent ? 2 * pair + 1 : pair + half;

  float sine, cosine;
  rope_angle(positions[token], turns[pair], &sine, &cosine);

  const float a = half_to_float(x[first]), b = half_to_float(x[second]);
  x[first] = float_to_half(fmaf(a, cosine, -(b * sine)));
  x[second] = float_to_half(fmaf(a, sine, b * cosine));
}
