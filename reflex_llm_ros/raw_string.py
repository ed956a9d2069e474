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

"""The text of a String message as it came over the wire."""

from rclpy.serialization import deserialize_message
from reflex_llm_ros.protocol import RequestError
from std_msgs.msg import String


def text_of(raw: bytes) -> str:
    """
    Return the text of a serialized String.

    rclpy replaces what is no UTF-8 without saying so; the serialized message tells.
    """
    try:
        text: str = deserialize_message(raw, String).data
    except Exception as error:
        raise RequestError(f'the message cannot be read: {error}') from None
    if '\N{REPLACEMENT CHARACTER}' in text and text.encode() not in raw:
        raise RequestError('the message is not valid UTF-8')
    return text
