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

"""The requests that wait for the engine: who goes first, and who goes when it is full."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from reflex_llm_ros.engine.request import Done
from reflex_llm_ros.protocol import Error, Request


@dataclass(frozen=True)
class QueueLimits:
    """How many requests may wait, and whether a full queue rejects or drops its oldest."""

    size: int
    drop_oldest: bool


class Ticket:
    """
    A request that waits or runs.

    ``events`` counts those told so far; ``ending`` is how the request is to end when it is
    cut short.
    """

    def __init__(self, request: Request, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.events = 0
        self.ending: Done | Error | None = None

    @property
    def rank(self) -> tuple[bool, int]:
        """Compare two requests' claims to the engine."""
        return self.request.interrupt, self.request.priority

    @property
    def turn(self) -> tuple[int, int, int]:
        """Sort by turn: the newest interrupt first, then by priority, then by arrival."""
        if self.request.interrupt:
            return 0, 0, -self.arrival
        return 1, -self.request.priority, self.arrival

    def cut_short(self, ending: Done | Error) -> None:
        """End early; the first to say so says how."""
        self.ending = self.ending or ending


class RequestQueue:
    """A bounded priority queue. Not synchronized: its user holds a lock."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def add(self, ticket: Ticket) -> int:
        """Put a ticket where its turn is, and return that position."""
        insort(self._tickets, ticket, key=lambda waiting: waiting.turn)
        return self._tickets.index(ticket)

    def who_yields(self, newcomer: Ticket, limits: QueueLimits) -> Ticket:
        """
        Decide who is refused when the queue is full.

        Either the newcomer itself or, where the limits say so or it interrupts, the oldest
        of the lowest in rank. Nobody yields to a newcomer of lower rank.
        """
        if not (limits.drop_oldest or newcomer.request.interrupt):
            return newcomer
        lower = [ticket for ticket in self._tickets if ticket.rank <= newcomer.rank]
        return min(lower, key=lambda ticket: (ticket.rank, ticket.arrival), default=newcomer)

    def take(self) -> Ticket | None:
        """Take out the ticket whose turn it is."""
        return self._tickets.pop(0) if self._tickets else None

    def remove(self, request_id: str) -> Ticket | None:
        """Take out the ticket of a request."""
        for index, ticket in enumerate(self._tickets):
            if ticket.request.id == request_id:
                return self._tickets.pop(index)
        return None

    def clear(self) -> list[Ticket]:
        """Take out all tickets, in turn."""
        tickets, self._tickets = self._tickets, []
        return tickets
