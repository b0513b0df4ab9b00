# SPDX-License-Identifier: Apache-2.0
"""Referrals: which host to send a requester to when this host is busy, and which copy is surplus.

A home sees every request for its chunks.  It answers the first requesters itself and refers later
ones to earlier ones, at most FAN_OUT to each.  So the requesters of a chunk form a tree, and the
uplinks of the whole cloud carry it.  The oldest requester is also the one whose copy may be evicted
when there are too many (Wu et al. 2017, 3.5).  A host is never referred to one that came after it,
so no two hosts in the tree of one home wait for each other.

The requesters of a chunk are one byte string: the number of first ones that are full, the number
that got an eviction hint, and for each host, ordered by its last request, its key, depth, priority
and number of children.  One requester takes 119 bytes, each further one 4
(tests/bench/transfers_cost.py).
"""

import collections
import heapq
import struct
from collections.abc import Iterable

from acstor_agent.engine import generational_cache
from acstor_agent.engine import host_interning
from acstor_agent.engine import priority as priority_
from acstor_common import ids

BYTES = 32 * 1024 * 1024
"""Of the table, with what Python takes for an entry."""
OVERHEAD_BYTES = 128
HOSTS = 1024
"""Of one content; a later one is a leaf of the tree.  In the swarm 256 hosts that read at once
need 1.8 times as long when it is 64."""
FAN_OUT = 2
CHOICE = 2
"""Hosts that a requester is told, in case that the first one is gone."""
LOOK = 32
"""Hosts that are compared, of those with room below them, who came first."""
RECENT = 512
"""Referrals that make up a host's present load."""

_HEAD = struct.Struct(">HH")
_KEY = host_interning.KEY_BYTES
_DEPTH, _STATE, _ENTRY = _KEY, _KEY + 1, _KEY + 2  # where they are in an entry; its size
_NOBODY = bytes(_HEAD.size)
_BELOW_BITS, _MAX_DEPTH = 2, 255
assert _HEAD.size == _ENTRY


def _weigh(known: bytes) -> int:
    return OVERHEAD_BYTES + len(known)


def _find(known: bytes, key: bytes) -> int:
    """Return where the entry of a host is; -1 if it has none."""
    at = known.find(key, _HEAD.size)
    while at > 0 and at % _ENTRY:
        at = known.find(key, at + 1)
    return at


