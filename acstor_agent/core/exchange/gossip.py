# SPDX-License-Identifier: Apache-2.0
"""Who has what, told by neighbours, and what to tell them (Nicolae 2016, 3.1.2; Nicolae 2015).

An advertisement says "I have this chunk", by the first 8 bytes of its CID.  It
is a hint and never more: it may be old, lost, doubled, late or a lie, and costs
one request in vain at worst, because every chunk is checked against its whole CID.

Everything is bounded: the table of holders forgets the prefix that was not
used for longest, each neighbour's queue drops its oldest advertisement, and a
peer that tells more prefixes a second than a fast link can carry chunks is not
listened to until its allowance has grown again (``listening.py``).  A denial (it said
that it has not got what it had advertised) costs a peer DENIAL_COST of that allowance,
so one that advertises what it has not is soon not listened to at all.

A holder is remembered as a small number in a tuple that prefixes share, so an entry
of the table takes 180 bytes (measured with 65,536 entries of up to 4 out of 6
holders: 12 MB), and to forget all of a host is to forget its number.

Times are seconds of one clock that never goes back, given by the caller.
"""

import collections
import dataclasses
import enum
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NewType

from acstor_agent.core import rates
from acstor_agent.core.exchange import listening
from acstor_common import ids

Prefix = NewType("Prefix", int)
"""The OID of a content: what advertisements carry."""

BATCH_PREFIXES = 512
"""Prefixes in one advertisement at most, as the peer protocol has it."""
DENIAL_COST = 16
"""Prefixes that a peer's allowance loses when it denies what it advertised."""


