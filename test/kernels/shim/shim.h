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
// compile it as C++ and run it, one block after the other, each thread of a block a fiber.
//
// Fibers switch at barriers and warp operations only. A warp operation completes when every
// lane of its mask has arrived at the same operation, a barrier when every thread of the block
// has; a lane that never arrives is reported as an error. Shared memory holds 0xff bytes (NaN)
// when a block starts. Odd and even blocks run their warps in opposite orders, so that a missing
// barrier shows.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include <sys/mman.h>
#ifdef __x86_64__
#include <immintrin.h>
#else
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef SHIM_LIST_KERNELS
#define __global__
#endif
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint3 {
  unsigned x, y, z;
};

namespace shim {

constexpr int WARP = 32;
constexpr size_t STACK_BYTES = 256 * 1024;  // the sanitizer's report runs on it too

enum class State { ready, warp_operation, barrier, finished };

struct Fiber {
  State state;
  unsigned mask;       // of the warp operation that the lane waits at
  int operation;       // which one it is
  uint64_t posted;     // the lane's contribution to it
  uint64_t *received;  // what the lanes of the mask had posted
  uint3 thread_idx;
  int lane;
  char *stack;
  void *fake_stack;
#ifdef __x86_64__
  void *stack_pointer;
#else
  ucontext_t context;
#endif
};

struct Machine {
  Fiber *fibers;
  uint64_t received[1024];  // a warp's lanes next to each other
  int threads;
  Fiber scheduler;
  const void *scheduler_stack;
  size_t scheduler_stack_bytes;
  void (*body)(void *);
  void *body_argument;
  char *dynamic_shared;
  char error[512];
};

// Kept out of .bss, which holds the kernels' shared memory and is overwritten at block starts.
#define SHIM_STATE __attribute__((section(".data")))
static Machine *machine SHIM_STATE = nullptr;
static Fiber *current SHIM_STATE = nullptr;
static uint3 block_idx SHIM_STATE = {0, 0, 0};
static uint3 block_dim SHIM_STATE = {0, 0, 0};
static uint3 grid_dim SHIM_STATE = {0, 0, 0};

#ifdef __x86_64__
extern "C" void shim_switch(void **save, void *load);
asm(R"(
  .text
  .local shim_switch
  .type shim_switch, @function
shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size shim_switch, .-shim_switch
)");
static inline void switch_context(Fiber *from, Fiber *to) {
  shim_switch(&from->stack_pointer, to->stack_pointer);
}
#else
static inline void switch_context(Fiber *from, Fiber *to) {
  swapcontext(&from->context, &to->context);
}
#endif

// The sanitizer follows stack switches through these two.
static inline void leave(void **fake_stack, const void *stack, size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#else
  (void)fake_stack, (void)stack, (void)bytes;
#endif
}

static inline void arrive(void *fake_stack, const void **from, size_t *bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, from, bytes);
#else
  (void)fake_stack, (void)from, (void)bytes;
#endif
}

static void fiber_main() {
  Machine *m = machine;
  arrive(nullptr, &m->scheduler_stack, &m->scheduler_stack_bytes);
  m->body(m->body_argument);
  Fiber *self = current;
  self->state = State::finished;
  leave(nullptr, m->scheduler_stack, m->scheduler_stack_bytes);
  switch_context(self, &m->scheduler);
  abort();
}

static void start_fiber(Fiber *fiber) {
#ifdef __x86_64__
  // Six callee-saved registers, the entry point at a multiple of 16, and no return address.
  void **entry = reinterpret_cast<void **>(fiber->stack + STACK_BYTES) - 2;
  memset(entry - 6, 0, 8 * sizeof(void *));
  entry[0] = reinterpret_cast<void *>(fiber_main);
  fiber->stack_pointer = entry - 6;
#else
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = STACK_BYTES;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
#endif
  fiber->state = State::ready;
}

static inline void resume(Fiber *fiber) {
  Machine *m = machine;
  current = fiber;
  leave(&m->scheduler.fake_stack, fiber->stack, STACK_BYTES);
  switch_context(&m->scheduler, fiber);
  arrive(m->scheduler.fake_stack, nullptr, nullptr);
}

static __attribute__((noinline)) void wait(State state) {
  Machine *m = machine;
  Fiber *self = current;
  self->state = state;
  leave(&self->fake_stack, m->scheduler_stack, m->scheduler_stack_bytes);
  switch_context(self, &m->scheduler);
  arrive(self->fake_stack, nullptr, nullptr);
}

template <typename... T>
static void report(const char *format, T... values) {
  if (machine->error[0] == 0) snprintf(machine->error, sizeof machine->error, format, values...);
}

static void describe(const Fiber *fiber, const char *what) {
  report("%s: thread (%u, %u, %u) of block (%u, %u, %u)", what, fiber->thread_idx.x,
         fiber->thread_idx.y, fiber->thread_idx.z, block_idx.x, block_idx.y, block_idx.z);
}

// Completes the warp operations at which every lane of the mask has arrived.
static bool complete_warp_operations(Fiber *warp, int lanes) {
  bool waiting = false;
  unsigned done = 0;
  const Fiber *stuck = nullptr;
  for (int lane = 0; lane < lanes; ++lane) {
    Fiber *fiber = warp + lane;
    if (fiber->state != State::warp_operation) continue;
    waiting = true;
    if (done >> lane & 1) continue;
    const unsigned exists = lanes == WARP ? ~0u : (1u << lanes) - 1;
    const unsigned mask = fiber->mask & exists;
    bool complete = mask >> lane & 1;
    for (int other = 0; other < lanes; ++other) {
      if (!(mask >> other & 1)) continue;
      complete = complete && warp[other].state == State::warp_operation &&
                 warp[other].mask == fiber->mask && warp[other].operation == fiber->operation;
    }
    if (!complete) {
      stuck = fiber;
      continue;
    }
    for (int other = 0; other < lanes; ++other) {
      if (mask >> other & 1) warp->received[other] = warp[other].posted;
    }
    done |= mask;
  }
  for (int lane = 0; lane < lanes; ++lane) {
    if (done >> lane & 1) warp[lane].state = State::ready;
  }
  if (waiting && done == 0) {
    describe(stuck, "a lane of the mask never arrives at a warp operation");
  }
  return done != 0;
}

