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

// A whole decode step of a Qwen3 in one persistent kernel: embedding, every layer, head, argmax.
//
// One block a multiprocessor runs through all stages; a barrier over the grid separates those
// that depend on each other. Weights depend on nothing, so each warp copies its own, in the
// packed layout, into a ring of steps in shared memory and runs ahead of the barriers: memory
// stays busy while blocks wait. Every block quantizes the activations of a stage for itself.
//
// The model's sizes are compile-time constants; those given here are of a 4B model. Nothing
// depends on the order in which blocks or warps arrive: sums of rows that several warps share,
// and of attention over several parts of the cache, are added in a fixed order.

#include "packed.cuh"

#ifndef DECODE_EMBEDDING
#define DECODE_EMBEDDING 2560
#define DECODE_FEED_FORWARD 9728
#define DECODE_HEADS 32
#define DECODE_GROUPS 8
#define DECODE_VOCAB 151936
#define DECODE_WORDS 2
#define DECODE_DEPTH 6
#endif

constexpr int EMBEDDING = DECODE_EMBEDDING, FEED_FORWARD = DECODE_FEED_FORWARD;
constexpr int HEADS = DECODE_HEADS, GROUPS = DECODE_GROUPS, DIM = 128, VOCAB = DECODE_VOCAB;
constexpr int WORDS = DECODE_WORDS, DEPTH = DECODE_DEPTH;
// More warps would leave attention too few registers.
constexpr int WARPS = 12, THREADS = WARPS * WARP_SIZE;
constexpr int SHARED_HEADS = HEADS / GROUPS;  // query heads of one key/value head
constexpr int QUERY = HEADS * DIM, KEY = GROUPS * DIM;
constexpr int LONGEST = FEED_FORWARD > QUERY ? FEED_FORWARD : QUERY;
constexpr int RING_BYTES = WARPS * DEPTH * MAX_STEP_BYTES;
constexpr int POSITIONS_A_PART = 32;
constexpr float LOG2_E = 1.44269504088896341f, NOTHING = -1e30f;
constexpr unsigned EVERY_LANE = 0xffffffffu;

static_assert(EMBEDDING % STEP_COLUMNS == 0 && FEED_FORWARD % STEP_COLUMNS == 0 &&
                  QUERY % STEP_COLUMNS == 0 && VOCAB % QUAD == 0 && SHARED_HEADS <= 8,
              "the packed layout or attention cannot hold this model");
static_assert(2 * WARPS <= WARP_SIZE, "one warp ends the rows that warps share");

enum Kind { QUERY_KEY, VALUE, OUTPUT, GATE_UP, DOWN, HEAD };
constexpr int LAYER_STAGES = 5;

// One matrix in the packed layout.
struct Stage {
  const uint8_t *weights;
  int32_t quads, steps, type, unused;
};

// What a layer has besides matrices: norms (fp32) and caches [positions][GROUPS][DIM] (fp16).
struct Layer {
  const float *attn_norm, *q_norm, *k_norm, *ffn_norm;
  half_t *keys, *values;
};

// Device memory that blocks pass results through.
struct Work {
  float *x;         // EMBEDDING: the residual stream
  float *qkv;       // QUERY + 2 * KEY
  float *heads;     // QUERY
  float *hidden;    // FEED_FORWARD
  float *parts;     // parts of the cache, HEADS, DIM: weighted values
  float2 *weights;  // parts of the cache, HEADS: largest score, sum of weights
  float2 *best;     // blocks: logit, token
  uint32_t *arrived;  // barrier, end of the step, and one a group; all zero between steps
};

