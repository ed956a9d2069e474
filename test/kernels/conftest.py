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

"""Fixtures of the kernel tests: a device to run on, fresh random numbers."""

from collections.abc import Iterator
from typing import Any

import devices
import numpy as np
import pytest


@pytest.fixture(scope='session', params=[
    'shim', pytest.param('gpu', marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Run the test on the checked shim and, where there is one, on a GPU."""
    if request.param == 'gpu':
        cupy = pytest.importorskip('cupy', reason='CuPy is not installed')
        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            pytest.skip(f'no CUDA device: {error}')
        chosen: Any = devices.GpuDevice()
    else:
        chosen = devices.CheckedShim()
    yield chosen
    chosen.close()


@pytest.fixture(scope='session')
def shim() -> Iterator[devices.CheckedShim]:
    """Run the test on the checked shim only."""
    chosen = devices.CheckedShim()
    yield chosen
    chosen.close()


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers from a fresh seed, printed when the test fails."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f'seed {seed}')
    return np.random.default_rng(seed)
