# SPDX-License-Identifier: Apache-2.0
"""A transfer: chunks on their way, who waits for them, and the attempts under way.

A ``Transfer`` is for one or more chunks of one image that have had one fate so far: the same
waiters, the same places, the same attempts.  Where their fates part, it is split
(``fetch.transfers``).  A chunk has one transfer, whatever the reason.  A transfer has up to three
*tracks*:

* *travel*: the fetch for this host itself, from place to place, with one attempt that is not late
  and any late ones beside it; the source is one of the places;
* *relay*: as a home, this host asks another home before the source;
* *read*: the read of the source.

Whoever waits at this host for a track waits for the tracks listed below it, too, and for none
above it (``peer_request.Mode``).  So no cycle of hosts can wait for each other.
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
from acstor_agent.engine import failure as failure_
from acstor_agent.engine import priority as priority_
from acstor_agent.engine import requester
from acstor_common.model import ids
from acstor_common.wire import peer_request

Bytes = Any
"""A buffer.  The core hands it on and never looks inside: who feeds it has checked it."""

MOST_NAMES = 64
"""Images in which a content is wanted at a time: more tell nothing new of where it is."""


_NOWHERE: Iterator[Any] = iter(())

Refs = tuple[chunk_ref.ChunkRef, ...]
T = TypeVar("T")


def pick(items: Sequence[T], indices: Iterable[int]) -> tuple[T, ...]:
    """Return the items at some indices."""
    return tuple([items[index] for index in indices])


def _bytes_of(refs: Refs) -> int:
    return refs[0].length if len(refs) == 1 else sum([ref.length for ref in refs])


class Track(enum.IntEnum):
    """What an attempt is part of."""

    TRAVEL = 0
    RELAY = 1
    SEARCH = 2
    TRIAL = 3  # of nothing any more: its content came, and it shows how its host is now


class Waiter:
    """Somebody of this host who wants a batch, and has one answer.

    :param token: whatever the shell knows him by
    :param is_patient: he waits as long as bytes may still come
    """

    __slots__ = ("deadline_s", "got", "is_done", "is_patient", "left", "token", "wants")

    def __init__(
        self,
        token: Hashable,
        wants: list[chunk_ref.ChunkRef],
        is_patient: bool,
        deadline_s: float = math.inf,
    ) -> None:
        self.token = token
        self.wants = wants
        self.is_patient = is_patient
        self.deadline_s = deadline_s
        self.got: list[Bytes] = [None] * len(wants)
        self.left = len(wants)
        self.is_done = False


class Attempt:
    """One request to one place, for all chunks of a transfer.

    :param numbers: of the chunks, in the order of ``refs``; the answers of the peer name them.
        They are 0 for the source, whose reads have indices
    :param host: None: the source
    :param refs: the chunks, under the name of one image
    :ivar length: bytes of all chunks
    :ivar sent_s: when it left this host; None: it waits in a line here
    :ivar connection: on which it was sent, as whoever sent it knows that
    :ivar batch: those that are looked at together when one of them may be late
    """

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
        self.numbers = numbers
        self.transfer = transfer
        self.host = host
        self.mode = mode
        self.refs = refs
        self.length = _bytes_of(refs)
        self.track = track
        self.priority = transfer.priority
        self.at_s = at_s
        self.sent_s: float | None = None
        self.connection: Hashable = None
        self.is_late = self.is_over = False
        self.batch: dict[Attempt, None] = {}

    @property
    def number(self) -> int:
        """Number of the first chunk."""
        return self.numbers[0]

    @property
    def want(self) -> chunk_ref.ChunkRef:
        """The first chunk."""
        return self.refs[0]

    def split(self, transfer: "Transfer", some: Sequence[int], rest: Sequence[int]) -> "Attempt":
        """Return an attempt for some of the chunks; this one keeps the rest.

        :param transfer: whose attempt the new one is
        """
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
        """Have it looked at with others, and with no others any more."""
        self.batch.pop(self, None)
        batch[self] = None
        self.batch = batch

    def is_excused(self, failure: failure_.Failure) -> bool:
        """Say whether a failure is none: who merely has something may be too busy to give it."""
        return failure is failure_.Failure.BUSY and not self.mode.reads_source

    def end_attempt(self) -> None:
        """Note that it is over; nothing remembers it until its time would have been over."""
        self.is_over = True
        self.batch.pop(self, None)


class Transfer:
    """See above.

    :param refs: its chunks
    :param keys: of the chunks, in that order, under whatever name
    :ivar names: the chunks as each image names them in which they are wanted
    :ivar waiters: with the positions of the chunks in what each wants
    :ivar askers: peers that wait; only a transfer of one chunk has any, or ``charged``
    :ivar opener: whose turn its read of the source takes, of those who share an image's
    :ivar front: places to ask before ``places``
    """

    __slots__ = (
        *("keys", "names", "priority", "opener", "waiters", "gone", "askers"),
        *("is_travelling", "attempts", "front", "places", "table", "asked"),
        *("relay", "upstreams", "read", "denied"),
        *("why", "hope", "tries", "retry", "search", "charged", "lane", "lane_of"),
    )

    def __init__(
        self, refs: Refs, keys: tuple[chunk_ref.Key, ...], priority: priority_.Priority
    ) -> None:
        self.keys = keys
        self.names: tuple[Refs, ...] = (refs,)
        self.priority = priority
        self.opener: Hashable = None
        self.waiters: list[tuple[Waiter, tuple[int, ...]]] = []
        self.gone = 0  # waiters of these that do not wait any more
        self.askers: dict[requester.PendingRequest, None] = {}
        self.is_travelling = False
        self.attempts: list[Attempt] = []
        self.front: list[Any] = []
        self.places: Iterator[Any] = _NOWHERE
        self.table: object = None  # by which ``places`` are
        self.asked: list[tuple[ids.HostId | None, bool]] = []  # places, and if as a home
        self.relay: Attempt | None = None
        self.upstreams: list[ids.HostId] = []
        self.read: Any = None  # under way, or in its line
        self.denied: tuple[ids.ImageId, ...] = ()  # in which the source has not got it
        self.why = ""
        self.hope: failure_.Failure | None = None
        self.tries = 0
        self.retry: Any = None  # pauses
        self.search: Any = None
        self.charged: requester.Requester | None = None
        self.lane: priority_.Priority | None = None
        self.lane_of: Hashable = None  # whose turn it is there

    @property
    def refs(self) -> Refs:
        """The chunks, under the name that is tried first."""
        return self.names[0]

    @property
    def want(self) -> chunk_ref.ChunkRef:
        """The first chunk, under the name that is tried first."""
        return self.names[0][0]

    @property
    def key(self) -> chunk_ref.Key:
        """The key of the first chunk."""
        return self.keys[0]

    @property
    def count(self) -> int:
        """How many chunks it is for."""
        return len(self.keys)

    def split(self, some: Sequence[int]) -> "Transfer":
        """Return a transfer for some of the chunks, not all; this one keeps the rest.

        What both have in common is copied, what is of chunks is divided.  The places of both are
        found anew: an iterator cannot be copied.  The read of the source is not divided.
        """
        taken = set(some)
        rest = [index for index in range(self.count) if index not in taken]
        part = Transfer(pick(self.refs, some), pick(self.keys, some), self.priority)
        part.names = tuple([pick(name, some) for name in self.names])
        part.opener, part.gone = self.opener, self.gone
        part.waiters = [(waiter, pick(at, some)) for waiter, at in self.waiters]
        part.is_travelling, part.asked = self.is_travelling, self.asked.copy()
        part.attempts = [attempt.split(part, some, rest) for attempt in self.attempts]
        part.relay = self.relay.split(part, some, rest) if self.relay is not None else None
        part.front = [place._replace(refs=pick(place.refs, some)) for place in self.front]
        part.upstreams = self.upstreams.copy()
        part.denied, part.why, part.hope = self.denied, self.why, self.hope
        part.tries, part.lane, part.lane_of = self.tries, self.lane, self.lane_of
        self.names = tuple([pick(name, rest) for name in self.names])
        self.keys = pick(self.keys, rest)
        self.front = [place._replace(refs=pick(place.refs, rest)) for place in self.front]
        self.table, self.places = None, _NOWHERE
        self.waiters = [(waiter, pick(at, rest)) for waiter, at in self.waiters]
        return part

    @property
    def is_idle(self) -> bool:
        """Say that nothing of it is under way."""
        return not (
            self.is_travelling
            or self.attempts
            or self.relay
            or self.read is not None
            or self.retry is not None
            or self.search is not None
            or self.lane is not None
        )

    @property
    def is_foreseen(self) -> bool:
        """Say that nothing of it is under way, but peers in step with guests here wait for it."""
        reads_source = any(asker.mode.reads_source for asker in self.askers)
        return bool(self.askers) and not reads_source and self.is_idle and not self.waiters

    @property
    def is_wanted(self) -> bool:
        """Say whether anybody waits for it."""
        return bool(self.waiters or self.askers)

    def record_failure(self, failure: failure_.Failure) -> None:
        """Remember what leaves most hope."""
        if self.hope is None or failure < self.hope:
            self.hope = failure

    def add_reference(self, refs: Refs) -> None:
        """Note in which image it is wanted: one may have it, or be given it, and another not."""
        image_id = refs[0].image_id
        if all([name[0].image_id != image_id for name in self.names]):
            self.names = (*self.names[-MOST_NAMES + 1 :], refs)

    def next_name(self, image_id: ids.ImageId) -> Refs | None:
        """Return the name that is tried after that of an image; None: it was the last."""
        at = next((n for n, name in enumerate(self.names) if name[0].image_id == image_id), -1)
        return self.names[at + 1] if at + 1 < len(self.names) else None

    def remove_waiters(self, entries: int = 1) -> None:
        """Note that waiters wait no more; names in which nobody waits go with them."""
        self.gone += entries
        if 2 * self.gone < len(self.waiters):
            return  # he is not looked for: a thousand that leave would look a million times
        self.waiters = [entry for entry in self.waiters if not entry[0].is_done]
        self.gone = 0
        if len(self.names) > 1 and self.is_wanted:
            wanted = {waiter.wants[at[0]].image_id for waiter, at in self.waiters}
            wanted.update(asker.want.image_id for asker in self.askers)
            names = [name for name in self.names if name[0].image_id in wanted]
            self.names = tuple(names) or self.names

    def take_waiters(self) -> list[tuple[Waiter, tuple[int, ...]]]:
        """Return those who wait; nobody does then."""
        waiters, self.waiters, self.gone = self.waiters, [], 0
        return waiters
