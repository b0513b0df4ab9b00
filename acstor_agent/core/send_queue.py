# SPDX-License-Identifier: Apache-2.0
"""Send queue of a connection to a peer (Nicolae 2016, 3.2).

Requests that guests wait for go first, then announcements, then requests of low priority. But one
of LOWER_EVERY turns, each an announcement or a message of requests, goes to a lower kind. Each kind
is first in, first out: of two announcements of a content the later one is true.
"""

import collections
import enum
from collections.abc import Iterable

from acstor_common.wire.peer import peer_wire

LOWER_EVERY = 4


class EntryKind(enum.IntEnum):
    """Kinds of entries, most urgent first."""

    URGENT = 0
    ANNOUNCEMENT = 1
    BACKGROUND = 2


_KINDS = tuple(EntryKind)
Turn = list[peer_wire.ChunkRequest] | peer_wire.Notification


class SendQueue:
    """Entries that were not sent yet.

    >>> queue = SendQueue()
    >>> queue.queue_announcement(peer_wire.Advertise(((1, 1),)))
    >>> queue.pop_next().chunks, queue.pop_next()
    (((1, 1),), None)
    """

    __slots__ = (
        "_announcements",
        "_background",
        "_first_in_a_row",
        "_last_lower",
        "_left",
        "_urgent",
    )

    def __init__(self) -> None:
        self._urgent: dict[int, peer_wire.ChunkRequest] = {}
        self._background: dict[int, peer_wire.ChunkRequest] = {}
        self._left: dict[int, peer_wire.ChunkRequest] = {}  # by the chunks that are still wanted
        self._announcements: collections.deque[peer_wire.Notification] = collections.deque()
        self._first_in_a_row = 0
        self._last_lower = EntryKind.BACKGROUND

    def __bool__(self) -> bool:
        return bool(self._urgent or self._announcements or self._background)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._left

    @property
    def announcement_count(self) -> int:
        """Number of queued announcements."""
        return len(self._announcements)

    def queue_requests(self, requests: Iterable[peer_wire.ChunkRequest]) -> None:
        """Queue requests."""
        for request in requests:
            is_background = request.priority is peer_wire.Priority.PREFETCH
            (self._background if is_background else self._urgent)[request.request_id] = request
            self._left.update(dict.fromkeys(request.numbers, request))

    def queue_announcement(self, notification: peer_wire.Notification) -> None:
        """Queue an announcement."""
        self._announcements.append(notification)

    def raise_priority(self, request_id: int) -> None:
        """Move a request, if it is still queued, to those that guests wait for."""
        request = self._left.get(request_id)
        if request is not None and self._background.pop(request.request_id, None) is not None:
            self._urgent[request.request_id] = request

    def drop_chunk(self, request_id: int) -> bool:
        """Drop a chunk; return whether its request is dropped: it stays while it has others."""
        request = self._left.pop(request_id, None)
        if request is None or any([number in self._left for number in request.numbers]):
            return False
        requests = self._background if request.request_id in self._background else self._urgent
        return requests.pop(request.request_id, None) is not None

    def clear(self) -> None:
        """Drop all entries."""
        self._urgent.clear()
        self._announcements.clear()
        self._background.clear()
        self._left.clear()

    def pop_next(self) -> Turn | None:
        """Remove and return the next turn: requests or one announcement; None if empty."""
        waiting = self._urgent, self._announcements, self._background
        kinds = [kind for kind in _KINDS if waiting[kind]]
        if not kinds:
            return None
        kind = kinds[0]
        if len(kinds) == 1:
            self._first_in_a_row = 0
        elif self._first_in_a_row >= LOWER_EVERY - 1:
            kind = self._last_lower = next(
                (lower for lower in kinds[1:] if lower != self._last_lower), kinds[-1]
            )
            self._first_in_a_row = 0
        else:
            self._first_in_a_row += 1
        if kind is EntryKind.ANNOUNCEMENT:
            return self._announcements.popleft()
        requests = self._urgent if kind is EntryKind.URGENT else self._background
        return self._take_requests(requests)

    def _take_requests(
        self, requests: dict[int, peer_wire.ChunkRequest]
    ) -> list[peer_wire.ChunkRequest]:
        turn: list[peer_wire.ChunkRequest] = []
        chunks = 0
        for request in requests.values():
            chunks += request.chunk_count
            if turn and chunks > peer_wire.MAX_BATCH:
                break
            turn.append(request)
        for request in turn:
            del requests[request.request_id]
            for number in request.numbers:
                self._left.pop(number, None)
        return turn
