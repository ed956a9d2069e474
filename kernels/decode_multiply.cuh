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

// Products of the persistent decode kernel: a block's quads of a stage, their steps divided evenly
// over its warps. Sums of quads that warps share are added in a fixed order.

#pragma once

#include "decode_block.cuh"

// Rows `row` and `row + 2` of a quad have their sums. The other two rows are those of the lane
// that is `apart` lanes away, where all lanes come with `ends` set for one a row.
__device__ __forceinline__ void finish(Block &block, int kind, const Share &share, int quad,
                                       int row, float a, float b, int apart, bool ends) {
  const int at = (share.first + quad) * QUAD + row;
  const Work &work = block.work;
  a *= block.norm;
  b *= block.norm;
  if (kind == QUERY_KEY || kind == VALUE) {
    uint64_t *const out = work.qkv + (kind == VALUE ? QUERY + KEY : 0) + at;
    if (!ends) return;
    publish(out, a, block.tag);
    publish(out + 2, b, block.tag);
  } else if (kind == OUTPUT || kind == DOWN) {
    if (!ends) return;
    float *const residual = block.shared->residual + quad * QUAD + row;
    residual[0] = a += residual[0];
    residual[2] = b += residual[2];
    publish_pair((kind == OUTPUT ? work.attended : work.x) +
                     pair_slot<EMBEDDING>(at / QUAD * 2 + row), a, b, block.tag);
  } else if (kind == GATE_UP) {
    const float hidden = __fdividef(a, 1.0f + __expf(-a)) * b;
    const float next = __shfl_xor_sync(EVERY_LANE, hidden, apart);
    if (!ends || row != 0) return;
    publish_pair(work.hidden + pair_slot<FEED_FORWARD>(at / QUAD), hidden, next, block.tag);
  }
}

__device__ __forceinline__ void consider(Block &block, float logit, int token) {
  if (logit > block.best_logit || (logit == block.best_logit && token < block.best_token)) {
    block.best_logit = logit;
    block.best_token = token;
  }
}

__device__ __forceinline__ void finish_or_choose(Block &block, int kind, const Share &share,
                                                 int quad, int row, float a, float b, int apart,
                                                 bool ends, float *logits) {
  if (kind != HEAD) {
    finish(block, kind, share, quad, row, a, b, apart, ends);
    return;
  }
  if (!ends) return;
  a *= block.norm;
  b *= block.norm;
  const int at = (share.first + quad) * QUAD + row;
  logits[at] = a;
  logits[at + 2] = b;
  consider(block, a, at);
  consider(block, b, at + 2);
}

// Multiplies the warp's next steps, `count` of one quad from a group of its columns on, and copies
// as many. All that is the same for them stays outside: instructions are what an Orin lacks.
template <class Format>
__device__ __forceinline__ void multiply_steps(Block &block, int count, int group, float &a,
                                               float &b) {
  const int lane = threadIdx.x % WARP_SIZE;
  const int4 *words = block.shared->words[0] + group;
  const ActivationScale *scales = block.shared->scales + group;
#pragma unroll 1
  for (; count > 0; --count) {
    wait_for_copies<DEPTH - 2>();
    __syncwarp();
    const uint8_t *const weights = block.stream.oldest();
    Activations<WORDS> x;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      x.first[i] = words[i * (LONGEST / 32)];
      x.last[i] = words[(WORDS + i) * (LONGEST / 32)];
    }
    const ActivationScale scale = *scales;
    a = Format::template dot<WORDS>(weights, 0, lane, x, scale, a);
    b = Format::template dot<WORDS>(weights, 1, lane, x, scale, b);
    block.stream.copy_step();
    words += 16;
    scales += 16;
  }
}

// Multiplies this warp's steps. A quad that lies wholly in them is finished at once.
template <class Format>
__device__ __forceinline__ void multiply(Block &block, int kind, const Share &share,
                                         float *logits) {
  const int steps = steps_of(kind);
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const Turn turn = block.shared->turns[kind][warp];
  int quad = turn.quad, column = turn.column;
  bool whole = column == 0;
  float a = 0.0f, b = 0.0f;
#pragma unroll 1
  for (int left = turn.count; left > 0;) {
    const int count = min(min(steps - column, left), block.stream.ready());
    multiply_steps<Format>(block, count, column * 16 + lane % 16, a, b);
    block.stream.left -= count;
    left -= count;
    column += count;

    if (column < steps && left > 0) continue;
#pragma unroll
    for (int lanes = 8; lanes > 0; lanes /= 2) {
      a += __shfl_xor_sync(EVERY_LANE, a, lanes);
      b += __shfl_xor_sync(EVERY_LANE, b, lanes);
    }
    const int row = lane / 16;
    const bool ends = lane % 16 == 0;
    if (whole && column == steps) {
      finish_or_choose(block, kind, share, quad, row, a, b, 16, ends, logits);
    } else if (ends) {
      float *const sums = block.shared->sums[kind][warp][whole];
      sums[row] = a;
      sums[row + 2] = b;
    }
    a = b = 0.0f;
    column = 0;
    whole = true;
    ++quad;
  }
}

// Finishes the quads that warps share, by one warp: two lanes for each warp that has a quad's
// first step add the sums of the next ones. A warp without steps has none but zeros.
__device__ __forceinline__ void finish_shared(Block &block, int kind, const Share &share,
                                              float *logits) {
  constexpr int AT_ONCE = 4;
  const int lane = threadIdx.x % WARP_SIZE, warp = min(lane / 2, WARPS - 1), row = lane % 2;
  const auto &sums = block.shared->sums[kind];
  const Joint joint = block.shared->joints[kind][warp];
  const bool ends = lane < 2 * WARPS && joint.end > 0;
  float a = sums[warp][1][row], b = sums[warp][1][row + 2];
#pragma unroll 1
  for (int first = warp + 1; first < joint.end; first += AT_ONCE) {
    float x[AT_ONCE] = {}, y[AT_ONCE] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i >= joint.end) continue;
      x[i] = sums[first + i][0][row];
      y[i] = sums[first + i][0][row + 2];
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      a += x[i];
      b += y[i];
    }
  }
  finish_or_choose(block, kind, share, joint.quad, row, a, b, 1, ends, logits);
}

// Multiplies with a matrix of the format that has a number in the list.
template <class First, class... Rest>
__device__ __forceinline__ void multiply_as(int format, Block &block, int kind,
                                            const Share &share, float *logits) {
  if constexpr (sizeof...(Rest) > 0) {
    if (format > 0) {
      multiply_as<Rest...>(format - 1, block, kind, share, logits);
      return;
    }
  }
  multiply<First>(block, kind, share, logits);
}