#ifdef __CUDACC__
__device__ __forceinline__ void copy_async(void *to, const void *from) {
  const uint32_t address = uint32_t(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
               :: "r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void prefetch(const void *from) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
}
__device__ __forceinline__ void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
__device__ __forceinline__ void arrive_and_wait(uint32_t *counter, uint32_t goal) {
  uint32_t seen;
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < goal);
}
#else
// On the host a grid is one block, which waits for nobody.
static void copy_async(void *to, const void *from) { memcpy(to, from, 16); }
static void prefetch(const void *) {}
static void end_copy_group() {}
template <int N>
static void wait_for_copies() {}
static void arrive_and_wait(uint32_t *counter, uint32_t) { ++*counter; }
#endif

// Quads of a stage that this block multiplies.
struct Share {
  int first, count;

  __device__ __forceinline__ explicit Share(int quads) {
    first = int(uint32_t(quads) * blockIdx.x / gridDim.x);
    count = int(uint32_t(quads) * (blockIdx.x + 1) / gridDim.x) - first;
  }
};

// Steps of the block's share that begin with a warp.
__device__ __forceinline__ int first_step(int steps, int warp) {
  return int(uint32_t(steps) * warp / WARPS);
}

// Copies this warp's steps of all stages, one after the other, into its ring.
struct Stream {
  const Stage *stages;
  int stage, stage_count, left, type, slot;
  const uint8_t *from;
  uint8_t *ring;

  __device__ __forceinline__ Stream(const Stage *all, int count, uint8_t *warp_ring)
      : stages(all), stage(-1), stage_count(count), left(0), type(0), slot(0), from(nullptr),
        ring(warp_ring) {
    for (int i = 0; i < DEPTH - 1; ++i) copy_step();
  }

  __device__ __forceinline__ void next_stage() {
    while (left == 0 && ++stage < stage_count) {
      const Stage next = stages[stage];
      const Share share(next.quads);
      const int warp = threadIdx.x / WARP_SIZE, steps = share.count * next.steps;
      const int first = first_step(steps, warp);
      left = first_step(steps, warp + 1) - first;
      type = next.type;
      from = next.weights + (int64_t(share.first) * next.steps + first) *
                                (type == PACKED_Q4K ? PackedQ4K::BYTES : PackedQ6K::BYTES);
    }
  }

  // The step that was copied DEPTH - 1 copies ago: the slot after the one to be written.
  __device__ __forceinline__ const uint8_t *oldest() const {
    return ring + (slot + 1 == DEPTH ? 0 : slot + 1) * MAX_STEP_BYTES;
  }

  __device__ __forceinline__ void copy_step() {
    const int lane = threadIdx.x % WARP_SIZE;
    if (left == 0 && stage < stage_count) next_stage();
    if (left > 0) {
      uint8_t *const to = ring + slot * MAX_STEP_BYTES + lane * 16;
      const uint8_t *const source = from + lane * 16;
      copy_async(to, source);
      copy_async(to + 512, source + 512);
      if (type == PACKED_Q4K) {
        if (lane < 8) copy_async(to + 1024, source + 1024);
        from += PackedQ4K::BYTES;
      } else {
        copy_async(to + 1024, source + 1024);
        if (lane < 9) copy_async(to + 1536, source + 1536);
        from += PackedQ6K::BYTES;
      }
      --left;
    }
    end_copy_group();
    slot = slot + 1 == DEPTH ? 0 : slot + 1;
  }
};

struct Shared {
  Work work;  // its pointers would take sixteen registers
  float sums[WARPS][2][QUAD];  // of quads that a warp shares with the one before and after
  float partial[WARPS];
  float2 best[WARPS];
  float head_largest[WARPS][8], head_total[WARPS][8];
  int last;
  ActivationScale scales[LONGEST / 32];
  // First and last 16 of every 32 activations, a plane for each word; and attention's scratch.
  union {
    int4 words[2 * WORDS][LONGEST / 32];
    struct {
      float query[8][DIM];
      float rows[WARPS][DIM];
    } attention;
  };
};

struct Block {
  Shared *shared;
  Stream stream;
  const Work &work;
  uint32_t barrier_goal;
  float best_logit;
  int best_token;

