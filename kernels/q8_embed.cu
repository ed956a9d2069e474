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

// Q8_0 blocks of a file into planes, and rows of an embedding out of them.

#include "q8.cuh"

constexpr int BLOCK_HALVES = 17;  // a block of the file: an fp16 scale, 32 words

// words [blocks][32] and scales [blocks] from blocks of 34 bytes. A thread moves one half of a
// block: grid ceil(blocks * 17 / 128), 128 threads.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    split_q8(uint16_t *__restrict__ words, half_t *__restrict__ scales,
             const uint16_t *__restrict__ file, int64_t blocks) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= blocks * BLOCK_HALVES) return;
  const int64_t block = i / BLOCK_HALVES;
  const int part = int(i % BLOCK_HALVES);
  if (part == 0) {
    scales[block] = file[i];
  } else {
    words[block * (BLOCK_HALVES - 1) + part - 1] = file[i];
  }
}

// x (N, E) fp32: rows ids[0..N-1], which lie on the device, of planes (V, E). Grid
// (ceil(E / 128), N), 128 threads.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    embed_q8(float *__restrict__ x, const int32_t *__restrict__ ids,
             const int8_t *__restrict__ w, const half_t *__restrict__ d, int32_t e) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= e) return;
  const int64_t at = int64_t(ids[blockIdx.y]) * e + i;
  x[int64_t(blockIdx.y) * e + i] = float(w[at]) * half_to_float(d[at / GROUP]);
}
