# SPDX-License-Identifier: Apache-2.0
"""Hosts that request chunks from this one, their connections and requests."""

from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_common.model import ids

Priority = priority.Priority


class Requester:
    """A host with requests to this one."""

    __slots__ = ("begun", "host", "links", "requests", "slots", "undelivered", "uploads")

    def __init__(self, host: ids.HostId, uploads: Any) -> None:
        self.host = host
        self.uploads = uploads  # the UploadScheduler of its answers
        self.links = self.requests = self.begun = self.slots = self.undelivered = 0


class RequesterLink:
    """A connection with requests: from its first request until it ends."""

    __slots__ = (
        *("alive_s", "peer_requests", "connection", "given", "is_due", "is_slow"),
        *("slots", "requester", "undelivered", "uploads", "watched_s"),
    )

    def __init__(self, connection: Hashable, requester: Requester) -> None:
        self.connection, self.requester = connection, requester
        self.uploads = requester.uploads
        self.peer_requests: dict[int, PendingRequest] = {}  # by number
        self.given: dict[int, ServedRequest] = {}  # from the cache and undelivered, by number
        self.slots = self.undelivered = 0
        self.is_due = self.is_slow = False  # a timer reclaims its slots; it lost them
        self.watched_s: float | None = None  # delivery is watched since then
        self.alive_s = 0.0  # time of the last keepalive


class ServedRequest(NamedTuple):
    """Chunks of a request that were given from the cache, with consecutive numbers."""

    number: int
    request: chunk_ref.Request
    refs: Sequence[chunk_ref.ChunkRef]
    priority: Priority
    deadline_s: float


class PendingRequest:
    """A pending request for one chunk: waits for a look-up, the bytes, or a slot."""

    __slots__ = (
        *("data", "deadline_s", "host", "link", "mode"),
        *("number", "priority", "request", "ref"),
    )

    def __init__(
        self, link: RequesterLink, request: chunk_ref.Request, number: int, deadline_s: float
    ) -> None:
        self.link, self.host = link, link.requester.host
        self.request, self.number = request, number
        self.mode, self.priority = request.mode, request.priority
        self.deadline_s = deadline_s
        self.ref: Any = None  # until it is authorized
        self.data: Any = None  # while missing, or if the cache has the bytes