  __device__ __forceinline__ Block(uint8_t *memory, const Stage *stages, int count)
      : shared(reinterpret_cast<Shared *>(memory + RING_BYTES)),
        stream(stages, count, memory + threadIdx.x / WARP_SIZE * DEPTH * MAX_STEP_BYTES),
        work(shared->work), barrier_goal(0), best_logit(__uint_as_float(0xff800000u)),
        best_token(VOCAB) {}

  __device__ __forceinline__ void grid_barrier() {
    __syncthreads();
    barrier_goal += gridDim.x;
    if (threadIdx.x == 0) arrive_and_wait(work.arrived, barrier_goal);
    __syncthreads();
  }
};

// Quantizes x (K) or its norm for this block: units of a 127th of the largest of 32.
template <int K, bool NORM>
__device__ __forceinline__ void quantize(Shared *shared, const float *x, const float *weight,
                                         float eps) {
  constexpr int FOURS = K / 4, TURNS = (FOURS + THREADS - 1) / THREADS;
  const int lane = threadIdx.x % WARP_SIZE;
  float4 v[TURNS], w[TURNS];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < TURNS; ++i) {
    const int four = i * THREADS + threadIdx.x;
    v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (four < FOURS) {
      v[i] = __ldcg(reinterpret_cast<const float4 *>(x) + four);
      if (NORM) w[i] = reinterpret_cast<const float4 *>(weight)[four];  // now, not after the wait
    }
    squares = fmaf(v[i].x, v[i].x, squares);
    squares = fmaf(v[i].y, v[i].y, squares);
    squares = fmaf(v[i].z, v[i].z, squares);
    squares = fmaf(v[i].w, v[i].w, squares);
  }
  float norm = 1.0f;
  if (NORM) {
    squares = warp_sum(squares);
    if (lane == 0) shared->partial[threadIdx.x / WARP_SIZE] = squares;
    __syncthreads();
    norm = rsqrtf(warp_sum(lane < WARPS ? shared->partial[lane] : 0.0f) * (1.0f / K) + eps);
  }
#pragma unroll
  for (int i = 0; i < TURNS; ++i) {
    const int four = i * THREADS + threadIdx.x;
    if (four >= FOURS) break;  // whole warps: K is a multiple of 512
    float a[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    if (NORM) {
      a[0] *= norm * w[i].x;
      a[1] *= norm * w[i].y;
      a[2] *= norm * w[i].z;
      a[3] *= norm * w[i].w;
    }
    float largest = fmaxf(fmaxf(fabsf(a[0]), fabsf(a[1])), fmaxf(fabsf(a[2]), fabsf(a[3])));
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, lanes));
    }
    const float inverse = largest > 0.0f ? __fdividef(127.0f, largest) : 0.0f;
    uint32_t high = 0, low = 0;
    int sum = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float units = a[k] * inverse;
      const int first = __float2int_rn(units);
      high |= uint32_t(first & 255) << 8 * k;
      sum += first;
      if (WORDS == 2) {
        const int second = __float2int_rn((units - float(first)) * 127.0f);
        low |= uint32_t(second & 255) << 8 * k;
        sum += first * 126 + second;
      }
    }
    sum += __shfl_xor_sync(EVERY_LANE, sum, 1);
    sum += __shfl_xor_sync(EVERY_LANE, sum, 2);
    const int other = __shfl_xor_sync(EVERY_LANE, sum, 4);
    const int sub = four / 8, word = four % 8;
    int *const first_plane = reinterpret_cast<int *>(shared->words[word / 4 * WORDS] + sub);
    first_plane[word % 4] = int(high);
    if (WORDS == 2) {
      reinterpret_cast<int *>(shared->words[word / 4 * WORDS + 1] + sub)[word % 4] = int(low);
    }
    if (word == 0) {
      const float unit = largest * (1.0f / 127.0f) * (WORDS == 2 ? 1.0f / 127.0f : 1.0f);
      shared->scales[sub] = {unit, unit * float(sum + other), sum, other};
    }
  }
  __syncthreads();
}

