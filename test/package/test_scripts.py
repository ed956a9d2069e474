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

"""The scripts say in plain words why they cannot go on, and trust no half made environment."""

import os
from pathlib import Path
import shutil
import subprocess

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy what the scripts touch before the first download."""
    for name in ('scripts', 'reflex_llm_ros', 'kernels', 'resource'):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    for name in ('setup.py', 'setup.cfg', 'package.xml'):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def refusal(checkout: Path, script: str, **variables: str) -> str:
    """Run a script without a ROS; it must fail; return what it says."""
    environment = {**os.environ, **variables}
    environment.pop('ROS_DISTRO', None)
    done = subprocess.run(
        [checkout / 'scripts' / script], env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize('script', ['demo', 'test'])
def test_no_network(checkout: Path, script: str) -> None:
    said = refusal(checkout, script, PIP_NO_INDEX='1', PIP_FIND_LINKS='')
    assert 'the network to reach PyPI' in said
    assert not list(checkout.glob('.venv*/.complete'))


def test_no_python(checkout: Path, tmp_path: Path) -> None:
    tools = tmp_path / 'bin'
    tools.mkdir()
    for name in ('bash', 'dirname', 'uname', 'rm', 'env'):
        (tools / name).symlink_to(str(shutil.which(name)))
    said = refusal(checkout, 'demo', PATH=str(tools), PYENV_ROOT=str(tmp_path))
    assert 'install such a Python with pip and venv' in said
