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

"""A DDS domain of one's own: for a demo or a test that must not meet the robot's graph."""

from collections import deque
from itertools import cycle, islice
import random
import socket

# The ports of higher domains are among those that Linux gives to anyone who asks.
_DOMAINS = 100
_PARTICIPANTS = 8
_LATEST = 8
_turns = cycle(random.sample(range(1, _DOMAINS + 1), _DOMAINS))
_claims: deque[socket.socket] = deque()


def _bind(domain: int, offset: int) -> socket.socket | None:
    """Take one of a domain's UDP ports; None where somebody has it."""
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        port.bind(('', 7400 + 250 * domain + offset))
    except OSError:
        port.close()
        return None
    return port


def _occupied(domain: int) -> bool:
    """Look at the ports where a domain's first participants listen (DDSI-RTPS 2.5, 9.6.2.3).

    The first one's is not enough: who came later may have outlived it.
    """
    for number in range(_PARTICIPANTS):
        listener = _bind(domain, 10 + 2 * number)
        if listener is None:
            return True
        listener.close()
    return False


def free_domain() -> int:
    """Choose a domain that no process of this machine is in and that was not chosen lately.

    Returns
    -------
    domain : int
        From 1 to 100, for ``ROS_DOMAIN_ID``.

    Raises
    ------
    RuntimeError
        If every domain is in use.

    """
    for domain in islice(_turns, _DOMAINS):
        # The last port of a domain, which no participant takes, is kept for a while: who has it
        # will join.
        claim = _bind(domain, 249)
        if claim is None:
            continue
        if _occupied(domain):
            claim.close()
            continue
        _claims.append(claim)
        if len(_claims) > _LATEST:
            _claims.popleft().close()
        return domain
    raise RuntimeError(f'each of the DDS domains 1 to {_DOMAINS} is in use on this machine')
