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

"""Errors that the engine raises, each with the code that its users see."""


class EngineError(Exception):
    """
    An error with a code and one line that says what is wrong and what to do.

    The codes are those of the ROS interface: ``bad_request``, ``context_overflow``,
    ``out_of_memory`` and ``engine_error``.
    """

    code = 'engine_error'


class ModelFileError(EngineError):
    """The GGUF file is missing, damaged or of a kind that the engine cannot run."""


class BadRequestError(EngineError):
    """A request has a field that cannot be honoured; the message names it."""

    code = 'bad_request'


class ContextOverflowError(EngineError):
    """The prompt does not fit into the context; the message says how many tokens do."""

    code = 'context_overflow'


class OutOfMemoryError(EngineError):
    """Weights, cache and scratch do not fit into the memory that is free."""

    code = 'out_of_memory'


class DeviceError(EngineError):
    """A call of the device's driver failed; the message is the driver's name for it."""