static void run_warp(Fiber *warp, int lanes, bool backwards) {
  do {
    for (int i = 0; i < lanes; ++i) {
      Fiber *fiber = warp + (backwards ? lanes - 1 - i : i);
      if (fiber->state == State::ready) resume(fiber);
      if (machine->error[0]) return;
    }
  } while (complete_warp_operations(warp, lanes));
}

static void run_block(bool backwards) {
  Machine *m = machine;
  for (int i = 0; i < m->threads; ++i) start_fiber(m->fibers + i);
  const int warps = (m->threads + WARP - 1) / WARP;
  for (;;) {
    for (int i = 0; i < warps; ++i) {
      const int first = (backwards ? warps - 1 - i : i) * WARP;
      const int lanes = m->threads - first < WARP ? m->threads - first : WARP;
      run_warp(m->fibers + first, lanes, backwards);
      if (m->error[0]) return;
    }
    int finished = 0;
    for (int i = 0; i < m->threads; ++i) finished += m->fibers[i].state == State::finished;
    if (finished == m->threads) return;
    if (finished) {
      for (int i = 0; i < m->threads; ++i) {
        if (m->fibers[i].state == State::finished) {
          describe(m->fibers + i, "a thread never arrives at __syncthreads");
        }
      }
      return;
    }
    for (int i = 0; i < m->threads; ++i) m->fibers[i].state = State::ready;
  }
}

extern "C" char __bss_start __attribute__((visibility("hidden")));
extern "C" char _end __attribute__((visibility("hidden")));

// Not memset: the redzones between shared arrays are overwritten too, unchecked.
__attribute__((no_sanitize_address, no_sanitize_undefined,
               optimize("no-tree-loop-distribute-patterns")))
static void poison_static_shared() {
  for (char *byte = &__bss_start; byte < &_end; ++byte) *byte = '\xff';
}

struct Launch {
  uint3 grid, block;
  size_t shared_bytes;
  int order;
};

static void run_grid(const Launch &launch, void (*body)(void *), void *argument) {
  if (!machine) machine = static_cast<Machine *>(calloc(1, sizeof(Machine)));
  Machine *m = machine;
  m->error[0] = 0;
  const int threads = launch.block.x * launch.block.y * launch.block.z;
  if (threads < 1 || threads > 1024) {
    report("a block of %d threads", threads);
    return;
  }
  if (!m->fibers) {
    m->fibers = static_cast<Fiber *>(calloc(1024, sizeof(Fiber)));
    void *stacks = mmap(nullptr, 1024 * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < 1024; ++i) {
      m->fibers[i].stack = static_cast<char *>(stacks) + i * STACK_BYTES;
      m->fibers[i].lane = i % WARP;
      m->fibers[i].received = m->received + i / WARP * WARP;
    }
  }
  m->threads = threads;
  m->body = body;
  m->body_argument = argument;
  block_dim = launch.block;
  grid_dim = launch.grid;
  for (int i = 0; i < threads; ++i) {
    const unsigned index = i;
    m->fibers[i].thread_idx = {index % block_dim.x, index / block_dim.x % block_dim.y,
                               index / (block_dim.x * block_dim.y)};
  }
  m->dynamic_shared = nullptr;
  if (launch.shared_bytes && posix_memalign(reinterpret_cast<void **>(&m->dynamic_shared), 16,
                                            launch.shared_bytes)) {
    report("no memory for %zu bytes of shared memory", launch.shared_bytes);
    return;
  }
  int64_t blocks = 0;
  for (unsigned z = 0; z < grid_dim.z; ++z) {
    for (unsigned y = 0; y < grid_dim.y; ++y) {
      for (unsigned x = 0; x < grid_dim.x && !m->error[0]; ++x, ++blocks) {
        block_idx = {x, y, z};
        poison_static_shared();
        if (m->dynamic_shared) memset(m->dynamic_shared, 0xff, launch.shared_bytes);
        run_block((blocks + launch.order) & 1);
      }
    }
  }
  free(m->dynamic_shared);
#ifdef __SANITIZE_ADDRESS__
  // Fibers that a failed launch gave up have left their frames' redzones behind.
  if (m->error[0]) __asan_unpoison_memory_region(m->fibers[0].stack, 1024 * STACK_BYTES);
#endif
}

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

// Warp operations.

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
      int order, int count, void **args, const size_t *sizes, char *error, size_t error_bytes) { \
    static const shim::KernelEntry entries[] = {kernels};                                      \
    const shim::Launch launch = {{grid[0], grid[1], grid[2]},                                  \
                                 {block[0], block[1], block[2]},                               \
                                 shared_bytes,                                                 \
                                 order};                                                       \
    for (const shim::KernelEntry &entry : entries) {                                           \
      if (strcmp(entry.name, name) != 0) continue;                                             \
      entry.run(launch, count, args, sizes);                                                   \
      snprintf(error, error_bytes, "%s", shim::machine->error);                                \
      return shim::machine->error[0] != 0;                                                     \
    }                                                                                          \
    snprintf(error, error_bytes, "no kernel of this name: %s", name);                          \
    return 1;                                                                                  \
  }
