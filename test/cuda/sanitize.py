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
One prefill and 16 decode steps of generated models, for compute-sanitizer.

``compute-sanitizer --tool memcheck python test/cuda/sanitize.py`` and the same with
``--tool racecheck``. A first run without it fills the cache of compiled kernels.
"""

from dataclasses import replace
from pathlib import Path
import tempfile

import numpy as np
from reflex_llm_ros.engine.backends.cuda.opening import open_cuda_backend, open_device
from reflex_llm_ros.engine.backends.cuda.persistent import PersistentDecode
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import TINY
from reflex_llm_ros.synthetic.qwen3_gguf import generate

PROMPT = list(range(40))
STEPS = 16
WIDE = replace(
    TINY, embedding_length=512, feed_forward_length=1024, head_dim=128, vocab_size=512)
"""Large enough for the persistent decode kernel."""

RUNS = (
    (TINY, 'q4_k_m', {'kv_cache': 'f16'}),
    (TINY, 'q4_k_m', {'kv_cache': 'int8'}),
    (TINY, 'q8_0', {'q8_activations': 'a8x2'}),
    (WIDE, 'q4_k_m', {'gemv_activations': 'a8x2'}),
    (WIDE, 'q4_k_m', {'gemv_activations': 'a8'}),
    (WIDE, 'q4_k_m', {'kv_cache': 'int8'}),
)


def main() -> None:
    """Decode with each of the runs' models and settings."""
    for shape, mix, settings in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / 'model.gguf')
            generate(path, shape, mix=mix, seed=1)
            backend = open_cuda_backend(
                GgufModel.open(path), EngineConfig(path, context_length=128, **settings),
                open_device(0), lambda fraction, phrase: None)
            decode = backend.loaded().decode
            assert isinstance(decode, PersistentDecode) == (shape is WIDE)
            token = int(np.argmax(backend.forward(PROMPT, 0)))
            stream = backend.stream(token, len(PROMPT), True, lambda logits: 0)
            ids = [token, *(next(stream) for _ in range(STEPS - 1))]
            print(f'{mix} {settings} {type(decode).__name__}: {ids}', flush=True)
            assert backend.counters() == {}, backend.counters()
            backend.close()


if __name__ == '__main__':
    main()
