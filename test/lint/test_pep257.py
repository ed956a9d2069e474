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

"""Docstrings by ament_pep257. Without ament, flake8-docstrings has the same rules."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.linter
@pytest.mark.pep257
def test_pep257() -> None:
    ament_pep257 = pytest.importorskip(
        'ament_pep257.main', reason='no ament: test_flake8 covers docstrings')
    assert ament_pep257.main(argv=[str(ROOT / 'reflex_llm_ros'), str(ROOT / 'test')]) == 0
