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

"""The package manifest and the change log follow their formats and agree with setup.py."""

import ast
from pathlib import Path
import re

import pytest

ROOT = Path(__file__).resolve().parents[2]


def setup_version() -> str:
    """Return the version in setup.py without running it."""
    call = next(
        node for node in ast.walk(ast.parse((ROOT / 'setup.py').read_text()))
        if isinstance(node, ast.keyword) and node.arg == 'version')
    return str(ast.literal_eval(call.value))


@pytest.mark.linter
@pytest.mark.xmllint
def test_ament_xmllint() -> None:
    ament_xmllint = pytest.importorskip(
        'ament_xmllint.main', reason='no ament: test_manifest checks')
    assert ament_xmllint.main(argv=[str(ROOT / 'package.xml')]) == 0


@pytest.mark.linter
def test_manifest() -> None:
    package_module = pytest.importorskip('catkin_pkg.package')
    warnings: list[str] = []
    package = package_module.parse_package(str(ROOT), warnings=warnings)
    package.validate(warnings=warnings)
    assert not warnings
    assert package.package_format == 3
    assert package.version == setup_version()
    assert [e.content for e in package.exports if e.tagname == 'build_type'] == ['ament_python']


@pytest.mark.linter
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_changelog() -> None:
    changelog_module = pytest.importorskip('catkin_pkg.changelog')
    released = [v for v, _, _ in changelog_module.get_changelog_from_path(
        str(ROOT)).foreach_version()]
    titles = re.findall(r'^(.+)\n-+$', (ROOT / 'CHANGELOG.rst').read_text(), re.MULTILINE)
    assert len(released) == len(titles) - titles.count('Forthcoming')
    assert titles[0] == 'Forthcoming' or released[0] == setup_version()


@pytest.mark.linter
def test_manifest_names_every_ros_import() -> None:
    """Each ROS package that the code imports is a dependency in package.xml."""
    package_module = pytest.importorskip('catkin_pkg.package')
    package = package_module.parse_package(str(ROOT))
    declared = {d.name for d in package.exec_depends}
    imported = set()
    for folder in ('reflex_llm_ros', 'launch'):
        for path in (ROOT / folder).rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    imported.add(node.module.split('.')[0])
                elif isinstance(node, ast.Import):
                    imported.update(alias.name.split('.')[0] for alias in node.names)
    ros = {name for name in imported
           if name.endswith('_msgs') or name in (
               'ament_index_python', 'launch', 'launch_ros', 'rclpy', 'std_srvs',
               'rcl_interfaces')}
    assert ros <= declared, f'missing in package.xml: {sorted(ros - declared)}'
