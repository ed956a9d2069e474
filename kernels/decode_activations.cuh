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

// Activations of the persistent decode kernel: every block quantizes those of a stage for itself,
// into one or two int8 words an activation and a unit for each 32.

#pragma once

#include "decode_block.cuh"

// Quantizes x (K) or its norm for this block: units of a 127th of the largest of 32.
template <int K, bool NORM>
__device__ __forceinline__ void quantize(Shared *shared, const float *x, const float *weight,
                                         float eps) {
  constexpr int FOURS = K / 4, TURNS = (FOURS + THREADS - 1) / THREADS;
  const int lane = threadIdx.x % WARP_SIZE;
  float4 v[TURNS], w[TURNS];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < TURNS; ++i) {
    const int four = i * THREADS + threadIdx.x;
    v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (four < FOURS) {
      v[i] = __ldcg(reinterpret_cast<const float4 *>(x) + four);
      if (NORM) w[i] = reinterpret_cast<const float4 *>(weight)[four];  // now, not after the wait
    }
    squares = fmaf(v[i].x, v[i].x, squares);
    squares = fmaf(v[i].y, v[i].y, squares);
    squares = fmaf(v[i].z, v[i].z, squares);
    squares = fmaf(v[i].w, v[i].w, squares);
  }
  float norm = 1.0f;
  if (NORM) {
    squares = warp_sum(squares);
    if (lane == 0) shared->partial[threadIdx.x / WARP_SIZE] = squares;
    __syncthreads();
    norm = rsqrtf(warp_sum(lane < WARPS ? shared->partial[lane] : 0.0f) * (1.0f / K) + eps);
  }
#pragma unroll
  for (int i = 0; i < TURNS; ++i) {
    const int four = i * THREADS + threadIdx.x;
    if (four >= FOURS) break;  // whole warps: K is a multiple of 512
    float a[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    if (NORM) {
      a[0] *= norm * w[i].x;
      a[1] *= norm * w[i].y;
      a[2] *= norm * w[i].z;
      a[3] *= norm * w[i].w;
    }
    float largest = fmaxf(fmaxf(fabsf(a[0]), fabsf(a[1])), fmaxf(fabsf(a[2]), fabsf(a[3])));
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, lanes));
    }
    const float inverse = largest > 0.0f ? __fdividef(127.0f, largest) : 0.0f;
    uint32_t high = 0, low = 0;
    int sum = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float units = a[k] * inverse;
      const int first = __float2int_rn(units);
      high |= uint32_t(first & 255) << 8 * k;
      sum += first;
      if (WORDS == 2) {
        const int second = __float2int_rn((units - float(first)) * 127.0f);
        low |= uint32_t(second & 255) << 8 * k;
        sum += first * 126 + second;
      }
    }
    sum += __shfl_xor_sync(EVERY_LANE, sum, 1);
    sum += __shfl_xor_sync(EVERY_LANE, sum, 2);
    const int other = __shfl_xor_sync(EVERY_LANE, sum, 4);
    const int sub = four / 8, word = four % 8;
    int *const first_plane = reinterpret_cast<int *>(shared->words[word / 4 * WORDS] + sub);
    first_plane[word % 4] = int(high);
    if (WORDS == 2) {
      reinterpret_cast<int *>(shared->words[word / 4 * WORDS + 1] + sub)[word % 4] = int(low);
    }
    if (word == 0) {
      const float unit = largest * (1.0f / 127.0f) * (WORDS == 2 ? 1.0f / 127.0f : 1.0f);
      shared->scales[sub] = {unit, unit * float(sum + other), sum, other};
    }
  }
  __syncthreads();
}
