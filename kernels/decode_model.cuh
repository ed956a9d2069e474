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

// What every part of the persistent decode kernel knows: the model's sizes, compile-time constants
// of which those given here are of a 4B model, and the device memory that blocks share.

#pragma once

#include "packed_formats.cuh"

#ifndef DECODE_EMBEDDING
#define DECODE_LAYERS 36
#define DECODE_EMBEDDING 2560
#define DECODE_FEED_FORWARD 9728
#define DECODE_HEADS 32
#define DECODE_GROUPS 8
#define DECODE_VOCAB 151936
#define DECODE_WORDS 2
#define DECODE_SHARED_BYTES (163 << 10)  // that a block may have
#define DECODE_BLOCKS 132
#define DECODE_PARTS 16  // of the cache, at most, each for a block of its own
#define DECODE_FORMATS PackedQ4K, PackedQ6K  // of the model; a stage has one's number
#define DECODE_KV HalfKv                     // or Int8Kv
#endif

constexpr int EMBEDDING = DECODE_EMBEDDING, FEED_FORWARD = DECODE_FEED_FORWARD;
constexpr int HEADS = DECODE_HEADS, GROUPS = DECODE_GROUPS, DIM = 128, VOCAB = DECODE_VOCAB;
constexpr int WORDS = DECODE_WORDS, BLOCKS = DECODE_BLOCKS;
// More warps would leave attention too few registers.
constexpr int WARPS = 12, THREADS = WARPS * WARP_SIZE;
constexpr int SHARED_HEADS = HEADS / GROUPS;  // query heads of one key/value head
constexpr int QUERY = HEADS * DIM, KEY = GROUPS * DIM;
constexpr int LONGEST = FEED_FORWARD > QUERY ? FEED_FORWARD : QUERY;
constexpr int MAX_STEP_BYTES = most_step_bytes<DECODE_FORMATS>();
constexpr int PARTS = DECODE_PARTS, POSITIONS_A_PART = 32;
constexpr int ONE_PART = 96;  // positions that are not worth the way through memory
// Columns of attention's products are the heads of a group: of up to four, both numbers of each
// query; of more, one number a product.
constexpr int QUERY_COLUMNS = 2 * SHARED_HEADS, PASSES = SHARED_HEADS > 4 ? 2 : 1;
constexpr int PASS_COLUMNS = QUERY_COLUMNS / PASSES;
// Most quads of the residual stream that a block adds to.
constexpr int OWN_QUADS = (EMBEDDING / QUAD + BLOCKS - 1) / BLOCKS;
constexpr float LOG2_E = 1.44269504088896341f, NOTHING = -1e30f;
constexpr unsigned EVERY_LANE = 0xffffffffu;

static_assert(EMBEDDING % STEP_COLUMNS == 0 && FEED_FORWARD % STEP_COLUMNS == 0 &&
                  QUERY % STEP_COLUMNS == 0 && VOCAB % QUAD == 0 && SHARED_HEADS <= 8,
              "the packed layout or attention cannot hold this model");
static_assert(2 * WARPS <= WARP_SIZE, "one warp ends the rows that warps share");

enum Kind { QUERY_KEY, VALUE, OUTPUT, GATE_UP, DOWN, HEAD, KINDS };
constexpr int LAYERS = DECODE_LAYERS, LAYER_STAGES = 5, STAGES = LAYERS * LAYER_STAGES + 1;

__device__ __forceinline__ int kind_of(int stage) {
  return stage + 1 == STAGES ? int(HEAD) : stage % LAYER_STAGES;
}

// Quads of rows of a kind's matrix, and steps of a quad.
__device__ __forceinline__ int quads_of(int kind) {
  const int rows = kind == QUERY_KEY ? QUERY + KEY
                   : kind == VALUE   ? KEY
                   : kind == GATE_UP ? 2 * FEED_FORWARD
                   : kind == HEAD    ? VOCAB
                                     : EMBEDDING;
  return rows / QUAD;
}
__device__ __forceinline__ int steps_of(int kind) {
  return (kind == OUTPUT ? QUERY : kind == DOWN ? FEED_FORWARD : EMBEDDING) / STEP_COLUMNS;
}

// One matrix in the packed layout.
struct alignas(16) Stage {
  const uint8_t *weights;
  int32_t format, step_bytes;
};

// The cache of a layer [positions][GROUPS][DIM]: fp16, or int8 with scales [positions][GROUPS].
// PADDING: halves between the queries in shared memory, for lanes that read them together to use
// different banks.
struct HalfKv {
  static constexpr int PADDING = 32;
  half_t *keys, *values;
};

struct Int8Kv {
  static constexpr int PADDING = 8;
  int8_t *keys, *values;
  float *key_scales, *value_scales;
};

using Kv = DECODE_KV;
constexpr int COLUMN_HALVES = DIM + Kv::PADDING;

// What a layer has besides matrices: norms (fp32) and the cache.
struct Layer {
  const float *attn_norm, *q_norm, *k_norm, *ffn_norm;
  Kv kv;
};

// Device memory that blocks pass results through: tagged words (see decode_exchange.cuh), but
// for the end of the step.
struct Work {
  uint64_t *attended;  // EMBEDDING / 2 pairs: the residual stream after a layer's attention,
  uint64_t *x;         // and at its end. A quad is the pairs of rows (0, 2) and (1, 3)
  uint64_t *qkv;       // QUERY + 2 * KEY values
  uint64_t *heads;     // QUERY / 2 pairs of neighbours
  uint64_t *hidden;    // FEED_FORWARD / 2 pairs of neighbours
  uint64_t *parts;     // parts of the cache, HEADS, DIM: weighted values
  uint64_t *weights;   // parts of the cache, HEADS: largest score, sum of weights
  float2 *best;        // blocks: logit, token
  uint32_t *arrived;   // at the end of the step; zero between steps
};
