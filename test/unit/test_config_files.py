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

"""The parameter files say what the node declares, no more and no less."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip('rcl_interfaces', reason='the parameter table needs the ROS messages')

from reflex_llm_ros.parameters import reason_against, TABLE  # noqa: E402, I100

CONFIG = Path(__file__).resolve().parents[2] / 'config'


def parameters(name: str) -> dict:
    """Return the parameters of a file, which must hold for a node of any name."""
    content = yaml.safe_load((CONFIG / name).read_text(encoding='utf-8'))
    assert list(content) == ['/**']
    assert list(content['/**']) == ['ros__parameters']
    return content['/**']['ros__parameters']


def test_reflex_llm_yaml_has_every_parameter_with_its_default_and_type():
    in_file = {name: (type(value), value) for name, value in parameters('reflex_llm.yaml').items()}
    declared = {row.name: (type(row.default), row.default) for row in TABLE}
    assert in_file == declared


@pytest.mark.parametrize('path', sorted(CONFIG.glob('*.yaml')), ids=lambda path: path.name)
def test_every_value_is_one_that_the_node_takes(path):
    values = parameters(path.name)
    assert set(values) <= {row.name for row in TABLE}
    assert reason_against(values, {}, unconfigured=True) == ''


@pytest.mark.parametrize('name', ['orin_nano.yaml', 'orin_agx.yaml'])
def test_a_device_file_sets_a_model_and_bounds_its_memory(name):
    values = parameters(name)
    assert values['model.path'].endswith('.gguf')
    assert values['context.memory_limit_mb'] > 0
