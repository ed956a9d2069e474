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

// GGUF blocks into the packed layout (packed.cuh), on the device, once at load.
//
// `in` holds rows first_in to first_in + rows - 1 of a matrix. Row r of the matrix goes to quad
// `first_quad + r / rows_a_quad` as its row `first_row + r % rows_a_quad`: 4 and 0 for a plain
// matrix; 2 and 0, 2 and 2 for gate and up, whose rows share quads. One thread a group of 32
// weights: grid ceil(rows * columns / 32 / 128), block 128.

#include "packed_formats.cuh"

// Where a thread's group goes.
struct Target {
  uint8_t *step;
  int half, lane;

  template <class T>
  __device__ __forceinline__ T &part(int plane) const {
    return reinterpret_cast<T *>(step + plane)[half * WARP_SIZE + lane];
  }

  // The low four bits of levels q.
  __device__ __forceinline__ void put_nibbles(const uint8_t (&q)[32]) const {
    uint8_t *const nibbles = step + (half * WARP_SIZE + lane) * 16;
    for (int i = 0; i < 16; ++i) nibbles[i] = (q[i] & 15) | (q[i + 16] & 15) << 4;
  }
  __device__ __forceinline__ void put_fifth(int plane, const uint8_t (&q)[32]) const {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= uint32_t(q[i] >> 4 & 1) << (8 * (i % 4) + i / 4);
    part<uint32_t>(plane) = bits;
  }
};

// Q4_K's and Q5_K's scales of a block, by the thread of its first group.
__device__ __forceinline__ void put_block_scales(const Target &to, int plane, half_t d,
                                                 half_t dmin, const uint8_t (&s)[12]) {
  uint32_t fields[4] = {uint32_t(d) | uint32_t(dmin) << 16, 0, 0, 0};
  for (int i = 0; i < 8; ++i) {
    const uint32_t scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    const uint32_t min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
    const uint64_t bits = uint64_t(scale | min << 6) << 12 * i % 32;
    fields[1 + 12 * i / 32] |= uint32_t(bits);
    if (12 * i / 32 < 2) fields[2 + 12 * i / 32] |= uint32_t(bits >> 32);
  }
  reinterpret_cast<uint4 *>(to.step + plane)[to.half * 4 + to.lane / 8] =
      make_uint4(fields[0], fields[1], fields[2], fields[3]);
}

__device__ __forceinline__ void pack(PackedQ4K, const Target &to, const Q4K<Bytes>::Block &block,
                                     int sub) {
  uint8_t q[32];
  for (int i = 0; i < 32; ++i) q[i] = block.qs[sub / 2 * 32 + i] >> 4 * (sub & 1) & 15;
  to.put_nibbles(q);
  if (sub == 0) put_block_scales(to, Nibbles::PLANE, block.d, block.dmin, block.scales);
}

__device__ __forceinline__ void pack(PackedQ5K, const Target &to, const Q5K::Block &block,
                                     int sub) {
  uint8_t q[32];
  for (int i = 0; i < 32; ++i) {
    q[i] = (block.qs[sub / 2 * 32 + i] >> 4 * (sub & 1) & 15) | (block.qh[i] >> sub & 1) << 4;
  }
  to.put_nibbles(q);
  to.put_fifth(PackedQ5K::FIFTH, q);
  if (sub == 0) put_block_scales(to, PackedQ5K::SCALES, block.d, block.dmin, block.scales);
}

__device__ __forceinline__ void pack(PackedQ6K, const Target &to, const Q6K::Block &block,
                                     int sub) {
  const int half = sub / 4, quarter = sub % 4;
  uint8_t q[32];
  for (int i = 0; i < 32; ++i) {
    const int low = block.ql[64 * half + quarter % 2 * 32 + i] >> quarter / 2 * 4 & 15;
    q[i] = low | (block.qh[32 * half + i] >> 2 * quarter & 3) << 4;
  }
  uint8_t *const rest = &to.part<uint8_t[8]>(PackedQ6K::REST)[0];
  for (int i = 0; i < 8; ++i) {
    const int at = i / 4 * 8 + i % 4;  // of the first of two words
    rest[i] = (q[at + 20] & 3) | (q[at + 16] & 3) << 2 | q[at] >> 4 << 4 | q[at + 4] >> 4 << 6;
  }
  for (int i = 16; i < 32; ++i) q[i] >>= 2;
  to.put_nibbles(q);
  to.part<uint16_t>(PackedQ6K::SCALES) =
      uint8_t(block.scales[2 * sub]) | uint8_t(block.scales[2 * sub + 1]) << 8;
  if (sub == 0) {
    reinterpret_cast<half_t *>(to.step + PackedQ6K::FACTORS)[to.half * 4 + to.lane / 8] = block.d;
  }
}

