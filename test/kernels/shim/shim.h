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

// CUDA's execution model on the host: included before a kernel file, this header lets g++
// compile it as C++ and run it, each thread a fiber. fiber.h has these, blocks.h says in which
// order they run, builtins.h has the functions that kernels call.

#pragma once

#include <cmath>
#include <tuple>
#include <utility>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "blocks.h"

#ifndef SHIM_LIST_KERNELS
#define __global__
#endif
#define __device__
#define __host__
#ifdef __SANITIZE_ADDRESS__
#define __forceinline__ inline  // checked code is long: inlined everywhere it compiles for minutes
#else
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

namespace shim {

template <typename T>
static bool read_argument(T &value, void **args, const size_t *sizes, int index) {
  if (sizes[index] != sizeof(T)) {
    report("argument %d has %zu bytes, the kernel takes %zu", index, sizes[index], sizeof(T));
    return false;
  }
  memcpy(&value, args[index], sizeof(T));
  return true;
}

template <auto Kernel>
struct Entry;

template <typename... P, void (*Kernel)(P...)>
struct Entry<Kernel> {
  using Arguments = std::tuple<P...>;

  template <size_t... I>
  static bool read(Arguments &values, void **args, const size_t *sizes,
                   std::index_sequence<I...>) {
    return (read_argument(std::get<I>(values), args, sizes, I) && ...);
  }

  static void body(void *values) { std::apply(Kernel, *static_cast<Arguments *>(values)); }

  static void run(const Launch &launch, int count, void **args, const size_t *sizes) {
    if (!machine) machine = static_cast<Machine *>(calloc(1, sizeof(Machine)));
    machine->error[0] = 0;
    Arguments values;
    if (count != sizeof...(P)) {
      report("%d arguments, the kernel takes %d", count, static_cast<int>(sizeof...(P)));
    } else if (read(values, args, sizes, std::index_sequence_for<P...>())) {
      run_grid(launch, body, &values);
    }
  }
};

struct KernelEntry {
  const char *name;
  void (*run)(const Launch &, int, void **, const size_t *);
};

// What threads wait for.

// A thread that polls what another block writes lets others run.
static inline void yield() { wait(State::yielded); }

static inline void warp_operation(int operation, unsigned mask, uint64_t posted) {
  Fiber *self = current;
  self->operation = operation;
  self->mask = mask;
  self->posted = posted;
  wait(State::warp_operation);
}

template <typename T>
static T exchange(int operation, unsigned mask, T value, int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  uint64_t posted = 0;
  memcpy(&posted, &value, sizeof(T));
  warp_operation(operation, mask, posted);
  if (!(mask >> source & 1)) {
    describe(current, "a shuffle reads a lane outside its mask");
    wait(State::warp_operation);
  }
  memcpy(&value, &current->received[source], sizeof(T));
  return value;
}

enum Operation { op_syncwarp, op_ballot, op_shfl, op_shfl_xor, op_shfl_down, op_shfl_up };

static inline unsigned ballot(unsigned mask, bool predicate) {
  warp_operation(op_ballot, mask, predicate);
  unsigned bits = 0;
  for (int lane = 0; lane < WARP; ++lane) {
    if (mask >> lane & 1) bits |= unsigned(current->received[lane] & 1) << lane;
  }
  return bits;
}

}  // namespace shim

#define threadIdx (shim::current->thread_idx)
#define blockIdx (shim::block_idx)
#define blockDim (shim::block_dim)
#define gridDim (shim::grid_dim)
constexpr int warpSize = 32;

static inline void __syncthreads() { shim::wait(shim::State::barrier); }
static inline void __syncwarp(unsigned mask = ~0u) {
  shim::warp_operation(shim::op_syncwarp, mask, 0);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return shim::ballot(mask, predicate);
}
static inline int __any_sync(unsigned mask, int predicate) {
  return shim::ballot(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
  return shim::ballot(mask, predicate) == mask;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int base = shim::current->lane & ~(width - 1);
  return shim::exchange(shim::op_shfl, mask, value, base + (source & (width - 1)));
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int lane = shim::current->lane, last = lane | (width - 1);
  return shim::exchange(shim::op_shfl_xor, mask, value,
                        (lane ^ lanes) <= last ? lane ^ lanes : lane);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = shim::current->lane, last = lane | (width - 1);
  const int source = lane + int(delta);
  return shim::exchange(shim::op_shfl_down, mask, value, source <= last ? source : lane);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = shim::current->lane, first = lane & ~(width - 1);
  const int source = lane - int(delta);
  return shim::exchange(shim::op_shfl_up, mask, value, source >= first ? source : lane);
}

#include "builtins.h"

// Ends a translation unit: the kernels it offers to the caller.
#define SHIM_KERNEL(name) {#name, shim::Entry<&name>::run},
#define SHIM_EXPORT(kernels)                                                                   \
  extern "C" __attribute__((visibility("default"))) int shim_launch(                           \
      const char *name, const unsigned *grid, const unsigned *block, size_t shared_bytes,      \
      unsigned order, int together, int count, void **args, const size_t *sizes, char *error,  \
      size_t error_bytes) {                                                                    \
    static const shim::KernelEntry entries[] = {kernels};                                      \
    const shim::Launch launch = {{grid[0], grid[1], grid[2]},                                  \
                                 {block[0], block[1], block[2]},                               \
                                 shared_bytes,                                                 \
                                 order,                                                        \
                                 together != 0};                                               \
    for (const shim::KernelEntry &entry : entries) {                                           \
      if (strcmp(entry.name, name) != 0) continue;                                             \
      entry.run(launch, count, args, sizes);                                                   \
      snprintf(error, error_bytes, "%s", shim::machine->error);                                \
      return shim::machine->error[0] != 0;                                                     \
    }                                                                                          \
    snprintf(error, error_bytes, "no kernel of this name: %s", name);                          \
    return 1;                                                                                  \
  }