// Rows `row` and `row + 2` of a quad have their sums.
__device__ __forceinline__ void finish(Block &block, int kind, int quad, int row, float a,
                                       float b) {
  const int at = quad * QUAD + row;
  const Work &work = block.work;
  if (kind == QUERY_KEY || kind == VALUE) {
    float *const out = work.qkv + (kind == VALUE ? QUERY + KEY : 0);
    out[at] = a;
    out[at + 2] = b;
  } else if (kind == OUTPUT || kind == DOWN) {
    work.x[at] = __ldcg(work.x + at) + a;
    work.x[at + 2] = __ldcg(work.x + at + 2) + b;
  } else if (kind == GATE_UP) {
    work.hidden[quad * 2 + row] = __fdividef(a, 1.0f + __expf(-a)) * b;
  }
}

__device__ __forceinline__ void consider(Block &block, float logit, int token) {
  if (logit > block.best_logit || (logit == block.best_logit && token < block.best_token)) {
    block.best_logit = logit;
    block.best_token = token;
  }
}

__device__ __forceinline__ void finish_or_choose(Block &block, int kind, int quad, int row,
                                                 float a, float b, float *logits) {
  if (kind != HEAD) {
    finish(block, kind, quad, row, a, b);
    return;
  }
  const int at = quad * QUAD + row;
  logits[at] = a;
  logits[at + 2] = b;
  consider(block, a, at);
  consider(block, b, at + 2);
}

// Multiplies this warp's steps. A quad that lies wholly in them is finished at once.
template <class Format>
__device__ __forceinline__ void multiply(Block &block, int kind, const Share &share, int steps,
                                         float *logits) {
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int total = share.count * steps;
  const int begin = first_step(total, warp), end = first_step(total, warp + 1);
  int quad = begin / steps, column = begin - quad * steps;
  bool whole = column == 0;
  float a = 0.0f, b = 0.0f;
#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    wait_for_copies<DEPTH - 2>();
    __syncwarp();
    const uint8_t *const weights = block.stream.oldest();
    const int sub = column * 16 + lane % 16;
    Activations<WORDS> x;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      x.first[i] = block.shared->words[i][sub];
      x.last[i] = block.shared->words[WORDS + i][sub];
    }
    const ActivationScale scale = block.shared->scales[sub];
    a += Format::template dot<WORDS>(weights, 0, lane, x, scale);
    b += Format::template dot<WORDS>(weights, 1, lane, x, scale);
    block.stream.copy_step();

    if (++column < steps && step + 1 < end) continue;
#pragma unroll
    for (int lanes = 8; lanes > 0; lanes /= 2) {
      a += __shfl_xor_sync(EVERY_LANE, a, lanes);
      b += __shfl_xor_sync(EVERY_LANE, b, lanes);
    }
    if (lane % 16 == 0) {
      const int row = lane / 16;
      if (whole && column == steps) {
        finish_or_choose(block, kind, share.first + quad, row, a, b, logits);
      } else {
        float *const sums = block.shared->sums[warp][whole];
        sums[row] = a;
        sums[row + 2] = b;
      }
    }
    a = b = 0.0f;
    column = 0;
    whole = true;
    ++quad;
  }
}

// Finishes the quads that warps share: the warp that has a quad's first step, then the next ones.
__device__ __forceinline__ void finish_shared(Block &block, int kind, const Share &share,
                                              int steps, float *logits) {
  const int warp = threadIdx.x / 2, row = threadIdx.x % 2;
  if (warp >= WARPS) return;
  const int total = share.count * steps;
  const int begin = first_step(total, warp), end = first_step(total, warp + 1);
  if (begin == end) return;
  const int quad = (end - 1) / steps, quad_end = (quad + 1) * steps;
  if (quad * steps < begin || quad_end <= end) return;
  float a = block.shared->sums[warp][1][row], b = block.shared->sums[warp][1][row + 2];
  for (int next = warp + 1; next < WARPS && first_step(total, next) < quad_end; ++next) {
    if (first_step(total, next) == first_step(total, next + 1)) continue;
    a += block.shared->sums[next][0][row];
    b += block.shared->sums[next][0][row + 2];
  }
  finish_or_choose(block, kind, share.first + quad, row, a, b, logits);
}

