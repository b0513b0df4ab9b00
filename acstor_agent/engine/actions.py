# SPDX-License-Identifier: Apache-2.0
"""Actions: what the caller of the engine must do, in batches."""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.wire.peer import peer_request

Priority = priority.Priority

Failure = failure.Failure


class RequestChunks(NamedTuple):
    """Send one request for all attempts; set ``connection`` of each one."""

    host: ids.HostId
    attempts: list[transfer.Attempt]

    def iter_chunks(self) -> Iterator[tuple[int, chunk_ref.ChunkRef, transfer.Attempt]]:
        """Yield number, chunk and attempt of each chunk."""
        for attempt in self.attempts:
            for number, ref in zip(attempt.numbers, attempt.refs, strict=True):
                yield number, ref, attempt


class CancelRequests(NamedTuple):
    """Tell a peer that answers are not needed any more; they may arrive all the same."""

    host: ids.HostId
    numbers: list[int]


class RaisePriority(NamedTuple):
    """Tell a peer that guests now wait for these answers (priority PEER)."""

    host: ids.HostId
    numbers: list[int]


class ReadSource(NamedTuple):
    """Read consecutive chunks of an image; report them by index in ``refs``."""

    number: int
    image_id: ids.ImageId
    priority: Priority
    flow: Hashable  # takes turns: the guest or image for local reads, else the peer
    refs: list[chunk_ref.ChunkRef]


class CancelSourceRead(NamedTuple):
    """Cancel a read of the source; later reports about it are ignored."""

    number: int


class ArrivedRun(NamedTuple):
    """Chunks of one transfer that arrived together."""

    refs: transfer.Refs
    keys: tuple[chunk_ref.Key, ...]  # in the order of refs, as are the chunks
    chunks: Sequence[transfer.Bytes]
    provider: ids.HostId | None  # None: the source
    mode: peer_request.Mode | None  # of the request to the sender
    is_kept: bool  # held for other hosts, so it stays longer in the cache
    is_own: bool  # requested by this host, not read through for peers only
    priority: Priority
    is_stored: bool = True  # False: store pinned chunks only

    def select(self, indices: Sequence[int]) -> "ArrivedRun":
        """Return an entry with the chunks at some indices only."""
        refs, keys = transfer.pick(self.refs, indices), transfer.pick(self.keys, indices)
        return self._replace(refs=refs, keys=keys, chunks=transfer.pick(self.chunks, indices))


class Store(NamedTuple):
    """Store chunks, and feed ``chunks_stored`` or ``chunks_not_stored`` for each."""

    runs: list[ArrivedRun]


class CompleteRead(NamedTuple):
    """Answer a local reader."""

    token: Hashable
    chunks: list[transfer.Bytes]  # in the order of the batch; after a failure None where missing
    failure: Failure | None
    why: str


class ReportStall(NamedTuple):
    """Report what a local reader still waits for."""

    token: Hashable
    why: str
    absent: chunk_ref.ChunkRef | None = None  # denied by the source and all hosts
    lost_in_s: float = 0.0  # time after which it counts as lost


class SendChunk(NamedTuple):
    """Answer a request with one chunk; if the cache fails, feed ``cache_read_failed``."""

    number: int
    ref: chunk_ref.ChunkRef
    data: transfer.Bytes
    priority: Priority


class SendRun(NamedTuple):
    """Answer a request for a run from the cache: one ``SendChunk`` for each chunk."""

    number: int
    refs: Sequence[chunk_ref.ChunkRef]  # with consecutive numbers
    priority: Priority

    def iter_chunks(self) -> Iterator[SendChunk]:
        """Yield the chunks."""
        for number, ref in enumerate(self.refs, self.number):
            yield SendChunk(number, ref, None, self.priority)


class SendRefusal(NamedTuple):
    """Refuse a request."""

    number: int
    failure: Failure
    why: str = ""  # for this host's log only; empty: do not log
    request: chunk_ref.Request | None = None


class SendExcessRefusal(SendRefusal):
    """Refuse a request because the requester exceeds its own limits; it is charged for that."""

    __slots__ = ()


class SendReferral(NamedTuple):
    """Answer a request with other hosts to ask, the best first."""

    number: int
    hosts: tuple[ids.HostId, ...]


Answer = SendChunk | SendRun | SendRefusal | SendReferral


class SendAnswers(NamedTuple):
    """Send answers on one connection."""

    connection: Hashable
    answers: list[Answer]

    def split_runs(self) -> list[SendChunk | SendRefusal | SendReferral]:
        """Return the answers, with a ``SendChunk`` for each chunk of a run."""
        found: list[SendChunk | SendRefusal | SendReferral] = []
        for answer in self.answers:
            found += answer.iter_chunks() if isinstance(answer, SendRun) else (answer,)
        return found


class LookUpContents(NamedTuple):
    """Read chunk maps of images that are not attached; feed ``contents_looked_up`` per request."""

    connection: Hashable
    host: ids.HostId
    requests: list[chunk_ref.Request]


class WatchDelivery(NamedTuple):
    """Feed ``answers_delivered`` when all bytes sent on the connections have arrived."""

    connections: list[Hashable]


