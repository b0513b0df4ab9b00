# SPDX-License-Identifier: Apache-2.0
"""What leaves first on a connection to a peer, of all that has not left yet (Nicolae 2016, 3.2).

The rules: requests for what guests wait for, or are about to read, go before news, and news
before requests that nobody waits for; but of LOWER_EVERY turns one is that of a lower kind, those
kinds in turn, so nothing starves.  A turn is one piece of news, or as many requests as a message
may hold.  Within a kind all leave in the order in which they came up: of two pieces of news about a
content the later one is true.
"""

import collections
import enum
from collections.abc import Iterable

from acstor_common.wire import peer_wire

LOWER_EVERY = 4


class Kind(enum.IntEnum):
    """The kinds, the one that goes first before the others."""

    WANTED = 0
    NEWS = 1
    LATER = 2


_KINDS = tuple(Kind)
Turn = list[peer_wire.Request] | peer_wire.News


class SendQueue:
    """What has not left yet.

    >>> outgoing = SendQueue()
    >>> outgoing.tell(peer_wire.Advertise(((1, 1),)))
    >>> outgoing.take().chunks
    ((1, 1),)
    >>> outgoing.take() is None
    True
    """

    __slots__ = ("_first_in_a_row", "_last_lower", "_later", "_left", "_news", "_wanted")

    def __init__(self) -> None:
        self._wanted: dict[int, peer_wire.Request] = {}
        self._later: dict[int, peer_wire.Request] = {}
        self._left: dict[int, peer_wire.Request] = {}  # by the chunks that are still wanted
        self._news: collections.deque[peer_wire.News] = collections.deque()
        self._first_in_a_row = 0
        self._last_lower = Kind.LATER

    def __bool__(self) -> bool:
        return bool(self._wanted or self._news or self._later)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._left

    @property
    def news(self) -> int:
        """How many pieces of news wait."""
        return len(self._news)

    def queue_requests(self, requests: Iterable[peer_wire.Request]) -> None:
        """Let requests wait for their turn."""
        for request in requests:
            is_later = request.priority is peer_wire.Priority.LATER
            (self._later if is_later else self._wanted)[request.request_id] = request
            self._left.update(dict.fromkeys(request.numbers, request))

    def queue_announcements(self, news: peer_wire.News) -> None:
        """Let news wait for their turn."""
        self._news.append(news)

    def raise_priority(self, request_id: int) -> None:
        """Let a request, if it still waits, go with those that guests wait for."""
        request = self._left.get(request_id)
        if request is not None and self._later.pop(request.request_id, None) is not None:
            self._wanted[request.request_id] = request

    def drop_request(self, request_id: int) -> bool:
        """Note that a chunk is not wanted any more; say whether it will not be asked for.

        It will if other chunks of its request are wanted: the proof is for all of them.
        """
        request = self._left.pop(request_id, None)
        if request is None or any([number in self._left for number in request.numbers]):
            return False
        some = self._later if request.request_id in self._later else self._wanted
        return some.pop(request.request_id, None) is not None

    def clear(self) -> None:
        """Let nothing wait any more."""
        self._wanted.clear()
        self._news.clear()
        self._later.clear()
        self._left.clear()

    def pop_next(self) -> Turn | None:
        """Return what is next: requests, one piece of news, or None if nothing waits."""
        waiting = self._wanted, self._news, self._later
        kinds = [kind for kind in _KINDS if waiting[kind]]
        if not kinds:
            return None
        kind = kinds[0]
        if len(kinds) == 1:
            self._first_in_a_row = 0
        elif self._first_in_a_row >= LOWER_EVERY - 1:
            kind = self._last_lower = next(
                (one for one in kinds[1:] if one != self._last_lower), kinds[-1]
            )
            self._first_in_a_row = 0
        else:
            self._first_in_a_row += 1
        if kind is Kind.NEWS:
            return self._news.popleft()
        some = self._wanted if kind is Kind.WANTED else self._later
        return self._take_requests(some)

    def _take_requests(self, some: dict[int, peer_wire.Request]) -> list[peer_wire.Request]:
        turn: list[peer_wire.Request] = []
        chunks = 0
        for request in some.values():
            chunks += request.chunks
            if turn and chunks > peer_wire.MAX_BATCH:
                break
            turn.append(request)
        for request in turn:
            del some[request.request_id]
            for number in request.numbers:
                self._left.pop(number, None)
        return turn
