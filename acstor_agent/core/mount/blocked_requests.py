# SPDX-License-Identifier: Apache-2.0
"""Table of waiting guest requests, bounded by the mount's limit on concurrent requests."""

import dataclasses
from collections.abc import Hashable

from acstor_agent.core.disk_scheduling import request as requests


@dataclasses.dataclass(eq=False, slots=True)
class Wait:
    """One waiting request."""

    guest: requests.Stream
    since_s: float  # by the caller's clock
    token: Hashable
    why: str = ""  # last failure in words; empty if nothing failed


@dataclasses.dataclass(frozen=True, slots=True)
class LateWaits:
    """Requests of one guest or image that have waited for long."""

    count: int
    longest_s: float
    why: str

    def joined(self, other: "LateWaits") -> "LateWaits":
        """Return the sum of both.

        >>> LateWaits(2, 7.0, "").joined(LateWaits(1, 6.0, "refused"))
        LateWaits(count=3, longest_s=7.0, why='refused')
        """
        older, newer = sorted((self, other), key=lambda late: -late.longest_s)
        why = older.why or newer.why
        return LateWaits(self.count + other.count, older.longest_s, why)


class BlockedRequests:
    """All waiting requests, oldest first.

    >>> waits, guest = BlockedRequests(), requests.Stream(requests.Klass.GUEST, "an image/8")
    >>> first = waits.begin_request(guest, 10.0, "a")
    >>> second = waits.begin_request(guest, 12.0, "b")
    >>> second.why = "refused"
    >>> waits.late_guests(13.0, 2.0)[guest], waits.late_guests(14.0, 2.0)[guest]
    (LateWaits(count=1, longest_s=3.0, why=''), LateWaits(count=2, longest_s=4.0, why='refused'))
    >>> waits.end_request(first)
    >>> [wait.token for wait in waits.requests_of_guest(guest)], len(waits)
    (['b'], 1)
    """

    def __init__(self) -> None:
        self._all: dict[Wait, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def begin_request(self, guest: requests.Stream, now_s: float, token: Hashable) -> Wait:
        """Add a waiting request."""
        wait = Wait(guest, now_s, token)
        self._all[wait] = None
        return wait

    def end_request(self, wait: Wait) -> None:
        """Remove an answered request."""
        self._all.pop(wait, None)

    def requests_of_guest(self, guest: requests.Stream) -> list[Wait]:
        """Return the requests of a guest."""
        return [wait for wait in self._all if wait.guest == guest]

    def late_guests(self, now_s: float, for_s: float) -> dict[requests.Stream, LateWaits]:
        """Return the guests with requests that waited ``for_s``; any thread may call it."""
        found: dict[requests.Stream, LateWaits] = {}
        for wait in self._all.copy():
            waited_s = now_s - wait.since_s
            if waited_s < for_s:
                break
            late = LateWaits(1, waited_s, wait.why)
            known = found.get(wait.guest)
            found[wait.guest] = known.joined(late) if known else late
        return found
