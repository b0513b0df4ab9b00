# SPDX-License-Identifier: Apache-2.0
"""Referrals: where a busy host sends a requester, and which copies are surplus.

A home answers the first requesters of a chunk itself and refers later ones to earlier ones, at most
FAN_OUT to each, so the requesters form a tree. A host is never referred to a later one, so no two
hosts wait for each other. The oldest requester's copy is evicted first when there are too many (Wu
et al. 2017, 3.5). The requesters of a segment are one byte string: a head, and for each host, by
its last request, its key and a :class:`_Requester`, whose bitmaps give each chunk its own tree.
"""

import collections
import heapq
import struct
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine.data_structures import generational_cache
from acstor_agent.engine.data_structures import host_interning
from acstor_common.model import ids

BYTES = 32 * 1024 * 1024  # of the table, including Python's overhead per entry
OVERHEAD_BYTES = 128
HOSTS = 1024
"""Requesters of a segment; later ones are leaves. With 64, 256 hosts that read at once need 1.8
times as long in the swarm test."""
FAN_OUT = 2  # children of a host in a tree; ``_Requester`` has a bitmap for each
CHOICE = 2  # hosts in a referral, in case the first one is gone
LOOK = 32  # hosts with free places that are compared, the earliest ones
RECENT = 512  # latest referrals that count as load

_HEAD = struct.Struct(">HH")  # leading requesters that are full, and that got all their hints
_TAIL = struct.Struct(">B6H")  # a _Requester; before it the key
_KEY = host_interning.KEY_BYTES
_ENTRY = _KEY + _TAIL.size
_NOBODY = bytes(_HEAD.size)
_MAX_DEPTH = 255
READAHEAD = priority.Priority.READAHEAD


class _Requester(NamedTuple):
    """A host that was given chunks of a segment, or referred to another host for them."""

    depth: int
    bits: int
    hinted: int = 0  # those with an eviction hint
    parent: int = 0  # those with one child
    full: int = 0  # those with FAN_OUT children
    soon: int = 0  # those requested with priority READAHEAD
    later: int = 0  # those requested with priority PREFETCH

    @property
    def copies(self) -> int:
        return self.bits & ~self.hinted

    @property
    def room(self) -> int:
        return self.bits & ~self.full

    def room_for(self, priority: priority.Priority) -> int:
        """Return its chunks for which a requester with a priority may be referred to it."""
        late = (0 if priority >= READAHEAD else self.soon) | (
            0 if priority > READAHEAD else self.later
        )
        return self.room & ~late

    def with_child(self, bit: int) -> "_Requester":
        if self.parent & bit:
            return self._replace(full=self.full | bit)
        return self._replace(parent=self.parent | bit)


def _requester(bits: int, priority: priority.Priority, depth: int = 0) -> _Requester:
    soon, later = bits if priority is READAHEAD else 0, bits if priority > READAHEAD else 0
    return _Requester(min(depth, _MAX_DEPTH), bits, 0, 0, 0, soon, later)


def _weigh(known: bytes) -> int:
    return OVERHEAD_BYTES + len(known)


def _find(known: bytes, key: bytes) -> int:
    at = known.find(key, _HEAD.size)
    while at > 0 and (at - _HEAD.size) % _ENTRY:
        at = known.find(key, at + 1)
    return at


def _entry(known: bytes | bytearray, at: int) -> _Requester:
    return _Requester._make(_TAIL.unpack_from(known, at + _KEY))


def _at(index: int) -> int:
    return _HEAD.size + index * _ENTRY


def _held(known: bytes, bits: int) -> int:
    held = 0
    for at in range(_HEAD.size, len(known), _ENTRY):
        held |= _entry(known, at).bits
        if not bits & ~held:  # nearly always the first one has all of them
            break
    return held & bits