// Norm and rotation of one head by one warp: lane holds elements lane + 32 i of `values`.
__device__ __forceinline__ void norm_and_rotate(float (&v)[4], const float *weight, float eps,
                                                const uint64_t *turns, int position) {
  const int lane = threadIdx.x % WARP_SIZE;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) squares = fmaf(v[i], v[i], squares);
  const float norm = rsqrtf(warp_sum(squares) * (1.0f / DIM) + eps);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= norm * weight[lane + 32 * i];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint64_t turned = uint64_t(position) * turns[lane + 32 * i];
    float sine, cosine;
    sincospif(float(int32_t(turned >> 32)) * (1.0f / 2147483648.0f), &sine, &cosine);
    const float first = v[i], second = v[i + 2];
    v[i] = fmaf(first, cosine, -(second * sine));
    v[i + 2] = fmaf(first, sine, second * cosine);
  }
}

__device__ __forceinline__ void unpack8(float (&out)[8], const uint4 &words) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = half_to_float(half_t(word[i] & 0xffffu));
    out[2 * i + 1] = half_to_float(half_t(word[i] >> 16));
  }
}

// Attention of the query heads of one group to one part of the cache; the block that finishes a
// group last adds the parts, in their order.
__device__ __forceinline__ void attend(Block &block, const Layer &layer, int group, int part,
                                       int parts, int position, const uint64_t *turns, float eps,
                                       float score_scale) {
  Shared *const shared = block.shared;
  auto &scratch = shared->attention;
  const Work &work = block.work;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int length = position + 1;
  const int begin = int(int64_t(length) * part / parts);
  const int end = int(int64_t(length) * (part + 1) / parts);
  const bool owns_newest = part == parts - 1;
  const int64_t newest = (int64_t(position) * GROUPS + group) * DIM;

  if (warp < SHARED_HEADS || (warp < SHARED_HEADS + 2 && owns_newest)) {
    const bool is_query = warp < SHARED_HEADS, is_key = warp == SHARED_HEADS;
    const float *const from = work.qkv + (is_query ? (group * SHARED_HEADS + warp) * DIM
                                          : is_key ? QUERY + group * DIM
                                                   : QUERY + KEY + group * DIM);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __ldcg(from + lane + 32 * i);
    if (is_query || is_key) {
      norm_and_rotate(v, is_query ? layer.q_norm : layer.k_norm, eps, turns, position);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (is_query) {
        scratch.query[warp][lane + 32 * i] = v[i] * score_scale * LOG2_E;
      } else {
        (is_key ? layer.keys : layer.values)[newest + lane + 32 * i] = float_to_half(v[i]);
      }
    }
  }
  __syncthreads();

  const int element = lane % 16 * 8, half_warp = lane / 16;
  float sum[SHARED_HEADS][8], largest[SHARED_HEADS], total[SHARED_HEADS];
#pragma unroll
  for (int head = 0; head < SHARED_HEADS; ++head) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[head][i] = 0.0f;
    largest[head] = NOTHING;
    total[head] = 0.0f;
  }
  #pragma unroll 1
  for (int base = begin + 2 * warp; base < end; base += 2 * WARPS) {
    const bool exists = base + half_warp < end;
    const int row = exists ? base + half_warp : base;
    const int64_t at = (int64_t(row) * GROUPS + group) * DIM + element;
    const uint4 key_words = __ldcg(reinterpret_cast<const uint4 *>(layer.keys + at));
    const uint4 value_words = __ldcg(reinterpret_cast<const uint4 *>(layer.values + at));
    float elements[8], scores[SHARED_HEADS];
    unpack8(elements, key_words);
#pragma unroll
    for (int head = 0; head < SHARED_HEADS; ++head) {
      const float4 *const query = reinterpret_cast<const float4 *>(scratch.query[head] + element);
      const float4 first = query[0], second = query[1];  // in registers they would spill
      float score = first.x * elements[0];
      score = fmaf(first.y, elements[1], score);
      score = fmaf(first.z, elements[2], score);
      score = fmaf(first.w, elements[3], score);
      score = fmaf(second.x, elements[4], score);
      score = fmaf(second.y, elements[5], score);
      score = fmaf(second.z, elements[6], score);
      scores[head] = fmaf(second.w, elements[7], score);
    }
#pragma unroll
    for (int lanes = 8; lanes > 0; lanes /= 2) {
#pragma unroll
      for (int head = 0; head < SHARED_HEADS; ++head) {
        scores[head] += __shfl_xor_sync(EVERY_LANE, scores[head], lanes);
      }
    }
    unpack8(elements, value_words);
#pragma unroll
    for (int head = 0; head < SHARED_HEADS; ++head) {
      const float now = exists ? fmaxf(largest[head], scores[head]) : largest[head];
      const float shrink = exp2f(largest[head] - now);
      const float weight = exists ? exp2f(scores[head] - now) : 0.0f;
      largest[head] = now;
      total[head] = fmaf(total[head], shrink, weight);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[head][i] = fmaf(sum[head][i], shrink, weight * elements[i]);
    }
  }

  // Halves of a warp, then warps.
