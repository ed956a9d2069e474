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

// Runs kernels of one shared library in a process of its own, so that a sanitizer's abort ends
// the worker and not the tests. Requests come over stdin, replies go to stdout, the sanitizer's
// report to stderr. Every buffer is an allocation of exactly its size: one byte past its end is
// found.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

namespace {

struct Request {
  char kernel[64];
  uint32_t grid[3], block[3];
  uint64_t shared_bytes;
  uint32_t order, together;
  uint64_t count;
};

enum Kind : uint32_t { scalar, input, output, alias };

struct Argument {
  uint32_t kind, alias_of;
  uint64_t bytes;
};

using LaunchFunction = int (*)(const char *, const unsigned *, const unsigned *, size_t, unsigned,
                               int, int, void **, const size_t *, char *, size_t);

bool read_all(void *data, size_t bytes) {
  char *next = static_cast<char *>(data);
  while (bytes) {
    const ssize_t count = read(STDIN_FILENO, next, bytes);
    if (count <= 0) return false;
    next += count;
    bytes -= count;
  }
  return true;
}

void write_all(int file, const void *data, size_t bytes) {
  const char *next = static_cast<const char *>(data);
  while (bytes) {
    const ssize_t count = write(file, next, bytes);
    if (count <= 0) exit(3);
    next += count;
    bytes -= count;
  }
}

void *allocate(size_t bytes) {
  void *buffer = nullptr;
  if (posix_memalign(&buffer, 32, bytes)) exit(4);  // a GGUF file aligns its tensors to 32
  return buffer;
}

}  // namespace

int main(int, char **argv) {
  // What a kernel or a library prints must not mix with the replies.
  const int replies = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  const auto launch = reinterpret_cast<LaunchFunction>(dlsym(library, "shim_launch"));
  Request request;
  while (read_all(&request, sizeof request)) {
    std::vector<Argument> arguments(request.count);
    std::vector<void *> buffers(request.count), args(request.count);
    std::vector<size_t> sizes(request.count, sizeof(void *));
    for (uint32_t i = 0; i < request.count; ++i) {
      if (!read_all(&arguments[i], sizeof(Argument))) return 0;
      if (arguments[i].kind == alias) {
        args[i] = &buffers[arguments[i].alias_of];
        continue;
      }
      buffers[i] = allocate(arguments[i].bytes);
      if (!read_all(buffers[i], arguments[i].bytes)) return 0;
      args[i] = arguments[i].kind == scalar ? buffers[i] : &buffers[i];
      if (arguments[i].kind == scalar) sizes[i] = arguments[i].bytes;
    }
    char error[512] = "";
    const int32_t status =
        launch(request.kernel, request.grid, request.block, request.shared_bytes, request.order,
               static_cast<int>(request.together), static_cast<int>(request.count), args.data(),
               sizes.data(), error, sizeof error);
    write_all(replies, &status, sizeof status);
    if (status) write_all(replies, error, sizeof error);
    for (uint32_t i = 0; i < request.count; ++i) {
      if (!status && arguments[i].kind == output) {
        write_all(replies, buffers[i], arguments[i].bytes);
      }
      free(buffers[i]);
    }
  }
  return 0;
}