class Referrals:
    """Remembers which hosts were given or referred for which chunks.

    >>> referrals = Referrals(host_interning.HostInterning())
    >>> cid, peer = ids.cid_of(b"chunk"), priority.Priority.PEER
    >>> ref = chunk_ref.ChunkRef(cid, ids.oid_of(cid), ids.ImageId("i"), 0, 5)
    >>> referrals.record_served([ref], ids.HostId("h1"), peer)
    []
    >>> [referrals.referrals_for(ref, ids.HostId(host), peer) for host in ("h2", "h3", "h2")]
    [('h1',), ('h1', 'h2'), ()]
    >>> referrals.take_surplus(ref, limit=2), referrals.take_surplus(ref, limit=2)
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
        return len(self._known)

    def clear(self) -> None:
        """Forget all requesters."""
        self._known.clear()

    def record_served(
        self, refs: Sequence[chunk_ref.ChunkRef], host: ids.HostId, priority: priority.Priority
    ) -> list[ids.Oid]:
        """Record that a host is given chunks; return those that were given before."""
        key, bits_of = self._keys.key_of(host), dict[ids.Oid, int]()
        for ref in refs:
            bits_of[ref.ring_position] = bits_of.get(ref.ring_position, 0) | ref.bit
        before: dict[ids.Oid, int] = {}
        alone: dict[int, bytes] = {}  # new entries are mostly equal
        for segment, bits in bits_of.items():
            known = self._known.get(segment)
            if known is not None:
                before[segment] = _held(known, bits)
                self._add(segment, known, key, _requester(bits, priority))
            elif (first := alone.get(bits)) is not None:
                self._known.add(segment, first)
            else:
                alone[bits] = _NOBODY + key + _TAIL.pack(*_requester(bits, priority))
                self._known.add(segment, alone[bits])
        return (
            [ref.oid for ref in refs if ref.bit & before.get(ref.ring_position, 0)]
            if before
            else []
        )

    def _add(self, segment: ids.Oid, known: bytes, key: bytes, new: _Requester) -> None:
        full, unhinted = _HEAD.unpack_from(known)
        at = _find(known, key)
        if at >= 0:
            old = _entry(known, at)
            full -= at < _at(full)
            unhinted -= at < _at(unhinted)
            known = known[:at] + known[at + _ENTRY :]
            more = new.bits & ~old.bits
            new = old._replace(
                depth=min(old.depth, new.depth) if more else old.depth,
                bits=old.bits | more,
                hinted=old.hinted & ~new.bits,
                soon=old.soon | new.soon & more,
                later=old.later | new.later & more,
            )
        elif len(known) >= _at(HOSTS):
            return
        entry = key + _TAIL.pack(*new)
        self._known.put(segment, _HEAD.pack(full, unhinted) + known[_HEAD.size :] + entry)

    def take_surplus(self, ref: chunk_ref.ChunkRef, limit: int) -> ids.HostId | None:
        """Return the oldest requester of a chunk, once, if over ``limit`` hosts hold it."""
        known = self._known.get(ref.ring_position)
        if known is None:
            return None
        full, unhinted = _HEAD.unpack_from(known)
        copies: list[int] = []
        for at in range(_at(unhinted), len(known), _ENTRY):
            if _entry(known, at).copies & ref.bit:
                copies.append(at)
                if len(copies) > limit:
                    break
        else:
            return None
        changed = bytearray(known)
        first = copies[0]
        entry = _entry(known, first)
        _TAIL.pack_into(changed, first + _KEY, *entry._replace(hinted=entry.hinted | ref.bit))
        while _at(unhinted) < len(changed) and not _entry(changed, _at(unhinted)).copies:
            unhinted += 1
        _HEAD.pack_into(changed, 0, full, unhinted)
        self._known.put(ref.ring_position, bytes(changed))
        return self._keys.host_of(known[first : first + _KEY])

    def referrals_for(
        self, ref: chunk_ref.ChunkRef, host: ids.HostId, priority: priority.Priority
    ) -> tuple[ids.HostId, ...]:
        """Return hosts to refer ``host`` to, the best first: few referrals, near to the root."""
        known, key = self._known.get(ref.ring_position), self._keys.key_of(host)
        if known is None or self._has(known, key, ref.bit):
            return ()  # a host that asks again was not served: do not refer it again
        full, unhinted = _HEAD.unpack_from(known)
        while _at(full) < len(known) and not self._has_room(known, _at(full)):
            full += 1
        ranked = self._best(known, _at(full), ref.bit, priority)
        if not ranked:
            return ()
        first, parent = ranked[0], _entry(known, ranked[0])
        changed = bytearray(known)
        _HEAD.pack_into(changed, 0, full, unhinted)
        _TAIL.pack_into(changed, first + _KEY, *parent.with_child(ref.bit))
        child = _requester(ref.bit, priority, parent.depth + 1)
        self._add(ref.ring_position, bytes(changed), key, child)
        keys = [known[at : at + _KEY] for at in ranked]
        self._charge(keys[0])
        named = map(self._keys.host_of, keys)
        return tuple(host for host in named if host is not None)

    @staticmethod
    def _has(known: bytes, key: bytes, bit: int) -> bool:
        at = _find(known, key)
        return at >= 0 and bool(_entry(known, at).bits & bit)

    def _best(self, known: bytes, start: int, bit: int, priority: priority.Priority) -> list[int]:
        """Return the offsets of the best CHOICE of at most LOOK hosts, none of them less urgent."""
        able: list[int] = []
        for at in range(start, min(len(known), start + 4 * LOOK * _ENTRY), _ENTRY):
            if self._is_able(known, at, bit, priority):
                able.append(at)
                if len(able) == LOOK:
                    break
        load = self._load
        return heapq.nsmallest(
            CHOICE, able, key=lambda at: load[known[at : at + _KEY]] + known[at + _KEY]
        )

    def _is_able(self, known: bytes, at: int, bit: int, priority: priority.Priority) -> bool:
        may = _entry(known, at).room_for(priority) & bit
        return bool(may) and known[at : at + _KEY] in self._keys

    def _has_room(self, known: bytes, at: int) -> bool:
        return bool(_entry(known, at).room) and known[at : at + _KEY] in self._keys

    def _charge(self, key: bytes) -> None:
        self._load[key] += 1
        self._recent.append(key)
        if len(self._recent) > RECENT:
            oldest = self._recent.popleft()
            self._load[oldest] -= 1
            if not self._load[oldest]:
                del self._load[oldest]
