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

"""The launch file brings the node up by itself, once, and lets others take it down."""

import unittest

import harness
import launch_testing
from launch_testing.asserts import assertExitCodes
import pytest


@pytest.mark.launch_test
def generate_test_description():
    return harness.launch(
        'reflex_llm.launch.py', model=harness.tiny_model(), backend='cpu', name='talker',
        namespace='robot')


class TestAutostart(harness.LaunchedNode):

    server = '/robot/talker'

    def test_comes_up_and_does_not_bounce_back(self):
        self.wait_for_state('active')
        self.assert_answers()
        assert self.transition('deactivate')
        self.assert_stays('inactive')
        assert self.transition('activate')
        self.assert_answers()


@launch_testing.post_shutdown_test()
class TestEnd(unittest.TestCase):

    def test_the_node_ends_cleanly(self, proc_info):
        assertExitCodes(proc_info)
