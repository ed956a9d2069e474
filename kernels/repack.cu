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

// GGUF blocks of Q4_K and Q6_K into the packed layout (packed.cuh), on the device, once at load.
//
// A row goes to quad `first_quad + row / rows_a_quad` as its row `first_row + row % rows_a_quad`:
// 4 and 0 for a plain matrix; 2 and 0, 2 and 2 for gate and up, whose rows share quads. One
// thread a sub-block of 32 weights: grid ceil(rows * columns / 32 / 128), block 128.

#include "blocks.cuh"
#include "packed.cuh"

// Writes 32 levels q: nibbles into words, and where `upper` is given, the two bits above.
__device__ __forceinline__ void pack_levels(uint8_t *nibbles, uint8_t *upper,
                                            const uint8_t (&q)[32]) {
  for (int i = 0; i < 16; ++i) nibbles[i] = (q[i] & 15) | (q[i + 16] & 15) << 4;
  if (!upper) return;
  for (int i = 0; i < 8; ++i) {
    const int at = i / 4 * 8 + i % 4;  // of the first of two words
    upper[i] = q[at] >> 4 | q[at + 16] >> 4 << 2 | q[at + 4] >> 4 << 4 | q[at + 20] >> 4 << 6;
  }
}

struct Q4Packer {
  typedef Q4K<Bytes>::Block Block;

  static __device__ void pack(uint8_t *step, const PackedPlace &place, const Block &block,
                              int sub) {
    uint8_t q[32];
    for (int i = 0; i < 32; ++i) q[i] = block.qs[sub / 2 * 32 + i] >> 4 * (sub & 1) & 15;
    pack_levels(step + place.half * 512 + place.lane * 16, nullptr, q);
    if (sub != 0) return;
    uint32_t fields[4] = {uint32_t(block.d) | uint32_t(block.dmin) << 16, 0, 0, 0};
    for (int i = 0; i < 8; ++i) {
      const uint8_t *s = block.scales;
      const uint32_t scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
      const uint32_t min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
      const uint64_t bits = uint64_t(scale | min << 6) << 12 * i % 32;
      fields[1 + 12 * i / 32] |= uint32_t(bits);
      if (12 * i / 32 < 2) fields[2 + 12 * i / 32] |= uint32_t(bits >> 32);
    }
    *reinterpret_cast<uint4 *>(step + 1024 + place.scale * 16) =
        make_uint4(fields[0], fields[1], fields[2], fields[3]);
  }
};

struct Q6Packer {
  typedef Q6K::Block Block;

  static __device__ void pack(uint8_t *step, const PackedPlace &place, const Block &block,
                              int sub) {
    const int half = sub / 4, quarter = sub % 4;
    uint8_t q[32];
    for (int i = 0; i < 32; ++i) {
      const int low = block.ql[64 * half + quarter % 2 * 32 + i] >> quarter / 2 * 4 & 15;
      q[i] = low | (block.qh[32 * half + i] >> 2 * quarter & 3) << 4;
    }
    pack_levels(step + place.half * 512 + place.lane * 16,
                step + PackedQ6K::UPPER + place.half * 256 + place.lane * 8, q);
    uint8_t *scales = step + PackedQ6K::SCALES + place.scale * 16 + sub * 2;
    scales[0] = uint8_t(block.scales[2 * sub]);
    scales[1] = uint8_t(block.scales[2 * sub + 1]);
    if (sub == 0) {
      *reinterpret_cast<half_t *>(step + PackedQ6K::FACTORS + place.scale * 2) = block.d;
    }
  }
};

template <class Packer, class Packed>
__device__ __forceinline__ void repack(uint8_t *__restrict__ out,
                                       const typename Packer::Block *__restrict__ in, int rows,
                                       int columns, int first_quad, int rows_a_quad,
                                       int first_row) {
  const int blocks = columns / 256;
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t block = thread / 8;
  if (block >= int64_t(rows) * blocks) return;
  const int row = int(block / blocks), sub = int(thread % 8);
  const PackedPlace place(first_quad + row / rows_a_quad, first_row + row % rows_a_quad,
                          columns / STEP_COLUMNS, int(block % blocks), sub);
  Packer::pack(out + place.step * Packed::BYTES, place, in[block], sub);
}

extern "C" __global__ void repack_q4k(uint8_t *__restrict__ out,
                                      const Q4K<Bytes>::Block *__restrict__ in, int32_t rows,
                                      int32_t columns, int32_t first_quad, int32_t rows_a_quad,
                                      int32_t first_row) {
  repack<Q4Packer, PackedQ4K>(out, in, rows, columns, first_quad, rows_a_quad, first_row);
}

extern "C" __global__ void repack_q6k(uint8_t *__restrict__ out,
                                      const Q6K::Block *__restrict__ in, int32_t rows,
                                      int32_t columns, int32_t first_quad, int32_t rows_a_quad,
                                      int32_t first_row) {
  repack<Q6Packer, PackedQ6K>(out, in, rows, columns, first_quad, rows_a_quad, first_row);
}
