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

"""Every source file names its copyright holder and carries the licence notice."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ('benchmarks', 'kernels', 'launch', 'reflex_llm_ros', 'scripts', 'test')
SUFFIXES = {'.py', '.cu', '.cuh', '.h', '.sh'}
NOTICE = 'Licensed under the Apache License, Version 2.0 (the "License");'


def source_files() -> list[Path]:
    """Return the files with a source suffix and the scripts with a shebang line."""
    files = [ROOT / 'setup.py']
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob('*'):
            if path.is_file() and '__pycache__' not in path.parts and (
                    path.suffix in SUFFIXES or path.read_bytes()[:2] == b'#!'):
                files.append(path)
    return files


@pytest.mark.copyright
@pytest.mark.linter
def test_every_file_has_the_notice() -> None:
    missing = []
    for path in source_files():
        # The notice stands in the first lines, after a shebang line at most.
        head = path.read_text().splitlines()[:6]
        if not (any('Copyright 20' in line for line in head)
                and any(NOTICE in line for line in head)):
            missing.append(str(path.relative_to(ROOT)))
    assert not missing, f'no Apache-2.0 header: {missing}'


@pytest.mark.copyright
@pytest.mark.linter
def test_ament_copyright() -> None:
    ament_copyright = pytest.importorskip(
        'ament_copyright.main', reason='no ament: test_every_file_has_the_notice checks')
    assert ament_copyright.main(argv=[str(ROOT)]) == 0
