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

// Kernels that test the shim itself: one for each thing that it must do or must catch.

#include "decode_exchange.cuh"

extern "C" __global__ void probe_reverse(float *__restrict__ y, const float *__restrict__ x,
                                         int32_t count) {
  DYNAMIC_SHARED(float, tile);
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) tile[threadIdx.x] = x[index];
  __syncthreads();
  const int mirrored = min(int(blockDim.x), count - int(blockIdx.x * blockDim.x)) - 1;
  if (index < count) y[index] = tile[mirrored - threadIdx.x];
}

extern "C" __global__ void probe_block_sum(float *__restrict__ y, const half_t *__restrict__ x) {
  __shared__ float partial[4];
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const float sum = warp_sum(half_to_float(x[index]));
  if (threadIdx.x % WARP_SIZE == 0) partial[threadIdx.x / WARP_SIZE] = sum;
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = (partial[0] + partial[1]) + (partial[2] + partial[3]);
}

extern "C" __global__ void probe_round(half_t *__restrict__ y, const float *__restrict__ x) {
  y[threadIdx.x] = float_to_half(x[threadIdx.x]);
}

extern "C" __global__ void probe_shuffles(int32_t *__restrict__ y) {
  const int lane = threadIdx.x % WARP_SIZE;
  y[threadIdx.x] = __shfl_sync(0xffffffffu, lane, 5);
  y[threadIdx.x + 32] = __shfl_up_sync(0xffffffffu, lane, 3);
  y[threadIdx.x + 64] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  y[threadIdx.x + 96] = __shfl_xor_sync(0xffffffffu, lane, 16, 32);
  y[threadIdx.x + 128] = int(__ballot_sync(0xffffffffu, lane % 3 == 0));
  if (lane < 16) y[threadIdx.x + 160] = __shfl_xor_sync(0x0000ffffu, lane, 1);
}

extern "C" __global__ void probe_uninitialized_shared(float *__restrict__ y) {
  __shared__ float never_written[32];
  DYNAMIC_SHARED(float, never_written_either);
  y[threadIdx.x] = never_written[threadIdx.x];
  y[threadIdx.x + 32] = never_written_either[threadIdx.x];
  never_written[threadIdx.x] = 0.0f;
  never_written_either[threadIdx.x] = 0.0f;
}

// Each thread reads what its neighbour in the next warp wrote, with no barrier between.
extern "C" __global__ void probe_missing_barrier(float *__restrict__ y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = float(threadIdx.x);
  y[blockIdx.x * 64 + threadIdx.x] = tile[(threadIdx.x + 32) % 64];
}

extern "C" __global__ void probe_divergent_barrier(float *__restrict__ y) {
  if (threadIdx.x < 40) return;
  __syncthreads();
  y[threadIdx.x] = 0.0f;
}

extern "C" __global__ void probe_divergent_shuffle(float *__restrict__ y) {
  if (threadIdx.x != 7) y[threadIdx.x] = warp_sum(1.0f);
}

extern "C" __global__ void probe_read(uint8_t *__restrict__ y, const uint8_t *__restrict__ x,
                                      int64_t offset) {
  if (threadIdx.x == 0) y[0] = x[offset];
}

extern "C" __global__ void probe_read_word(uint32_t *__restrict__ y,
                                           const uint8_t *__restrict__ x, int64_t offset) {
  if (threadIdx.x == 0) y[0] = *reinterpret_cast<const uint32_t *>(x + offset);
}

extern "C" __global__ void probe_shared_overflow(float *__restrict__ y, int32_t index) {
  __shared__ float tile[32];
  float *const alias = tile;
  alias[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = alias[index];
}

// Waits for a value in one lane, as `await` does in all lanes of a warp.
__device__ __forceinline__ float await_one(const uint64_t *slot, uint32_t tag) {
  uint64_t word = load_word(slot);
  while (!are_values_of(tag, word)) {
    yield_block();
    word = load_word(slot);
  }
  return value_of(word);
}

// Each block waits for the one before it, adds to its sum and passes it on.
extern "C" __global__ void probe_pass_on(uint64_t *__restrict__ slots, float *__restrict__ y,
                                         uint32_t tag) {
  __shared__ float sum;
  DYNAMIC_SHARED(float, added);
  if (threadIdx.x == 0) {
    sum = blockIdx.x > 0 ? await_one(slots + blockIdx.x - 1, tag) : 0.0f;
  }
  added[threadIdx.x] = float(blockIdx.x + 1);
  __syncthreads();
  if (threadIdx.x + 1 != blockDim.x) return;
  y[blockIdx.x] = sum + added[0];
  publish(slots + blockIdx.x, y[blockIdx.x], tag);
}

// Lanes that wait while others of their warp are at a shuffle.
extern "C" __global__ void probe_wait_in_a_warp(uint64_t *__restrict__ slots,
                                                float *__restrict__ y, uint32_t tag) {
  float value = 0.0f;
  const int other = (blockIdx.x + 1) % gridDim.x;
  if (threadIdx.x == blockIdx.x) publish(slots + blockIdx.x, float(blockIdx.x + 1), tag);
  if (threadIdx.x % 7 == 3) value = await_one(slots + other, tag);
  y[blockIdx.x * blockDim.x + threadIdx.x] = warp_sum(value);
}

extern "C" __global__ void probe_wait_for_each_other(uint64_t *__restrict__ slots, uint32_t tag) {
  float value[1];
  await(value, slots + (blockIdx.x + 1) % gridDim.x, 1, tag);
  __syncthreads();
  publish(slots + blockIdx.x, value[0], tag);
}

extern "C" __global__ void probe_order(int32_t *__restrict__ order, int32_t *__restrict__ count) {
  if (threadIdx.x == 0) order[atomicAdd(count, 1)] = blockIdx.x;
}
