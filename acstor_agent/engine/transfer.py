# SPDX-License-Identifier: Apache-2.0
"""A transfer: chunks on their way, their readers, and the attempts under way.

A ``Transfer`` holds chunks of one image with the same waiters, providers and attempts; it is split
when they differ (``fetch.transfers``). A chunk has one transfer. It has up to three *tracks*: the
*fetch* for this host, provider by provider; the *relay*, in which a home asks another home before
the source; the *read* of the source. A request that waits here for a track also waits for those
listed after it, and for none before (``peer_request.Mode``), so hosts do not wait in a cycle.
"""

import enum
import math
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import requester
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

Failure = failure.Failure
Priority = priority.Priority

Bytes = Any  # a verified buffer, which the engine never inspects

MOST_NAMES = 64  # images under which a chunk is requested at a time; the oldest are dropped


_NOWHERE: Iterator[Any] = iter(())

Refs = tuple[chunk_ref.ChunkRef, ...]
T = TypeVar("T")


def pick(items: Sequence[T], indices: Iterable[int]) -> tuple[T, ...]:
    """Return the items at some indices."""
    return tuple([items[index] for index in indices])


def _bytes_of(refs: Refs) -> int:
    return refs[0].length if len(refs) == 1 else sum([ref.length for ref in refs])


class Track(enum.IntEnum):
    """The part of a transfer that an attempt belongs to."""

    FETCH = 0
    RELAY = 1
    LOOKUP = 2
    PROBE = 3  # its chunk came from elsewhere; it only measures its host


class Waiter:
    """A local reader of a batch, which gets one answer."""

    __slots__ = ("deadline_s", "got", "is_done", "is_retried", "left", "refs", "token")

    def __init__(
        self,
        token: Hashable,
        refs: list[chunk_ref.ChunkRef],
        is_retried: bool,
        deadline_s: float = math.inf,
    ) -> None:
        self.token = token  # identifies the reader for the shell
        self.refs = refs
        self.is_retried = is_retried  # retry while bytes may still arrive
        self.deadline_s = deadline_s
        self.got: list[Bytes] = [None] * len(refs)
        self.left = len(refs)  # chunks that are missing
        self.is_done = False


class Attempt:
    """One request to one provider, for all chunks of a transfer."""

    __slots__ = (
        *("at_s", "batch", "connection", "host", "is_late", "is_over", "length"),
        *("mode", "numbers", "priority", "refs", "sent_s", "track", "transfer"),
    )

    def __init__(
        self,
        numbers: tuple[int, ...],
        transfer: "Transfer",
        host: ids.HostId | None,
        mode: peer_request.Mode,
        refs: Refs,
        track: Track,
        at_s: float,
    ) -> None:
        self.numbers = numbers  # in the order of refs; all 0 at the source
        self.transfer = transfer
        self.host = host  # None: the source
        self.mode = mode
        self.refs = refs  # under the name of one image
        self.length = _bytes_of(refs)
        self.track = track
        self.priority = transfer.priority
        self.at_s = at_s
        self.sent_s: float | None = None  # None: not sent yet
        self.connection: Hashable = None  # set by the shell
        self.is_late = self.is_over = False
        self.batch: dict[Attempt, None] = {}  # attempts that share one timer

    @property
    def number(self) -> int:
        """Number of the first chunk."""
        return self.numbers[0]

    @property
    def first_ref(self) -> chunk_ref.ChunkRef:
        """The first chunk."""
        return self.refs[0]

    def split(self, transfer: "Transfer", some: Sequence[int], rest: Sequence[int]) -> "Attempt":
        """Return an attempt of ``transfer`` for some chunks; this one keeps the rest."""
        numbers, refs = pick(self.numbers, some), pick(self.refs, some)
        part = Attempt(numbers, transfer, self.host, self.mode, refs, self.track, self.at_s)
        part.priority, part.sent_s = self.priority, self.sent_s
        part.connection, part.is_late, part.is_over = self.connection, self.is_late, self.is_over
        if not self.is_over:
            part.watch_with(self.batch)
        self.numbers, self.refs = pick(self.numbers, rest), pick(self.refs, rest)
        self.length = _bytes_of(self.refs)
        return part

    def watch_with(self, batch: dict["Attempt", None]) -> None:
        """Move it to another batch, whose timer checks it from now on."""
        self.batch.pop(self, None)
        batch[self] = None
        self.batch = batch

    def is_excused(self, failure: Failure) -> bool:
        """Return whether a failure does not count: a holder may be too busy."""
        return failure is Failure.BUSY and not self.mode.reads_source

    def end_attempt(self) -> None:
        """Mark it as ended and take it out of its batch."""
        self.is_over = True
        self.batch.pop(self, None)


