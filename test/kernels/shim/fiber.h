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

// The threads of a launch as fibers, which switch where they wait and nowhere else.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

struct uint3 {
  unsigned x, y, z;
};

namespace shim {

constexpr int WARP = 32;
constexpr int MOST_THREADS = 1024;  // of a block
constexpr int MOST_RESIDENT = 48;   // blocks that run together
constexpr size_t STACK_BYTES = 256 * 1024;  // the sanitizer's report runs on it too

enum class State { ready, warp_operation, barrier, yielded, finished };

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

struct Block {
  Fiber *fibers;
  uint64_t received[MOST_THREADS];  // a warp's lanes next to each other
  uint3 index;
  char *dynamic_shared;
  char *static_shared;  // while another block runs
  bool finished;
};

struct Machine {
  Block blocks[MOST_RESIDENT];
  Block *running;
  int threads;  // of a block
  int waits;    // times that a block only waited since one got on
  Fiber scheduler;
  const void *scheduler_stack;
  size_t scheduler_stack_bytes;
  void (*body)(void *);
  void *body_argument;
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

}  // namespace shim