class Urgency(enum.IntEnum):
    """Order in which answers leave a host's uplink: the lowest first.

    Only the swarm's simulated network sorts other messages by it too.
    """

    DEMAND = 0  # a guest waits
    READ_AHEAD = 1  # a guest is about to read it
    ADVERTISEMENT = 2  # no answer
    PREFETCH = 3  # nobody waits yet


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is remembered, sent and listened to.

    :param table_prefixes: chunks whose holders are remembered
    :param holders: hosts remembered for one chunk
    :param queue_prefixes: advertisements that wait for one neighbour
    :param told_prefixes: chunks of which is known that they were advertised
    :param delay_s: how long an advertisement may wait for others to share its frame
    :param prefixes_per_s: how many a peer may tell; 10 Gbit/s carry 19,000 chunks of 64 KiB
    :param burst_prefixes: how many it may tell at once after it was silent
    :param peers: hosts of which anything is remembered; the one silent for longest is forgotten
    """

    table_prefixes: int = 65_536
    holders: int = 4
    queue_prefixes: int = 4096
    told_prefixes: int = 65_536
    delay_s: float = 0.1
    prefixes_per_s: float = 20_000.0
    burst_prefixes: float = 20_000.0
    peers: int = 4096


@dataclasses.dataclass(slots=True)
class Statistics:
    """Totals since the start, in prefixes."""

    heard: int = 0
    ignored: int = 0  # told faster than is allowed
    sent: int = 0
    taken_back: int = 0  # of what was sent: gone from here since
    dropped: int = 0  # pushed out of a neighbour's queue
    denied: int = 0


class _Outbox:
    """Advertisements that wait for one neighbour, oldest first."""

    def __init__(self) -> None:
        self.prefixes: collections.OrderedDict[Prefix, None] = collections.OrderedDict()
        self.gone: collections.OrderedDict[Prefix, None] = collections.OrderedDict()
        self.due = 0.0

    @property
    def is_empty(self) -> bool:
        """Say that nothing waits."""
        return not self.prefixes and not self.gone


def prefix_of(cid: ids.Cid) -> Prefix:
    """Return what stands for ``cid`` in advertisements.

    >>> prefix_of(ids.Cid(bytes([1, 2]) + bytes(30))) == 0x0102000000000000
    True
    """
    return Prefix(ids.oid_of(cid))


class Gossip:
    """What this host knows of others' chunks, and what it still has to tell.

    >>> gossip = Gossip(["h2", "h3"])
    >>> gossip.advertised(ids.HostId("h2"), [Prefix(7)], now=0.0)
    [7]
    >>> gossip.holders(Prefix(7))
    ['h2']
    >>> gossip.have(Prefix(7), now=0.0)
    >>> gossip.take_batches(now=0.1)
    [('h3', (7,))]

    :param neighbours: hosts to tell; see neighbours.py
    """

    def __init__(self, neighbours: Iterable[ids.HostId] = (), limits: Limits | None = None) -> None:
        self.statistics = Statistics()
        self._limits = limits or Limits()
        # Numbers of the hosts that hold a chunk, the one that told last at the end.
        self._table: collections.OrderedDict[Prefix, tuple[int, ...]] = collections.OrderedDict()
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._number_of: dict[ids.HostId, int] = {}
        self._host_of: dict[int, ids.HostId] = {}
        self._next_number = 0
        self._pending: collections.Counter[ids.HostId] = collections.Counter()
        told = rates.Rate(self._limits.prefixes_per_s, self._limits.burst_prefixes)
        self._listening = listening.Listening(told, self._limits.peers, self.lost)
        # What this host has advertised and has, and to whom: only they hear that it is gone.
        self._told: collections.OrderedDict[Prefix, tuple[ids.HostId, ...]] = (
            collections.OrderedDict()
        )
        self._audiences: dict[tuple[ids.HostId, ...], tuple[ids.HostId, ...]] = {}
        self._outboxes: dict[ids.HostId, _Outbox] = {}
        self.set_neighbours(neighbours, 0.0)

    def __len__(self) -> int:
        return len(self._table)

    # What others have

    def advertised(
        self, host: ids.HostId, prefixes: Sequence[Prefix], now: float, lookups: int = 1
    ) -> list[Prefix]:
        """Note what ``host`` says that it has; return what was listened to, in its order.

        :param lookups: that each of them takes on this host
        """
        heard = list(prefixes[: self.listen(host, len(prefixes), now, lookups)])
        self.statistics.heard += len(heard)
        if not heard:
            return heard
        number = self._number(host)
        outbox = self._outboxes.get(host)
        for prefix in heard:
            self._add_holder(prefix, number)
            if outbox and prefix in outbox.prefixes:
                del outbox.prefixes[prefix]
                self._untell(prefix, host)
        while len(self._table) > self._limits.table_prefixes:
            self._table.popitem(last=False)
        return heard

    def listen(self, host: ids.HostId, count: int, now: float, lookups: int = 1) -> int:
        """Return how many of ``count`` things that ``host`` tells are to be listened to."""
        heard = self._listening.take(host, count, now, lookups)
        self.statistics.ignored += count - heard
        return heard

    def holders(self, prefix: Prefix) -> list[ids.HostId]:
        """Return who said that it has a chunk: fewest requests pending first, then who told first.

        What is asked about stays in the table longest.
        """
        numbers = self._table.get(prefix)
        if numbers is None:
            return []
        self._table.move_to_end(prefix)
        hosts = [self._host_of[number] for number in numbers if number in self._host_of]
        return sorted(hosts, key=self._pending.__getitem__)

    def known(self) -> list[Prefix]:
        """Return all that others have told of, in the order in which it was last of use.

        For an image that is attached after its neighbours began to read it.
        """
        return list(self._table)

    def pending(self, host: ids.HostId) -> int:
        """Return how many requests of ours ``host`` has not answered yet."""
        return self._pending[host]

    def asked(self, host: ids.HostId) -> None:
        """Note that a request went to ``host``."""
        self._pending[host] += 1

    def answered(self, host: ids.HostId) -> None:
        """Note that a request to ``host`` has ended, well or not."""
        if self._pending[host] <= 1:
            del self._pending[host]
        else:
            self._pending[host] -= 1

    def denied(self, host: ids.HostId, prefix: Prefix, now: float) -> None:
        """Note that ``host`` has not got a chunk, or gave wrong bytes for it."""
        numbers, number = self._table.get(prefix), self._number_of.get(host)
        if numbers is None or number not in numbers:
            return  # it never said that it has it
        self.statistics.denied += 1
        self._listening.fine(host, DENIAL_COST, now)
        self._set_holders(prefix, tuple(n for n in numbers if n != number))

    def taken_back(self, host: ids.HostId, prefixes: Sequence[Prefix], now: float) -> None:
        """Forget chunks that ``host`` says are gone from it; it costs the same allowance."""
        number = self._number_of.get(host)
        for prefix in prefixes[: self.listen(host, len(prefixes), now)]:
            numbers = self._table.get(prefix, ())
            if number in numbers:
                self._set_holders(prefix, tuple(n for n in numbers if n != number))

    def lost(self, host: ids.HostId) -> None:
        """Forget what ``host`` has: it is dead, in quarantine or not on the ring any more.

        Its pending requests end one by one by :meth:`answered`, its allowance goes on.
        """
        number = self._number_of.pop(host, None)
        if number is not None:
            del self._host_of[number]
        if outbox := self._outboxes.get(host):
            outbox.prefixes.clear()

    # What this host has

    def set_neighbours(self, hosts: Iterable[ids.HostId], now: float) -> None:
        """Tell these hosts from now on; a new one is told what was told last to the others."""
        wanted = dict.fromkeys(hosts)
        new = [host for host in wanted if host not in self._outboxes]
        self._outboxes = {host: self._outboxes.get(host, _Outbox()) for host in wanted}
        recent = list(self._told)[-self._limits.queue_prefixes :] if new else []
        for prefix in recent:
            self._tell(prefix, new, now)

    def have(self, prefix: Prefix, now: float, from_host: ids.HostId | None = None) -> None:
        """Tell the neighbours of a chunk that is here, except those who are known to have it.

        :param from_host: the host that gave it
        """
        if prefix in self._told:
            return
        self._told[prefix] = ()
        if len(self._told) > self._limits.told_prefixes:
            self._told.popitem(last=False)
        holders = self.holders(prefix)
        audience = [h for h in self._outboxes if h != from_host and h not in holders]
        self._tell(prefix, audience, now)

    def gone(self, prefix: Prefix, now: float) -> None:
        """Take back what was told of a chunk that is not here any more, from those who were told.

        When it comes back it is advertised again; if nobody has heard that it was gone, not even
        that is needed.
        """
        for host in self._told.pop(prefix, ()):
            outbox = self._outboxes.get(host)
            if outbox is None:
                continue  # no neighbour any more
            if prefix in outbox.prefixes:
                del outbox.prefixes[prefix]
            else:
                self._put(host, outbox.gone, prefix, now)

    def take_batches(self, now: float) -> list[tuple[ids.HostId, tuple[Prefix, ...]]]:
        """Return the advertisements to send now, oldest first, at most 512 prefixes each."""
        batches: list[tuple[ids.HostId, tuple[Prefix, ...]]] = []
        for host, outbox in self._outboxes.items():
            if now >= outbox.due:
                self.statistics.sent += len(outbox.prefixes)
                batches.extend((host, batch) for batch in _batches(outbox.prefixes))
        return batches

    def take_gone(self, now: float) -> list[tuple[ids.HostId, tuple[Prefix, ...]]]:
        """Return what to take back now, at most 512 prefixes each.

        A prefix waits in one of the two queues at most, so it does not matter which is sent first.
        """
        batches: list[tuple[ids.HostId, tuple[Prefix, ...]]] = []
        for host, outbox in self._outboxes.items():
            if now >= outbox.due:
                self.statistics.taken_back += len(outbox.gone)
                batches.extend((host, batch) for batch in _batches(outbox.gone))
        return batches

    def next_timeout(self) -> float | None:
        """Return when there is something to send; None if nothing waits."""
        return min((box.due for box in self._outboxes.values() if not box.is_empty), default=None)

    def _tell(self, prefix: Prefix, hosts: Sequence[ids.HostId], now: float) -> None:
        """Queue an advertisement for these neighbours; they share one tuple for many prefixes."""
        self._note_told(prefix, tuple(dict.fromkeys((*self._told[prefix], *hosts))))
        for host in hosts:
            self._post(host, prefix, now)

    def _untell(self, prefix: Prefix, host: ids.HostId) -> None:
        """Note that an advertisement has left its queue without being sent."""
        if prefix in self._told:
            self._note_told(prefix, tuple(h for h in self._told[prefix] if h != host))

    def _note_told(self, prefix: Prefix, audience: tuple[ids.HostId, ...]) -> None:
        if len(self._audiences) > self._limits.told_prefixes:
            self._audiences.clear()
        self._told[prefix] = self._audiences.setdefault(audience, audience)

    def _post(self, host: ids.HostId, prefix: Prefix, now: float) -> None:
        outbox = self._outboxes[host]
        if prefix in outbox.gone:
            del outbox.gone[prefix]
            return  # the neighbour was told before, and has not heard that it was gone
        self._put(host, outbox.prefixes, prefix, now)

    def _put(
        self,
        host: ids.HostId,
        queue: collections.OrderedDict[Prefix, None],
        prefix: Prefix,
        now: float,
    ) -> None:
        outbox = self._outboxes[host]
        if outbox.is_empty:
            outbox.due = now + self._limits.delay_s
        queue[prefix] = None
        if len(queue) >= BATCH_PREFIXES:
            outbox.due = min(outbox.due, now)
        if len(queue) > self._limits.queue_prefixes:
            dropped, _ = queue.popitem(last=False)
            self.statistics.dropped += 1
            if queue is outbox.prefixes:
                self._untell(dropped, host)

    def _add_holder(self, prefix: Prefix, number: int) -> None:
        known = self._table.get(prefix, ())
        if not known or known[-1] != number:
            others = [n for n in known if n != number and n in self._host_of]
            kept = others[max(0, len(others) + 1 - self._limits.holders) :]
            self._set_holders(prefix, (*kept, number))
        self._table.move_to_end(prefix)

    def _set_holders(self, prefix: Prefix, numbers: tuple[int, ...]) -> None:
        """Store a tuple that all prefixes with the same holders share."""
        if not numbers:
            self._table.pop(prefix, None)
            return
        if len(self._shared) > self._limits.table_prefixes:
            self._shared.clear()
        self._table[prefix] = self._shared.setdefault(numbers, numbers)

    def _number(self, host: ids.HostId) -> int:
        if host not in self._number_of:
            self._number_of[host] = self._next_number
            self._host_of[self._next_number] = host
            self._next_number += 1
        return self._number_of[host]


def _batches(queue: collections.OrderedDict[Prefix, None]) -> list[tuple[Prefix, ...]]:
    """Empty a queue; return what was in it in pieces that fit into a message."""
    prefixes = tuple(queue)
    queue.clear()
    starts = range(0, len(prefixes), BATCH_PREFIXES)
    return [prefixes[start : start + BATCH_PREFIXES] for start in starts]