class SendAnnouncement(NamedTuple):
    """Send an announcement: held chunks, evicted chunks, eviction hints."""

    host: ids.HostId
    held: tuple[segments.Chunks, ...]
    evicted: tuple[segments.Chunks, ...]
    evictable: tuple[segments.Chunks, ...]
    segment_chunks: int = 1


class ForwardAnnouncement(NamedTuple):
    """Pass on an accepted announcement and eviction hints, for images and the cache."""

    host: ids.HostId
    held: Sequence[segments.Chunks]
    evictable: Sequence[segments.Chunks]


class ReportBackoff(NamedTuple):
    """Log that a peer is in backoff from now on."""

    host: ids.HostId
    for_s: float
    why: str


class SendKeepalives(NamedTuple):
    """Send keepalives: pending requests on these connections are being worked on."""

    connections: list[Hashable]


class CloseConnection(NamedTuple):
    """Close a connection because the peer broke the protocol, then feed ``peer_disconnected``."""

    connection: Hashable
    why: str


Action = (
    RequestChunks
    | CancelRequests
    | RaisePriority
    | ReadSource
    | CancelSourceRead
    | Store
    | CompleteRead
    | ReportStall
    | SendAnswers
    | LookUpContents
    | WatchDelivery
    | SendAnnouncement
    | ForwardAnnouncement
    | ReportBackoff
    | SendKeepalives
    | CloseConnection
)


class ActionQueue:
    """Collects the actions of one event: one per host requested from or connection answered."""

    __slots__ = (
        "_cancels",
        "_priority_raises",
        "_replies",
        "_requests",
        "_stores",
        "_watch",
        "others",
    )

    def __init__(self) -> None:
        self._stores: list[ArrivedRun] = []
        self._replies: dict[Hashable, list[Answer]] = {}
        self._requests: dict[ids.HostId, list[transfer.Attempt]] = {}
        self._cancels: dict[ids.HostId, list[int]] = {}
        self._priority_raises: dict[ids.HostId, list[int]] = {}
        self._watch: list[Hashable] = []
        self.others: list[Action] = []

    def add_store(self, arrived: ArrivedRun) -> None:
        """Add chunks to be stored."""
        self._stores.append(arrived)

    def add_reply(self, connection: Hashable, answer: Answer) -> None:
        """Add an answer to a request."""
        answers = self._replies.get(connection)
        if answers is None:
            answers = self._replies[connection] = []
        answers.append(answer)

    def add_request(self, host: ids.HostId, attempt: transfer.Attempt) -> None:
        """Add an attempt to be sent."""
        attempts = self._requests.get(host)
        if attempts is None:
            attempts = self._requests[host] = []
        attempts.append(attempt)

    def add_split_request(self, attempt: transfer.Attempt, part: transfer.Attempt) -> None:
        """Add the split-off part of an attempt, if that attempt is still to be sent."""
        assert attempt.host is not None
        attempts = self._requests.get(attempt.host, [])
        if attempt in attempts:
            attempts.insert(attempts.index(attempt) + 1, part)

    def add_delivery_watch(self, connection: Hashable) -> None:
        """Add a connection whose delivery is to be reported."""
        self._watch.append(connection)

    def add_priority_raise(self, host: ids.HostId, numbers: Iterable[int]) -> None:
        """Add requests whose priority a peer is to raise."""
        self._priority_raises.setdefault(host, []).extend(numbers)

    def add_cancel(self, host: ids.HostId, numbers: Iterable[int]) -> None:
        """Add requests that a peer is to cancel."""
        self._cancels.setdefault(host, []).extend(numbers)

    def take_all(self) -> list[Action]:
        """Return all actions and clear: stores first, then replies, then requests."""
        found: list[Action] = []
        cancels = list(filter(None, map(self._sent, self._cancels))) if self._cancels else ()
        if self._stores:
            found.append(Store(self._stores))
            self._stores = []
        if self.others:
            found += self.others
            self.others = []
        if self._replies:
            found += [SendAnswers(link, answers) for link, answers in self._replies.items()]
            self._replies = {}
        if self._watch:
            found.append(WatchDelivery(self._watch))
            self._watch = []
        if self._cancels:
            found += cancels
            self._cancels = {}
        if self._priority_raises:
            found += [
                RaisePriority(host, numbers) for host, numbers in self._priority_raises.items()
            ]
            self._priority_raises = {}
        if self._requests:
            for host, requested in self._requests.items():
                attempts = [attempt for attempt in requested if not attempt.is_over]  # ended since
                found += [RequestChunks(host, some) for some in _messages(attempts)]
            self._requests = {}
        return found

    def _sent(self, host: ids.HostId) -> CancelRequests | None:
        """Return a ``CancelRequests`` without the attempts that were never sent; None if empty."""
        over = [attempt for attempt in self._requests.get(host, ()) if attempt.is_over]
        unsent = {number for attempt in over for number in attempt.numbers}
        numbers = [number for number in self._cancels[host] if number not in unsent]
        return CancelRequests(host, numbers) if numbers else None


def _messages(attempts: Sequence[transfer.Attempt]) -> Iterator[list[transfer.Attempt]]:
    some: list[transfer.Attempt] = []
    chunks = 0
    for attempt in attempts:
        chunks += len(attempt.numbers)
        if some and chunks > peer_request.MAX_BATCH:
            yield some
            some, chunks = [], len(attempt.numbers)
        some.append(attempt)
    if some:
        yield some
