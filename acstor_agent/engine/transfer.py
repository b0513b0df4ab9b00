# SPDX-License-Identifier: Apache-2.0
"""A transfer: one chunk on its way, who waits for it, and the attempts under way.

There is one ``Transfer`` for a chunk, whatever the reason.  It has up to three *tracks*:

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
from collections.abc import Iterator
from typing import Any

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure as failure_
from acstor_agent.engine import priority as priority_
from acstor_agent.engine import requester
from acstor_common import ids
from acstor_common import peer_request

Bytes = Any
"""A buffer.  The core hands it on and never looks inside: who feeds it has checked it."""

MOST_NAMES = 64
"""Images in which a content is wanted at a time: more tell nothing new of where it is."""


_NOWHERE: Iterator[Any] = iter(())


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
    """One question to one place for one chunk.

    :param number: that the peer's answer names
    :param host: None: the source
    :param want: in which image's name it is asked for
    :ivar sent_s: when it left this host; None: it waits in a line here
    :ivar connection: on which it was sent, as whoever sent it knows that
    :ivar batch: those that are looked at together when one of them may be late
    """

    __slots__ = (
        *("at_s", "batch", "connection", "host", "is_late", "is_over"),
        *("mode", "number", "priority", "sent_s", "track", "transfer", "want"),
    )

    def __init__(
        self,
        number: int,
        transfer: "Transfer",
        host: ids.HostId | None,
        mode: peer_request.Mode,
        want: chunk_ref.ChunkRef,
        track: Track,
        at_s: float,
    ) -> None:
        self.number = number
        self.transfer = transfer
        self.host = host
        self.mode = mode
        self.want = want
        self.track = track
        self.priority = transfer.priority
        self.at_s = at_s
        self.sent_s: float | None = None
        self.connection: Hashable = None
        self.is_late = self.is_over = False
        self.batch: dict[Attempt, None] = {}

    def watch(self, batch: dict["Attempt", None]) -> None:
        """Have it looked at with others, and with no others any more."""
        self.batch.pop(self, None)
        batch[self] = None
        self.batch = batch

    def is_excused(self, failure: failure_.Failure) -> bool:
        """Say whether a failure is none: who merely has something may be too busy to give it."""
        return failure is failure_.Failure.BUSY and not self.mode.reads_source

    def end(self) -> None:
        """Note that it is over; nothing remembers it until its time would have been over."""
        self.is_over = True
        self.batch.pop(self, None)


class Transfer:
    """See above.

    :param want: what it is; a content may be wanted in several images, its ``names``
    :param key: that of all its names
    :ivar opener: whose turn its read of the source takes, of those who share an image's
    """

    __slots__ = (
        *("key", "names", "priority", "opener", "waiters", "gone", "askers"),
        *("is_travelling", "attempts", "places", "table", "asked"),
        *("relay", "upstreams", "read", "denied"),
        *("why", "hope", "tries", "retry", "search", "charged", "lane", "lane_of"),
    )

    def __init__(
        self, want: chunk_ref.ChunkRef, key: chunk_ref.Key, priority: priority_.Priority
    ) -> None:
        self.key = key
        self.names: tuple[chunk_ref.ChunkRef, ...] = (want,)
        self.priority = priority
        self.opener: Hashable = None
        self.waiters: list[tuple[Waiter, int]] = []
        self.gone = 0  # waiters of these that do not wait any more
        self.askers: dict[requester.PendingRequest, None] = {}
        self.is_travelling = False
        self.attempts: list[Attempt] = []
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
    def want(self) -> chunk_ref.ChunkRef:
        """What it is, in the name that is tried first."""
        return self.names[0]

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

    def failed(self, failure: failure_.Failure) -> None:
        """Remember what leaves most hope."""
        if self.hope is None or failure < self.hope:
            self.hope = failure

    def join(self, want: chunk_ref.ChunkRef) -> None:
        """Note in which image it is wanted: one may have it, or be given it, and another not."""
        if all(name[2] != want[2] for name in self.names):
            self.names = (*self.names[-MOST_NAMES + 1 :], want)

    def next_name(self, image_id: ids.ImageId) -> chunk_ref.ChunkRef | None:
        """Return the name that is tried after that of an image; None: it was the last."""
        at = next((n for n, name in enumerate(self.names) if name[2] == image_id), -1)
        return self.names[at + 1] if at + 1 < len(self.names) else None

    def left(self) -> None:
        """Note that one of the waiters waits no more; names in which nobody waits go with him."""
        self.gone += 1
        if 2 * self.gone < len(self.waiters):
            return  # he is not looked for: a thousand that leave would look a million times
        self.waiters = [entry for entry in self.waiters if not entry[0].is_done]
        self.gone = 0
        if len(self.names) > 1 and self.is_wanted:
            wanted = {waiter.wants[index][2] for waiter, index in self.waiters}
            wanted.update(asker.want[2] for asker in self.askers)
            self.names = tuple(name for name in self.names if name[2] in wanted) or self.names

    def take_waiters(self) -> list[tuple[Waiter, int]]:
        """Return those who wait; nobody does then."""
        waiters, self.waiters, self.gone = self.waiters, [], 0
        return waiters
