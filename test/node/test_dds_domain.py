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

"""Nodes of different tests must not meet."""

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
import os
import subprocess
import sys

import pytest
import rclpy
from rclpy.context import Context
from reflex_llm_ros.dds_domain import free_domain
from robot import REPOSITORY


@contextmanager
def participant(domain: int) -> Iterator[None]:
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = rclpy.create_node('occupant', context=context, enable_rosout=False)
    yield
    node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.fixture
def occupied() -> Iterator[int]:
    domain = free_domain()
    with participant(domain):
        yield domain


def test_a_domain_in_use_is_never_chosen(occupied: int) -> None:
    assert occupied not in {free_domain() for _ in range(250)}


def test_a_domain_is_in_use_as_long_as_anybody_is_left() -> None:
    domain = free_domain()
    with ExitStack() as first:
        first.enter_context(participant(domain))
        with participant(domain):
            first.close()
            assert domain not in {free_domain() for _ in range(250)}


def test_a_domain_that_was_chosen_does_not_come_again_soon() -> None:
    # A process that was given a domain may not have joined it yet.
    assert len({free_domain() for _ in range(50)}) == 50


def test_another_process_does_not_choose_what_was_chosen_here() -> None:
    chosen = free_domain()
    others = subprocess.run(
        [sys.executable, '-c', 'from reflex_llm_ros.dds_domain import free_domain\n'
         'print(*(free_domain() for _ in range(120)))'],
        cwd=REPOSITORY, text=True, capture_output=True, check=True)
    assert str(chosen) not in others.stdout.split()
    assert len(set(others.stdout.split())) > 50