#pragma unroll
  for (int head = 0; head < SHARED_HEADS; ++head) {
    const float most = fmaxf(largest[head], __shfl_xor_sync(EVERY_LANE, largest[head], 16));
    const float shrink = exp2f(largest[head] - most);
    total[head] *= shrink;
    total[head] += __shfl_xor_sync(EVERY_LANE, total[head], 16);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum[head][i] *= shrink;
      sum[head][i] += __shfl_xor_sync(EVERY_LANE, sum[head][i], 16);
    }
    largest[head] = most;
    if (lane == 0) {
      shared->head_largest[warp][head] = most;
      shared->head_total[warp][head] = total[head];
    }
  }
  __syncthreads();
#pragma unroll
  for (int head = 0; head < SHARED_HEADS; ++head) {
    const float warp_largest = lane < WARPS ? shared->head_largest[lane][head] : NOTHING;
    const float warp_total = lane < WARPS ? shared->head_total[lane][head] : 0.0f;
    const float most = warp_max(warp_largest);
    const float weights = warp_sum(warp_total * exp2f(warp_largest - most));
    const float shrink = exp2f(largest[head] - most);
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 8; ++i) scratch.rows[warp][element + i] = sum[head][i] * shrink;
    }
    __syncthreads();
    const int number = group * SHARED_HEADS + head, i = threadIdx.x;
    if (i < DIM) {
      float values = 0.0f;
#pragma unroll 4
      for (int j = 0; j < WARPS; ++j) values += scratch.rows[j][i];
      if (parts == 1) {
        work.heads[number * DIM + i] = values / weights;
      } else {
        work.parts[(int64_t(part) * HEADS + number) * DIM + i] = values;
        if (i == 0) work.weights[part * HEADS + number] = make_float2(most, weights);
      }
    }
    __syncthreads();
  }
  if (parts == 1) return;

  uint32_t *const counter = work.arrived + 2 + group;
  if (threadIdx.x == 0) {
    __threadfence();
    shared->last = atomicAdd(counter, 1u) == uint32_t(parts - 1);
    __threadfence();
    if (shared->last) *counter = 0;
  }
  __syncthreads();
  if (!shared->last) return;
  float2 *const weights = reinterpret_cast<float2 *>(scratch.rows);  // parts, heads
  for (int i = threadIdx.x; i < parts * SHARED_HEADS; i += THREADS) {
    weights[i] = __ldcg(work.weights + i / SHARED_HEADS * HEADS + group * SHARED_HEADS +
                        i % SHARED_HEADS);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < SHARED_HEADS * DIM; i += THREADS) {
    const int head = i / DIM;
    const float *const values = work.parts + group * SHARED_HEADS * DIM + i;
    float most = NOTHING, total_weight = 0.0f, total_value = 0.0f;
    for (int j = 0; j < parts; ++j) most = fmaxf(most, weights[j * SHARED_HEADS + head].x);
#pragma unroll 8
    for (int j = 0; j < parts; ++j) {
      const float2 w = weights[j * SHARED_HEADS + head];
      const float shrink = exp2f(w.x - most);
      total_weight = fmaf(w.y, shrink, total_weight);
      total_value = fmaf(__ldcg(values + j * HEADS * DIM), shrink, total_value);
    }
    work.heads[group * SHARED_HEADS * DIM + i] = total_value / total_weight;
  }
}

