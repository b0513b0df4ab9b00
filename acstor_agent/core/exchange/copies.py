# SPDX-License-Identifier: Apache-2.0
"""Which hosts hold copies of the chunks that this host is the home of, and who has one too many.

A home sees who asks it for a chunk, and takes those hosts for holders (Wu et
al. 2017, 3.5: chunks that more hosts hold than a limit are de-duplicated, least
recently used first).  When one more than the limit holds a chunk, the one that
asked longest ago is told to let it go first.

The one rule: this is a hint about what to evict, never an order to drop.  A cache
that has room keeps everything, and a chunk that its host uses again stays.

An entry takes about 540 bytes with 16 holders (measured with 4,096 chunks), so the
table stays below 9 MB.
"""

import collections
from typing import NamedTuple

from acstor_common import ids

CHUNKS = 16_384
"""Chunks whose holders are remembered; the one asked for longest ago is forgotten first."""
BATCH_OIDS = 512
"""OIDs in one message at most, as the peer protocol has it."""
QUEUE_OIDS = 1024
"""Hints that wait for one host; the oldest is dropped."""
HOSTS_AT_A_TIME = 64
"""Hosts that are told at a time: each may need a connection."""
QUEUE_HOSTS = 1024


class Hint(NamedTuple):
    """What to tell a host that it may let go first."""

    host: ids.HostId
    oids: tuple[ids.Oid, ...]


class Copies:
    """Holders of chunks, and hints that wait to be told.

    >>> copies = Copies(limit=1)
    >>> oid = ids.Oid(1)
    >>> copies.gave(oid, ids.HostId("h1")); copies.take()
    []
    >>> copies.gave(oid, ids.HostId("h2")); [hint.host for hint in copies.take()]
    ['h1']

    :param limit: holders of a chunk that are left alone; 0 turns it off
    """

    def __init__(self, limit: int) -> None:
        self.told = 0
        self._limit = limit
        self._holders: collections.OrderedDict[ids.Oid, dict[ids.HostId, None]] = (
            collections.OrderedDict()
        )
        self._waiting: collections.OrderedDict[ids.HostId, dict[ids.Oid, None]] = (
            collections.OrderedDict()
        )

    def __len__(self) -> int:
        return len(self._holders)

    def gave(self, oid: ids.Oid, host: ids.HostId) -> None:
        """Note that ``host`` got a chunk from this one, or was sent to somebody who has it."""
        if not self._limit:
            return
        holders = self._holders.setdefault(oid, {})
        self._holders.move_to_end(oid)
        if len(self._holders) > CHUNKS:
            self._holders.popitem(last=False)
        holders.pop(host, None)
        holders[host] = None  # the last one now
        self._waiting.get(host, {}).pop(oid, None)  # it has use for it
        if len(holders) > self._limit:
            oldest = next(iter(holders))
            del holders[oldest]
            self._hint(oldest, oid)

    def _hint(self, host: ids.HostId, oid: ids.Oid) -> None:
        if host not in self._waiting and len(self._waiting) >= QUEUE_HOSTS:
            self._waiting.popitem(last=False)
        waiting = self._waiting.setdefault(host, {})
        waiting[oid] = None
        if len(waiting) > QUEUE_OIDS:
            del waiting[next(iter(waiting))]

    def take(self) -> list[Hint]:
        """Return hints to tell now: one message for a host, hosts that wait longest first."""
        hints: list[Hint] = []
        for host in list(self._waiting)[:HOSTS_AT_A_TIME]:
            waiting = self._waiting.pop(host)
            oids = tuple(waiting)
            if rest := oids[BATCH_OIDS:]:
                self._waiting[host] = dict.fromkeys(rest)
            if oids:
                hints.append(Hint(host, oids[:BATCH_OIDS]))
                self.told += len(hints[-1].oids)
        return hints
