# SPDX-License-Identifier: Apache-2.0
"""Hosts that request chunks from this one, their connections, and their pending requests."""

from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority as priority_
from acstor_common.model import ids


class Requester:
    """A host that asks.

    :ivar links: its connections; ``requests``: what waits on them
    :ivar begun: transfers that go on because it asked
    :ivar undelivered: bytes of answers that are in their turn, or on their way
    """

    __slots__ = ("begun", "host", "links", "places", "requests", "undelivered")

    def __init__(self, host: ids.HostId) -> None:
        self.host = host
        self.links = self.requests = self.begun = self.places = self.undelivered = 0


class RequesterLink:
    """A connection on which a host asks: from its first request until it ends.

    :ivar askers: its requests that wait, by their numbers
    :ivar given: by number what was given from the cache, until that is delivered
    :ivar places: on the uplink that its answers take
    :ivar undelivered: bytes that are on their way
    :ivar watched_s: since when it is known how long they take; None: it is not looked after
    :ivar is_due: it is looked at when the time of its places is over
    :ivar alive_s: when it was last said that requests are being worked on
    """

    __slots__ = (
        *("alive_s", "askers", "connection", "given", "is_due", "is_slow"),
        *("places", "receiver", "undelivered", "watched_s"),
    )

    def __init__(self, connection: Hashable, receiver: Requester) -> None:
        self.connection, self.receiver = connection, receiver
        self.askers: dict[int, PendingRequest] = {}
        self.given: dict[int, ServedRequest] = {}
        self.places = self.undelivered = 0
        self.is_due = self.is_slow = False
        self.watched_s: float | None = None
        self.alive_s = 0.0


class ServedRequest(NamedTuple):
    """Chunks of a request that were given from the cache.

    :param number: of the first of them
    """

    number: int
    request: chunk_ref.Request
    wants: Sequence[chunk_ref.ChunkRef]
    priority: priority_.Priority
    deadline_s: float


class PendingRequest:
    """A request that waits: for what its image names, for a content, or for its turn.

    One for each chunk of a request.

    :ivar want: None until it was authorized
    :ivar data: what came; None while nothing did, or where the cache has it
    """

    __slots__ = (
        *("data", "deadline_s", "host", "link", "mode"),
        *("number", "priority", "request", "want"),
    )

    def __init__(
        self, link: RequesterLink, request: chunk_ref.Request, number: int, deadline_s: float
    ) -> None:
        self.link, self.host = link, link.receiver.host
        self.request, self.number = request, number
        self.mode, self.priority = request.mode, request.priority
        self.deadline_s = deadline_s
        self.want: Any = None
        self.data: Any = None
