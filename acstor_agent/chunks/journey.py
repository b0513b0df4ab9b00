# SPDX-License-Identifier: Apache-2.0
"""How a chunk under way is being had: one place is asked after the other.

The one rule: the flight's own task and its rival take the next place off the
same list, so no place is asked by both.
"""

import collections

import trio

from acstor_agent.chunks import want as want_
from acstor_agent.core.exchange import errand as errand_
from acstor_agent.core.exchange import places
from acstor_common import errors
from acstor_common import ids


class Rival:
    """The task that asks the next place because the present one is slow."""

    __slots__ = ("ended", "scope")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.scope = trio.CancelScope()


class Journey:
    """The places that are left to ask for a chunk, and the present one.

    :param left: the places to ask, the best first
    """

    __slots__ = ("asked", "asked_s", "errand", "failures", "host", "left", "rival", "want")

    def __init__(self, want: want_.Want, errand: errand_.Errand, left: list[places.Place]) -> None:
        self.want = want
        self.errand = errand
        self.left = collections.deque(left)
        self.asked: list[places.Place] = []
        self.host: ids.HostId | None = None
        self.asked_s = 0.0
        self.failures: list[errors.AcstorError] = []
        self.rival: Rival | None = None

    def next_place(self, now: float) -> places.Place:
        """Return the place to ask now."""
        place = self.left.popleft()
        self.asked.append(place)
        self.host, self.asked_s = place.host, now
        return place

    def worst(self) -> errors.AcstorError:
        """Return the failure that leaves most hope: ChunkMissing only if no place leaves any."""
        return min(self.failures, key=_hopelessness)


def _hopelessness(failure: errors.AcstorError) -> int:
    """Return how little a failure leaves to wait for."""
    if isinstance(failure, errors.ChunkRefused):
        return 1
    return 2 if isinstance(failure, errors.ChunkMissing) else 0
