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

"""A model that cannot be loaded: the launch says so once and goes on."""

import logging
import unittest

import harness
import launch_testing
from launch_testing.asserts import assertExitCodes
import pytest

said: list[str] = []


class Listener(logging.Handler):
    """Keeps what the launch file logs."""

    def emit(self, record: logging.LogRecord):
        said.append(record.getMessage())


@pytest.mark.launch_test
def generate_test_description():
    logging.getLogger('reflex_llm.launch').addHandler(Listener())
    return harness.launch('reflex_llm.launch.py', model='missing.gguf')


class TestFailure(harness.LaunchedNode):

    def test_it_is_said_and_can_be_mended(self, proc_output):
        proc_output.assertWaitFor('missing.gguf', timeout=harness.PATIENCE_S, stream='stderr')
        harness.wait_for(lambda: bool(said), 'a word from the launch file')
        self.assert_stays('unconfigured')
        line, = said
        assert '/reflex_llm could not load its model' in line
        assert 'ros2 lifecycle set /reflex_llm configure' in line
        self.set_model(harness.tiny_model())
        assert self.transition('configure')
        # From here the launch goes on as if nothing had been.
        self.wait_for_state('active')
        self.assert_answers()


@launch_testing.post_shutdown_test()
class TestEnd(unittest.TestCase):

    def test_the_node_ends_cleanly(self, proc_info):
        assertExitCodes(proc_info)
