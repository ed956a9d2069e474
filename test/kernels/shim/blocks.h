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

// Runs the blocks of a grid: one after the other, or all together, as a cooperative launch does.
//
// A warp operation completes when every lane of its mask has arrived at the same operation, a
// barrier when every thread of the block has; a lane that never arrives is reported as an error.
// Shared memory holds 0xff bytes (NaN) when a block starts.
//
// Blocks that run together take turns in a random order; a turn ends at a barrier of the block, or
// where all that is left to its threads is to yield: to wait for another block.

#pragma once

#include <sys/mman.h>

#include "fiber.h"

namespace shim {

constexpr int MOST_WAITS = 10000;

// Completes the warp operations at which every lane of the mask has arrived.
static bool complete_warp_operations(Fiber *warp, int lanes) {
  bool waiting = false;
  unsigned done = 0;
  const Fiber *stuck = nullptr;
  bool yielded = false;
  for (int lane = 0; lane < lanes; ++lane) {
    Fiber *fiber = warp + lane;
    yielded = yielded || fiber->state == State::yielded;
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
  if (waiting && done == 0 && !yielded) {
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

// Runs every thread of a block until it has finished, is at the barrier or yields.
static void take_turn(Block *block, bool backwards) {
  Machine *m = machine;
  const int warps = (m->threads + WARP - 1) / WARP;
  for (int i = 0; i < warps; ++i) {
    const int first = (backwards ? warps - 1 - i : i) * WARP;
    const int lanes = m->threads - first < WARP ? m->threads - first : WARP;
    run_warp(block->fibers + first, lanes, backwards);
    if (m->error[0]) return;
  }
  const Fiber *finished = nullptr, *yielded = nullptr, *at_barrier = nullptr;
  for (int i = 0; i < m->threads; ++i) {
    Fiber *fiber = block->fibers + i;
    if (fiber->state == State::finished) finished = fiber;
    if (fiber->state == State::barrier) at_barrier = fiber;
    if (fiber->state != State::yielded) continue;
    yielded = fiber;
    fiber->state = State::ready;
  }
  if (yielded) {
    if (++m->waits > MOST_WAITS) describe(yielded, "waits for what never comes");
    return;
  }
  m->waits = 0;
  if (at_barrier && finished) describe(finished, "a thread never arrives at __syncthreads");
  block->finished = !at_barrier;
  for (int i = 0; at_barrier && i < m->threads; ++i) block->fibers[i].state = State::ready;
}

extern "C" char __bss_start __attribute__((visibility("hidden")));
extern "C" char _end __attribute__((visibility("hidden")));

// Not memcpy or memset: the redzones between shared arrays are written too, unchecked.
#define SHIM_UNCHECKED                                \
  __attribute__((no_sanitize_address, no_sanitize_undefined, \
                 optimize("no-tree-loop-distribute-patterns")))
SHIM_UNCHECKED static void poison_static_shared() {
  for (char *byte = &__bss_start; byte < &_end; ++byte) *byte = '\xff';
}
SHIM_UNCHECKED static void save_static_shared(char *to) {
  for (char *byte = &__bss_start; byte < &_end; ++byte) *to++ = *byte;
}
SHIM_UNCHECKED static void restore_static_shared(const char *from) {
  for (char *byte = &__bss_start; byte < &_end; ++byte) *byte = *from++;
}

struct Launch {
  uint3 grid, block;
  size_t shared_bytes;
  unsigned order;
  bool together;
};

static void leave_block() {
  Block *const block = machine->running;
  if (block && block->static_shared) save_static_shared(block->static_shared);
  machine->running = nullptr;
}

static void enter_block(Block *block) {
  if (block == machine->running) return;
  leave_block();
  if (block->static_shared) restore_static_shared(block->static_shared);
  machine->running = block;
  block_idx = block->index;
}

static bool allocate(Block *block, const Launch &launch) {
  Machine *m = machine;
  if (!block->fibers) {
    block->fibers = static_cast<Fiber *>(calloc(MOST_THREADS, sizeof(Fiber)));
    void *stacks = mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < MOST_THREADS; ++i) {
      block->fibers[i].stack = static_cast<char *>(stacks) + i * STACK_BYTES;
      block->fibers[i].lane = i % WARP;
      block->fibers[i].received = block->received + i / WARP * WARP;
    }
  }
  for (int i = 0; i < m->threads; ++i) {
    const unsigned index = i;
    block->fibers[i].thread_idx = {index % block_dim.x, index / block_dim.x % block_dim.y,
                                   index / (block_dim.x * block_dim.y)};
  }
  block->dynamic_shared = nullptr;
  block->static_shared = launch.together ? static_cast<char *>(malloc(&_end - &__bss_start))
                                         : nullptr;
  if (launch.shared_bytes && posix_memalign(reinterpret_cast<void **>(&block->dynamic_shared), 16,
                                            launch.shared_bytes)) {
    report("no memory for %zu bytes of shared memory", launch.shared_bytes);
    return false;
  }
  return true;
}

static void release(Block *block) {
  free(block->dynamic_shared);
  free(block->static_shared);
#ifdef __SANITIZE_ADDRESS__
  // Fibers that a failed launch gave up have left their frames' redzones behind.
  if (machine->error[0]) {
    __asan_unpoison_memory_region(block->fibers[0].stack, MOST_THREADS * STACK_BYTES);
  }
#endif
}

static void start_block(Block *block, unsigned number, const Launch &launch) {
  leave_block();
  block->index = {number % grid_dim.x, number / grid_dim.x % grid_dim.y,
                  number / (grid_dim.x * grid_dim.y)};
  block->finished = false;
  poison_static_shared();
  if (block->dynamic_shared) memset(block->dynamic_shared, 0xff, launch.shared_bytes);
  for (int i = 0; i < machine->threads; ++i) start_fiber(block->fibers + i);
  machine->running = block;
  block_idx = block->index;
}

static unsigned next_random(unsigned &state) {
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

static void run_blocks(const Launch &launch, unsigned count, unsigned resident) {
  Machine *m = machine;
  unsigned random = launch.order;
  for (unsigned first = 0; first < count; first += resident) {
    for (unsigned i = 0; i < resident; ++i) start_block(m->blocks + i, first + i, launch);
    for (unsigned finished = 0; finished < resident && !m->error[0];) {
      Block *const block = m->blocks + (launch.together ? next_random(random) % resident : 0);
      if (block->finished) continue;
      enter_block(block);
      // One after the other, odd and even blocks run their warps in opposite orders, so that a
      // missing barrier shows.
      take_turn(block, (launch.together ? next_random(random) : first + launch.order) & 1);
      finished += block->finished;
    }
    if (m->error[0]) return;
  }
}

static void run_grid(const Launch &launch, void (*body)(void *), void *argument) {
  Machine *m = machine;
  m->threads = launch.block.x * launch.block.y * launch.block.z;
  if (m->threads < 1 || m->threads > MOST_THREADS) {
    report("a block of %d threads", m->threads);
    return;
  }
  m->body = body;
  m->body_argument = argument;
  m->running = nullptr;
  m->waits = 0;
  block_dim = launch.block;
  grid_dim = launch.grid;
  const unsigned count = grid_dim.x * grid_dim.y * grid_dim.z;
  const unsigned resident = launch.together ? count : 1;
  if (resident > MOST_RESIDENT) {
    report("%u blocks together, %d is the most", resident, MOST_RESIDENT);
    return;
  }
  unsigned allocated = 0;
  while (allocated < resident && allocate(m->blocks + allocated, launch)) ++allocated;
  if (allocated == resident) run_blocks(launch, count, resident);
  for (unsigned i = 0; i < allocated; ++i) release(m->blocks + i);
}

}  // namespace shim