__device__ __forceinline__ int active_parts(int position, int parts) {
  return min(parts, (position + POSITIONS_A_PART) / POSITIONS_A_PART);
}

// Asks for the first rows that this block's warps will attend to, while it still multiplies.
__device__ __forceinline__ void prefetch_cache(const Layer &layer, int position, int parts) {
  const int active = active_parts(position, parts), length = position + 1;
  const int group = blockIdx.x % GROUPS, part = blockIdx.x / GROUPS;
  const int row = int(int64_t(length) * part / active) + threadIdx.x / 16;
  if (part >= active || row >= position) return;
  const int64_t at = (int64_t(row) * GROUPS + group) * DIM + threadIdx.x % 16 * 8;
  prefetch(layer.keys + at);
  prefetch(layer.values + at);
}

// The token's row of the table, a share of it a block, into the residual stream.
template <class Format>
__device__ __forceinline__ void embed(float *x, const Stage &table, int token) {
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < EMBEDDING; i += gridDim.x * THREADS) {
    const PackedPlace place(token / QUAD, token % QUAD, table.steps, i / 256, i % 256 / 32);
    x[i] = Format::weight(table.weights + place.step * Format::BYTES, place, i % 32);
  }
}

__device__ __forceinline__ float2 better(float2 a, float2 b) {
  const int first = __float_as_int(a.y), second = __float_as_int(b.y);
  return b.x > a.x || (b.x == a.x && second < first) ? b : a;
}

__device__ __forceinline__ float2 warp_best(float2 best) {
#pragma unroll
  for (int lanes = WARP_SIZE / 2; lanes > 0; lanes /= 2) {
    best = better(best, make_float2(__shfl_xor_sync(EVERY_LANE, best.x, lanes),
                                    __shfl_xor_sync(EVERY_LANE, best.y, lanes)));
  }
  return best;
}

