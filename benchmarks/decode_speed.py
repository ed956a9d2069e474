# Copyright 2026 The reflex_llm_ros authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Measure the decode steps on a GPU: the graph of launches and the persistent kernel.

``python benchmarks/decode_speed.py MODEL.gguf [--positions 512 ...]`` prints, for each kind of
activations, tokens a second at positions, the share of the limit (the bytes of weights and
cache that a token reads over the read bandwidth measured in the same run), the mean KL
divergence from the step with fp16 activations, and whether two runs gave the same ids.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
import time

import cupy as cp
import numpy as np
from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
from reflex_llm_ros.engine.backends.cuda.device import CudaDevice
from reflex_llm_ros.engine.config import EngineConfig, FastPaths
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.engine.memory import kv_bytes_per_position

READ_BYTES = 1 << 30
READ = r"""
extern "C" __global__ void read(const uint4 *p, unsigned *out, long long count) {
  unsigned sum = 0;
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
       i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[k] = i + k * stride < count ? __ldcs(p + i + k * stride) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x12345) *out = sum;
}
"""


def read_bandwidth() -> float:
    """Bytes a second of a kernel that only reads, the best of several."""
    multiprocessors = cp.cuda.runtime.getDeviceProperties(0)['multiProcessorCount']
    data = cp.zeros(READ_BYTES // 4, cp.uint32)
    out = cp.zeros(1, cp.uint32)
    kernel = cp.RawKernel(READ, 'read')
    best = 0.0
    for blocks in (8, 16, 32):
        for _ in range(8):
            start, end = cp.cuda.Event(), cp.cuda.Event()
            start.record()
            kernel((multiprocessors * blocks,), (256,), (data, out, np.int64(READ_BYTES // 16)))
            end.record()
            end.synchronize()
            best = max(best, READ_BYTES / (cp.cuda.get_elapsed_time(start, end) * 1e-3))
    return best


def divergence(logits: np.ndarray, other: np.ndarray) -> float:
    """KL(logits || other) in nats."""
    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64) - x.max()
        return x - np.log(np.exp(x).sum())

    p, q = log_softmax(logits), log_softmax(other)
    return float(np.sum(np.exp(p) * (p - q)))


class Run:
    """One open model."""

    def __init__(self, path: str, context_length: int, kind: str, blocks: int) -> None:
        self.device = CudaDevice()
        if blocks:
            self.device.info = replace(self.device.info, multiprocessors=blocks)
        model = GgufModel.open(path)
        self.backend = CudaBackend(
            self.device, model, EngineConfig(
                path, context_length=context_length, gemv_activations=kind), FastPaths())
        self.config = model.config
        self.table_bytes = model.tensors['token_embd.weight'].data.nbytes
        self.file_bytes = sum(
            tensor.data.nbytes for tensor in model.tensors.values())
        self.loaded = self.backend.loaded()
        self.decode = self.loaded.decode

    def token_bytes(self, position: int) -> int:
        """Bytes that a token reads: weights (of an untied table one row) and cache."""
        weights = self.file_bytes
        if self.loaded.weights.token_embd is not self.loaded.weights.output:
            weights -= self.table_bytes
        return weights + position * kv_bytes_per_position(self.config, 'f16')

    def set_input(self, token: int, position: int) -> None:
        self.backend._write_input((token,), position)

    def logits(self, token: int, position: int) -> np.ndarray:
        self.set_input(token, position)
        self.decode.launch()
        return self.device.download(self.loaded.buffers.logits)[0]

    def ids(self, token: int, position: int, count: int) -> list[int]:
        self.set_input(token, position)
        ids = []
        for _ in range(count):
            number = self.decode.launch()
            self.device.synchronize()
            ids.append(self.decode.chosen(number))
        return ids

    def milliseconds(self, position: int, count: int = 40) -> float:
        """Time of a step, the middle of several runs, positions around the one given."""
        times = []
        for _ in range(3):
            self.set_input(1, position - count // 2)
            self.device.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                self.decode.launch()
            self.device.synchronize()
            times.append((time.perf_counter() - start) / count * 1e3)
        return float(np.median(times))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description='Measure the decode steps on a GPU.')
    parser.add_argument('model')
    parser.add_argument('--positions', type=int, nargs='+', default=[512])
    parser.add_argument('--blocks', type=int, default=0, help='blocks of the persistent kernel')
    parser.add_argument('--compared', type=int, default=128, help='positions for the divergence')
    options = parser.parse_args(arguments)

    expected: list[np.ndarray] = []
    bandwidth = read_bandwidth()
    print(f'read bandwidth {bandwidth / 1e9:.0f} GB/s')
    for kind in ('fp16', 'a8', 'a8x2'):
        run = Run(options.model, max(options.positions) + 64, kind, options.blocks)
        if not expected:
            print(f'{run.device.info.name}, {run.file_bytes / 1e9:.3f} GB of weights')
        tokens = np.random.default_rng(1).integers(
            0, run.config.vocab_size, options.compared).tolist()
        logits = [run.logits(token, position) for position, token in enumerate(tokens)]
        expected = expected or logits
        kls = list(map(divergence, expected, logits))
        same = run.ids(1, 32, 64) == run.ids(1, 32, 64)
        print(f'{kind} ({type(run.decode).__name__}): KL mean {np.mean(kls):.2e} '
              f'max {np.max(kls):.2e}, same ids twice: {same}', flush=True)
        for position in options.positions:
            milliseconds = run.milliseconds(position)
            limit = run.token_bytes(position) / bandwidth * 1e3
            print(f'  at {position}: {milliseconds:.4f} ms, {1e3 / milliseconds:.0f} tokens/s, '
                  f'{100 * limit / milliseconds:.0f}% of the limit', flush=True)
        run.backend.close()


if __name__ == '__main__':
    main()
