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
One prefill and 16 decode steps of a generated model, for compute-sanitizer.

``compute-sanitizer --tool memcheck python test/cuda/sanitize.py`` and the same with
``--tool racecheck``.
"""

from pathlib import Path
import tempfile

import numpy as np
from reflex_llm_ros.engine.backends.cuda.opening import open_cuda_backend, open_device
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.gguf_model import GgufModel
from reflex_llm_ros.synthetic.model_shape import PRESETS
from reflex_llm_ros.synthetic.qwen3_gguf import generate

PROMPT = list(range(40))
STEPS = 16


def main() -> None:
    """Run on float16 and on int8 caches."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / 'tiny.gguf')
        generate(path, PRESETS['tiny'], seed=1)
        for kv_cache in ('f16', 'int8'):
            backend = open_cuda_backend(
                GgufModel.open(path),
                EngineConfig(path, context_length=128, kv_cache=kv_cache),
                open_device(0), lambda fraction, phrase: None)
            token = int(np.argmax(backend.forward(PROMPT, 0)))
            stream = backend.stream(token, len(PROMPT), True, lambda logits: 0)
            print(kv_cache, [token, *(next(stream) for _ in range(STEPS - 1))])
            backend.close()


if __name__ == '__main__':
    main()
