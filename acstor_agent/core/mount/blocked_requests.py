# SPDX-License-Identifier: Apache-2.0
"""The requests of guests that wait: whose they are, since when, and what for.

The one rule: a request is in the table from its first wait until it is answered, whatever it waits
for.  There are no more than the mount works on at a time.
"""

import dataclasses
from collections.abc import Hashable

from acstor_agent.core.disk_scheduling import request as requests


@dataclasses.dataclass(eq=False, slots=True)
class Wait:
    """One request that waits.

    :param since_s: of the clock that was given
    :param token: whatever ends it
    :param why: the last failure in words; empty while nothing has failed
    """

    guest: requests.Stream
    since_s: float
    token: Hashable
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LateWaits:
    """The requests of one guest, or of all of one image, that have waited for long.

    :param why: what the oldest of which that is known waits for
    """

    count: int
    longest_s: float
    why: str

    def joined(self, other: "LateWaits") -> "LateWaits":
        """Return what both are together.

        >>> LateWaits(2, 7.0, "").joined(LateWaits(1, 6.0, "refused"))
        LateWaits(count=3, longest_s=7.0, why='refused')
        """
        older, newer = sorted((self, other), key=lambda late: -late.longest_s)
        why = older.why or newer.why
        return LateWaits(self.count + other.count, older.longest_s, why)


class BlockedRequests:
    """All requests that wait, the oldest first.

    >>> waits, guest = BlockedRequests(), requests.Stream(requests.Klass.GUEST, "an image/8")
    >>> first = waits.begin(guest, 10.0, "a")
    >>> second = waits.begin(guest, 12.0, "b")
    >>> second.why = "refused"
    >>> waits.late(13.0, 2.0)[guest], waits.late(14.0, 2.0)[guest]
    (LateWaits(count=1, longest_s=3.0, why=''), LateWaits(count=2, longest_s=4.0, why='refused'))
    >>> waits.end(first)
    >>> [wait.token for wait in waits.of(guest)], len(waits)
    (['b'], 1)
    """

    def __init__(self) -> None:
        self._all: dict[Wait, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def begin_request(self, guest: requests.Stream, now_s: float, token: Hashable) -> Wait:
        """Note that a request waits.

        :param now_s: of a clock that never goes back
        """
        wait = Wait(guest, now_s, token)
        self._all[wait] = None
        return wait

    def end_request(self, wait: Wait) -> None:
        """Note that a request is answered."""
        self._all.pop(wait, None)

    def requests_of_guest(self, guest: requests.Stream) -> list[Wait]:
        """Return the requests of a guest."""
        return [wait for wait in self._all if wait.guest == guest]

    def late_guests(self, now_s: float, for_s: float) -> dict[requests.Stream, LateWaits]:
        """Return the guests with requests that have waited for so long; from any thread."""
        found: dict[requests.Stream, LateWaits] = {}
        for wait in self._all.copy():
            waited_s = now_s - wait.since_s
            if waited_s < for_s:
                break
            late = LateWaits(1, waited_s, wait.why)
            known = found.get(wait.guest)
            found[wait.guest] = known.joined(late) if known else late
        return found