// The block's best logit goes to memory; the last block to arrive ends the step, as argmax does.
__device__ __forceinline__ void choose(Block &block, int32_t *token, int32_t *position,
                                       uint32_t *step, int32_t *ring, int ring_size) {
  Shared *const shared = block.shared;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const float2 none = make_float2(__uint_as_float(0xff800000u), __int_as_float(VOCAB));
  float2 best = warp_best(make_float2(block.best_logit, __int_as_float(block.best_token)));
  if (lane == 0) shared->best[warp] = best;
  __syncthreads();
  if (warp != 0) return;
  best = warp_best(lane < WARPS ? shared->best[lane] : none);
  if (lane == 0) {
    block.work.best[blockIdx.x] = best;
    __threadfence();
    shared->last = atomicAdd(block.work.arrived + 1, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncwarp();
  if (!shared->last) return;
  best = none;
  for (int i = lane; i < int(gridDim.x); i += WARP_SIZE) {
    best = better(best, __ldcg(block.work.best + i));
  }
  best = warp_best(best);
  if (lane != 0) return;
  const int chosen = __float_as_int(best.y) < VOCAB ? __float_as_int(best.y) : -1;
  *token = max(chosen, 0);
  *position += 1;
  ring[*step % ring_size] = chosen;
  *step += 1;
  block.work.arrived[0] = 0;
  block.work.arrived[1] = 0;
}

// Ends where argmax ends: `token` and `position` are the next step's, and `ring` has the choice.
// stages: query and key in one, value, output, gate and up in one, down, for each layer; then the
// head. Grid: at most as many blocks as run at once, one a multiprocessor; block 384; shared
// memory as decode_shared_bytes says. `parts`: most parts of the cache, at least 1.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_step(int32_t *token, int32_t *position, uint32_t *step, int32_t *ring, float *logits,
                const Stage *stages, const Layer *layers, const uint64_t *turns,
                const float *output_norm, const Stage *table, const Work *work_place,
                int32_t layer_count, int32_t parts, int32_t ring_size, float eps, float score_scale) {
  DYNAMIC_SHARED(uint8_t, memory);
  const int stage_count = layer_count * LAYER_STAGES + 1;
  Block block(memory, stages, stage_count);
  if (threadIdx.x == 0) block.shared->work = *work_place;
  __syncthreads();
  const Work &work = block.work;
  const int place = *position;
  if (table->type == PACKED_Q4K) {
    embed<PackedQ4K>(work.x, *table, *token);
  } else {
    embed<PackedQ6K>(work.x, *table, *token);
  }
  Stage stage = stages[0];
  const float *norm = layers[0].attn_norm;
  block.grid_barrier();
#pragma unroll 1
  for (int number = 0; number < stage_count; ++number) {
    const int kind = number + 1 == stage_count ? int(HEAD) : number % LAYER_STAGES;
    const int layer = number / LAYER_STAGES;
    Shared *const shared = block.shared;
    if (kind == QUERY_KEY || kind == GATE_UP || kind == HEAD) {
      quantize<EMBEDDING, true>(shared, work.x, norm, eps);
    } else if (kind == OUTPUT) {
      quantize<QUERY, false>(shared, work.heads, nullptr, eps);
    } else if (kind == DOWN) {
      quantize<FEED_FORWARD, false>(shared, work.hidden, nullptr, eps);
    }
    const Share share(stage.quads);
    if (stage.type == PACKED_Q4K) {
      multiply<PackedQ4K>(block, kind, share, stage.steps, logits);
    } else {
      multiply<PackedQ6K>(block, kind, share, stage.steps, logits);
    }
    __syncthreads();
    finish_shared(block, kind, share, stage.steps, logits);
    if (kind == HEAD) break;
    // The next stage's addresses, before the wait rather than after it.
    stage = stages[number + 1];
    norm = kind == OUTPUT                    ? layers[layer].ffn_norm
           : kind != DOWN                    ? norm
           : number + 2 == stage_count       ? output_norm
                                             : layers[layer + 1].attn_norm;
    if (kind == QUERY_KEY) {
      prefetch_cache(layers[layer], place, parts);
      __syncthreads();  // the next stage uses shared->sums
      continue;
    }
    block.grid_barrier();
    if (kind != VALUE) continue;
    const int active = active_parts(place, parts);
    for (int unit = blockIdx.x; unit < GROUPS * active; unit += gridDim.x) {
      attend(block, layers[layer], unit % GROUPS, unit / GROUPS, active, place, turns, eps,
             score_scale);
      __syncthreads();
    }
    block.grid_barrier();
  }
  wait_for_copies<0>();
  choose(block, token, position, step, ring, ring_size);
}

// Bytes of shared memory that a launch of decode_step needs.
extern "C" __global__ void decode_shared_bytes(int32_t *bytes) {
  *bytes = RING_BYTES + int(sizeof(Shared));
}