class Transfer:
    """Chunks on their way, with their waiters and attempts (see the module)."""

    __slots__ = (
        *("keys", "names", "priority", "guest", "waiters", "done_entries", "peer_requests"),
        *("is_fetching", "attempts", "next_providers", "providers", "table", "asked"),
        *("relay", "upstreams", "read", "denied", "why", "best_failure", "tries", "retry"),
        *("lookup", "charged_to", "prefetch_queue", "prefetch_flow"),
    )

    def __init__(self, refs: Refs, keys: tuple[chunk_ref.Key, ...], priority: Priority) -> None:
        self.keys = keys  # in the order of refs
        self.names: tuple[Refs, ...] = (refs,)  # the chunks under each requested image
        self.priority = priority
        self.guest: Hashable = None  # takes the turn at the source
        self.waiters: list[tuple[Waiter, tuple[int, ...]]] = []
        self.done_entries = 0
        self.peer_requests: dict[requester.PendingRequest, None] = {}  # of single chunks only
        self.is_fetching = False
        self.attempts: list[Attempt] = []
        self.next_providers: list[Any] = []  # to be asked before ``providers``
        self.providers: Iterator[Any] = _NOWHERE
        self.table: object = None  # the v-node table that they follow
        self.asked: list[tuple[ids.HostId | None, bool]] = []  # providers, and if as home
        self.relay: Attempt | None = None
        self.upstreams: list[ids.HostId] = []
        self.read: Any = None  # under way or queued
        self.denied: tuple[ids.ImageId, ...] = ()  # by the source
        self.why = ""
        self.best_failure: Failure | None = None  # the most hopeful failure
        self.tries = 0
        self.retry: Any = None  # its pause
        self.lookup: Any = None
        self.charged_to: requester.Requester | None = None  # the peer it was started for
        self.prefetch_queue: Priority | None = None  # its prefetch queue
        self.prefetch_flow: Hashable = None  # its flow there

    @property
    def refs(self) -> Refs:
        """The chunks, under the name that is tried first."""
        return self.names[0]

    @property
    def first_ref(self) -> chunk_ref.ChunkRef:
        """The first chunk, under the name that is tried first."""
        return self.names[0][0]

    @property
    def key(self) -> chunk_ref.Key:
        """The key of the first chunk."""
        return self.keys[0]

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return len(self.keys)

    def split(self, some: Sequence[int]) -> "Transfer":
        """Move some chunks, not all, to a new transfer; the caller divides the source read."""
        taken = set(some)
        rest = [index for index in range(self.chunk_count) if index not in taken]
        part = Transfer(pick(self.refs, some), pick(self.keys, some), self.priority)
        part.names = tuple([pick(name, some) for name in self.names])
        part.guest, part.done_entries = self.guest, self.done_entries
        part.waiters = [(waiter, pick(at, some)) for waiter, at in self.waiters]
        part.is_fetching, part.asked = self.is_fetching, self.asked.copy()
        part.attempts = [attempt.split(part, some, rest) for attempt in self.attempts]
        part.relay = self.relay.split(part, some, rest) if self.relay is not None else None
        part.next_providers = [
            provider._replace(refs=pick(provider.refs, some)) for provider in self.next_providers
        ]
        part.upstreams = self.upstreams.copy()
        part.denied, part.why, part.best_failure = self.denied, self.why, self.best_failure
        part.tries, part.prefetch_queue, part.prefetch_flow = (
            self.tries,
            self.prefetch_queue,
            self.prefetch_flow,
        )
        self.names = tuple([pick(name, rest) for name in self.names])
        self.keys = pick(self.keys, rest)
        self.next_providers = [
            provider._replace(refs=pick(provider.refs, rest)) for provider in self.next_providers
        ]
        self.table, self.providers = None, _NOWHERE  # both select providers anew
        self.waiters = [(waiter, pick(at, rest)) for waiter, at in self.waiters]
        return part

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is under way."""
        return not (
            self.is_fetching
            or self.attempts
            or self.relay
            or self.read is not None
            or self.retry is not None
            or self.lookup is not None
            or self.prefetch_queue is not None
        )

    @property
    def awaits_local_read(self) -> bool:
        """Whether it only has peers that wait for a read by guests here, in lock-step."""
        reads_source = any(pending.mode.reads_source for pending in self.peer_requests)
        return bool(self.peer_requests) and not reads_source and self.is_idle and not self.waiters

    @property
    def is_wanted(self) -> bool:
        """Whether a local reader or a peer waits for it."""
        return bool(self.waiters or self.peer_requests)

    def record_failure(self, failure: Failure) -> None:
        """Keep the most hopeful failure."""
        if self.best_failure is None or failure < self.best_failure:
            self.best_failure = failure

    def add_reference(self, refs: Refs) -> None:
        """Add the name of another image, which a provider may have or authorize instead."""
        image_id = refs[0].image_id
        if all([name[0].image_id != image_id for name in self.names]):
            self.names = (*self.names[-MOST_NAMES + 1 :], refs)

    def next_name(self, image_id: ids.ImageId) -> Refs | None:
        """Return the name that is tried after that of an image; None: it was the last."""
        at = next((n for n, name in enumerate(self.names) if name[0].image_id == image_id), -1)
        return self.names[at + 1] if at + 1 < len(self.names) else None

    def remove_waiters(self, entries: int = 1) -> None:
        """Count waiters that are done; drop them, and unneeded names, from time to time."""
        self.done_entries += entries
        if 2 * self.done_entries < len(self.waiters):
            return  # a search per waiter would take quadratic time
        self.waiters = [entry for entry in self.waiters if not entry[0].is_done]
        self.done_entries = 0
        if len(self.names) > 1 and self.is_wanted:
            wanted = {waiter.refs[at[0]].image_id for waiter, at in self.waiters}
            wanted.update(pending.ref.image_id for pending in self.peer_requests)
            names = [name for name in self.names if name[0].image_id in wanted]
            self.names = tuple(names) or self.names

    def take_waiters(self) -> list[tuple[Waiter, tuple[int, ...]]]:
        """Return and clear the waiters."""
        waiters, self.waiters, self.done_entries = self.waiters, [], 0
        return waiters
