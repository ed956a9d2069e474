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

"""Style of the Python code, by ament_flake8 where there is one, else by flake8 with its rules."""

from importlib.util import find_spec
from pathlib import Path
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.flake8
@pytest.mark.linter
def test_flake8() -> None:
    if find_spec('ament_flake8'):
        from ament_flake8.main import main_with_errors
        rc, errors = main_with_errors(argv=[str(ROOT)])
        assert rc == 0, '\n'.join(errors)
    else:
        pytest.importorskip('flake8')
        run = subprocess.run(
            [sys.executable, '-m', 'flake8'], cwd=ROOT, text=True, capture_output=True)
        assert run.returncode == 0, run.stdout + run.stderr
