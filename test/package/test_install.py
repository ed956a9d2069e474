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

"""The package can be installed with pip and with colcon, and what was installed runs."""

from collections.abc import Iterator
import os
from pathlib import Path
import shutil
import subprocess
import sys
import venv

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = shutil.ignore_patterns('.*', '__pycache__', '*.egg-info', 'build', 'install', 'log')
EXECUTABLES = ('reflex_llm_node', 'reflex_llm_chat', 'reflex_llm_inspect', 'reflex_llm_bench')
# What rosdep and pip would have put into a robot's system Python.
LIBRARIES = os.pathsep.join(
    path for path in sys.path if path.endswith(('site-packages', 'dist-packages')))
LIST_KERNELS = """
from importlib.resources import files
print(*sorted(p.name for p in (files('reflex_llm_ros') / 'kernels').iterdir()
              if p.name.endswith(('.cu', '.cuh'))))
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command and return what it wrote; it must succeed."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, timeout=280,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f'{command} -> {done.returncode}\n{done.stdout}'
    return done.stdout


def kernels_in(source: Path) -> list[str]:
    """Return the names of the kernels among the sources."""
    return sorted(p.name for p in (source / 'kernels').iterdir() if p.suffix in ('.cu', '.cuh'))


@pytest.fixture(scope='module')
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources, so that no build lands in the checkout."""
    copy = tmp_path_factory.mktemp('ws') / 'src' / 'reflex_llm_ros'
    shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_SOURCE)
    return copy


@pytest.fixture(scope='module')
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment that holds nothing but colcon and has no ROS."""
    folder = tmp_path_factory.mktemp('venv')
    venv.create(folder, with_pip=True)
    interpreter = folder / 'bin' / 'python'
    # colcon runs `setup.py develop`, whose options setuptools 80 has dropped.
    run(interpreter, '-m', 'pip', 'install', '-q', 'colcon-common-extensions', 'pytest',
        'setuptools<80', cwd=folder)
    return interpreter


@pytest.fixture
def environment(python: Path) -> Iterator[dict[str, str]]:
    """Variables of a shell in that environment, clean of this test's own environment."""
    env = {name: value for name, value in os.environ.items()
           if name not in ('PYTHONPATH', 'LD_LIBRARY_PATH', 'VIRTUAL_ENV')
           and not name.startswith(('_ROS', 'AMENT', 'COLCON'))}
    env['PATH'] = f'{python.parent}{os.pathsep}{env["PATH"]}'
    yield env


def test_pip_install_without_ros(
        source: Path, python: Path, environment: dict[str, str], tmp_path: Path) -> None:
    run(python, '-m', 'pip', 'install', '-q', source, cwd=tmp_path, env=environment)
    installed = run(python, '-c', LIST_KERNELS, cwd=tmp_path, env=environment).split()
    assert installed == kernels_in(source)
    run(python, '-c', 'from reflex_llm_ros.engine import Engine', cwd=tmp_path, env=environment)
    usage = run(python.parent / 'reflex_llm_inspect', '--help', cwd=tmp_path, env=environment)
    assert 'reflex_llm_inspect' in usage
    marker = python.parents[1] / 'share/ament_index/resource_index/packages/reflex_llm_ros'
    assert marker.is_file()
    share = python.parents[1] / 'share' / 'reflex_llm_ros'
    assert (share / 'launch' / 'reflex_llm.launch.py').is_file()
    assert (share / 'config' / 'reflex_llm.yaml').is_file()
    run(python, '-m', 'pip', 'uninstall', '-q', '-y', 'reflex_llm_ros', cwd=tmp_path,
        env=environment)


@pytest.mark.parametrize('options', [[], ['--symlink-install']], ids=['copy', 'symlink'])
def test_colcon_build(
        source: Path, python: Path, environment: dict[str, str], options: list[str],
        tmp_path: Path) -> None:
    run(python.parent / 'colcon', 'build', *options, '--base-paths', source,
        '--build-base', tmp_path / 'build', '--install-base', tmp_path / 'install',
        cwd=tmp_path, env=environment)
    prefix = tmp_path / 'install' / 'reflex_llm_ros'
    assert (prefix / 'share/ament_index/resource_index/packages/reflex_llm_ros').is_file()
    for name in EXECUTABLES:
        assert os.access(prefix / 'lib' / 'reflex_llm_ros' / name, os.X_OK)

    environment['PYTHONPATH'] = LIBRARIES
    setup = f'source {tmp_path}/install/setup.bash && '
    executable = prefix / 'lib' / 'reflex_llm_ros' / 'reflex_llm_inspect'
    usage = run('bash', '-c', f'{setup} {executable} --help', cwd=tmp_path, env=environment)
    assert 'reflex_llm_inspect' in usage
    listing = run(
        'bash', '-c', f'{setup} python -c "$0"', LIST_KERNELS, cwd=tmp_path, env=environment)
    assert listing.split() == kernels_in(source)


def test_colcon_test(
        source: Path, python: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """The verb that users' CI runs finds pytest, the tests and their result."""
    bases = ['--build-base', tmp_path / 'build', '--install-base', tmp_path / 'install']
    colcon = python.parent / 'colcon'
    run(colcon, 'build', '--base-paths', source, *bases, cwd=tmp_path, env=environment)
    environment['PYTHONPATH'] = LIBRARIES
    run(colcon, 'test', '--base-paths', source, *bases, '--pytest-args',
        'test/lint/test_copyright.py::test_every_file_has_the_notice', cwd=tmp_path,
        env=environment)
    result = run(colcon, 'test-result', '--test-result-base', tmp_path / 'build', '--all',
                 cwd=tmp_path, env=environment)
    assert 'Summary: 1 test, 0 errors, 0 failures, 0 skipped' in result
