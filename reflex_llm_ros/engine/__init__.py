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
"""The inference engine; nothing below here knows of ROS."""

from reflex_llm_ros.engine.config import EngineConfig, FastPaths, SamplingParams
from reflex_llm_ros.engine.engine import Engine, EngineInfo
from reflex_llm_ros.engine.request import (
    Done,
    Event,
    GenerateRequest,
    Message,
    Reasoning,
    Started,
    Token,
)

__all__ = [
    'Done', 'Engine', 'EngineConfig', 'EngineInfo', 'Event', 'FastPaths', 'GenerateRequest',
    'Message', 'Reasoning', 'SamplingParams', 'Started', 'Token',
]
