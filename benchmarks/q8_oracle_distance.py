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
How far each kind of activations is from the oracle, on a Q8_0 model.

``python benchmarks/q8_oracle_distance.py MODEL.gguf`` runs random tokens one by one through a
GPU and through NumPy float64 on the dequantized weights, and prints a row of a table for each
kind: relative error of the logits, mean KL(oracle || engine) in nats, share of positions with
the same likeliest token.
"""

import argparse
from contextlib import closing

import numpy as np
from reflex_llm_ros.engine.backends.cuda.backend import CudaBackend
from reflex_llm_ros.engine.backends.cuda.opening import open_device
from reflex_llm_ros.engine.backends.cuda.q8_activations import KINDS
from reflex_llm_ros.engine.backends.reference import ReferenceBackend
from reflex_llm_ros.engine.config import EngineConfig, FastPaths
from reflex_llm_ros.engine.gguf_model import GgufModel

POSITIONS = 256


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Log probabilities over the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def main() -> None:
    """Measure a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('model')
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    with closing(GgufModel.open(options.model)) as model:
        vocabulary = model.config.vocab_size
        random = np.random.default_rng(options.seed)
        tokens = [int(token) for token in random.integers(0, vocabulary, POSITIONS)]
        config = EngineConfig(options.model, context_length=POSITIONS)
        oracle = ReferenceBackend(model, config, dtype=np.float64).forward_every(tokens, 0)
    log_p = log_softmax(oracle)
    print('| activations | logit error | mean KL, nats | same top token |')
    print('| --- | --- | --- | --- |')
    for kind in KINDS:
        with closing(GgufModel.open(options.model)) as model:
            backend = CudaBackend(
                open_device(0), model,
                EngineConfig(options.model, context_length=POSITIONS, q8_activations=kind),
                FastPaths())
        with closing(backend):
            logits = np.stack([
                backend.forward([token], at) for at, token in enumerate(tokens)])
        error = np.linalg.norm(logits - oracle) / np.linalg.norm(oracle)
        kl = np.sum(np.exp(log_p) * (log_p - log_softmax(logits.astype(np.float64))), axis=-1)
        same = np.mean(oracle.argmax(axis=-1) == logits.argmax(axis=-1))
        print(f'| {kind} | {error:.1e} | {kl.mean():.1e} | {same:.1%} |', flush=True)


if __name__ == '__main__':
    main()