class Referrals:
    """Who was given what, or sent to somebody for it.

    >>> referrals = Referrals(host_interning.HostInterning())
    >>> oid, peer = ids.Oid(7), priority_.Priority.PEER
    >>> referrals.gave(oid, ids.HostId("h1"), peer)
    >>> [referrals.refer(oid, ids.HostId(host), peer) for host in ("h2", "h3", "h2")]
    [('h1',), ('h1', 'h2'), ()]
    >>> referrals.take_surplus(oid, limit=2), referrals.take_surplus(oid, limit=2)
    ('h1', None)
    """

    def __init__(self, keys: host_interning.HostInterning, limit_bytes: int = BYTES) -> None:
        self._keys = keys
        self._known: generational_cache.GenerationalCache[ids.Oid, bytes] = (
            generational_cache.GenerationalCache(limit_bytes, _weigh)
        )
        self._load: collections.Counter[bytes] = collections.Counter()
        self._recent: collections.deque[bytes] = collections.deque()

    def __len__(self) -> int:
        """Return of how many contents it is known who was given them."""
        return len(self._known)

    def gave_all(
        self, oids: Iterable[ids.Oid], host: ids.HostId, priority: priority_.Priority
    ) -> list[ids.Oid]:
        """Note that a host is given contents; return those that others were given before.

        :param priority: as of :meth:`gave`
        """
        only = _NOBODY + self._keys.of(host) + bytes((0, priority << _BELOW_BITS))
        known: list[ids.Oid] = []
        for oid in oids:
            if oid in self._known:
                known.append(oid)
                self.gave(oid, host, priority)
            else:
                self._known.add(oid, only)
        return known

    def gave(
        self, oid: ids.Oid, host: ids.HostId, priority: priority_.Priority, depth: int = 0
    ) -> None:
        """Note that a host is given a content, here or at some depth below.

        :param priority: of its request: it gets the content no sooner than that lets it
        """
        key, known = self._keys.of(host), self._known.get(oid) or _NOBODY
        full, told = _HEAD.unpack_from(known)
        at = _find(known, key)
        if at < 0:
            if len(known) >= HOSTS * _ENTRY + _HEAD.size:
                return
            entry = key + bytes((min(depth, _MAX_DEPTH), priority << _BELOW_BITS))
        else:  # it is the last one now
            entry = known[at : at + _ENTRY]
            full -= at < _ENTRY * (1 + full)
            told -= at < _ENTRY * (1 + told)
            known = known[:at] + known[at + _ENTRY :]
        self._known.put(oid, _HEAD.pack(full, told) + known[_HEAD.size :] + entry)

    def take_surplus(self, oid: ids.Oid, limit: int) -> ids.HostId | None:
        """Return the host that was given a content longest ago, if more than ``limit`` have it.

        It is returned once, unless it is given the content again.
        """
        known = self._known.get(oid)
        if known is None:
            return None
        full, told = _HEAD.unpack_from(known)
        at = _ENTRY * (1 + told)
        if len(known) - at <= _ENTRY * limit:
            return None
        self._known.put(oid, _HEAD.pack(full, told + 1) + known[_HEAD.size :])
        return self._keys.host(known[at : at + _KEY])

    def refer(
        self, oid: ids.Oid, host: ids.HostId, priority: priority_.Priority
    ) -> tuple[ids.HostId, ...]:
        """Return whom ``host`` is to ask instead of this one, the best first; empty: nobody.

        Who was sent few lately, and is near to the root of the tree, goes first.  Nobody is sent
        to one who asked with less urgency.  Who comes again was let down, and is sent to nobody.
        """
        known = self._known.get(oid)
        if known is None or _find(known, self._keys.of(host)) > 0:
            return ()
        full, told = _HEAD.unpack_from(known)
        while full < len(known) // _ENTRY - 1 and not self._has_room(known, _ENTRY * (1 + full)):
            full += 1
        load = self._load
        ranked = heapq.nsmallest(
            CHOICE,
            self._able(known, _ENTRY * (1 + full), priority),
            key=lambda at: load[known[at : at + _KEY]] + known[at + _DEPTH],
        )
        if not ranked:
            return ()
        first = ranked[0]
        changed = bytearray(known)
        _HEAD.pack_into(changed, 0, full, told)
        changed[first + _STATE] += 1
        self._known.put(oid, bytes(changed))
        self._charge(known[first : first + _KEY])
        self.gave(oid, host, priority, known[first + _DEPTH] + 1)
        named = [self._keys.host(known[at : at + _KEY]) for at in ranked]
        return tuple(host for host in named if host is not None)

    def _able(self, known: bytes, start: int, priority: priority_.Priority) -> list[int]:
        """Return where those are that may be given a requester, LOOK at most."""
        found: list[int] = []
        for at in range(start, min(len(known), start + 4 * LOOK * _ENTRY), _ENTRY):
            if known[at + _STATE] >> _BELOW_BITS <= priority and self._has_room(known, at):
                found.append(at)
                if len(found) == LOOK:
                    break
        return found

    def _has_room(self, known: bytes, at: int) -> bool:
        below = known[at + _STATE] & (1 << _BELOW_BITS) - 1
        return below < FAN_OUT and known[at : at + _KEY] in self._keys

    def _charge(self, key: bytes) -> None:
        self._load[key] += 1
        self._recent.append(key)
        if len(self._recent) > RECENT:
            oldest = self._recent.popleft()
            self._load[oldest] -= 1
            if not self._load[oldest]:
                del self._load[oldest]