// Nibbles with `qh` for fifth bits, which are 0 where a format has none.
__device__ __forceinline__ void put_levels(const Target &to, int fifth_plane,
                                           const uint8_t (&qs)[16], uint32_t qh) {
  uint8_t q[32];
  for (int i = 0; i < 32; ++i) {
    q[i] = (qs[i % 16] >> i / 16 * 4 & 15) | (qh >> i & 1) << 4;
  }
  to.put_nibbles(q);
  if (fifth_plane) to.put_fifth(fifth_plane, q);
}

__device__ __forceinline__ void pack(PackedQ4_0, const Target &to, const Q4_0::Block &block,
                                     int) {
  put_levels(to, 0, block.qs, 0);
  to.part<half_t>(PackedQ4_0::SCALES) = block.d;
}

__device__ __forceinline__ void pack(PackedQ4_1, const Target &to, const Q4_1::Block &block,
                                     int) {
  put_levels(to, 0, block.qs, 0);
  to.part<uint32_t>(PackedQ4_1::SCALES) = uint32_t(block.d) | uint32_t(block.m) << 16;
}

__device__ __forceinline__ void pack(PackedQ5_0, const Target &to, const Q5_0::Block &block,
                                     int) {
  put_levels(to, PackedQ5_0::FIFTH, block.qs, Halves::load4(block.qh));
  to.part<half_t>(PackedQ5_0::SCALES) = block.d;
}

__device__ __forceinline__ void pack(PackedQ5_1, const Target &to, const Q5_1::Block &block,
                                     int) {
  put_levels(to, PackedQ5_1::FIFTH, block.qs, Halves::load4(block.qh));
  to.part<uint32_t>(PackedQ5_1::SCALES) = uint32_t(block.d) | uint32_t(block.m) << 16;
}

__device__ __forceinline__ void pack(PackedQ8_0, const Target &to, const Q8_0::Block &block,
                                     int) {
  uint8_t *const words = to.step + to.half * PackedQ8_0::HALF + to.lane * 16;
  for (int i = 0; i < 32; ++i) words[i / 16 * PackedQ8_0::LAST + i % 16] = block.qs[i];
  to.part<half_t>(PackedQ8_0::SCALES) = block.d;
}

template <class Packed, class File>
__device__ __forceinline__ void repack(uint8_t *__restrict__ out,
                                       const typename File::Block *__restrict__ in, int first_in,
                                       int rows, int columns, int first_quad, int rows_a_quad,
                                       int first_row) {
  constexpr int GROUPS_A_BLOCK = File::WEIGHTS / GROUP_COLUMNS;
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int groups = columns / GROUP_COLUMNS;
  if (thread >= int64_t(rows) * groups) return;
  const int row = first_in + int(thread / groups), group = int(thread % groups);
  const PackedPlace place(first_quad + row / rows_a_quad, first_row + row % rows_a_quad,
                          columns / STEP_COLUMNS, group);
  pack(Packed(), Target{out + place.step * Packed::BYTES, place.half, place.lane},
       in[thread / GROUPS_A_BLOCK], group % GROUPS_A_BLOCK);
}

#define REPACK(name, Packed, File)                                                          \
  extern "C" __global__ void repack_##name(                                                 \
      uint8_t *__restrict__ out, const File::Block *__restrict__ in, int32_t first_in,      \
      int32_t rows, int32_t columns, int32_t first_quad, int32_t rows_a_quad,               \
      int32_t first_row) {                                                                  \
    repack<Packed, File>(out, in, first_in, rows, columns, first_quad, rows_a_quad,         \
                         first_row);                                                        \
  }

FOR_EACH_PACKED_FORMAT(REPACK)
