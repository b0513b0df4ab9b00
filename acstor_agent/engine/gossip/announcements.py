# SPDX-License-Identifier: Apache-2.0
"""Announcements: held chunks, evicted chunks, and eviction hints.

A message names segments, each with a bitmap of chunks (:mod:`acstor_common.model.segments`). It is
accepted from hosts of this group that are not in backoff, within :class:`AnnouncementLimits`, and
with the same segment length. A neighbour is not sent its own announcements, or chunks it gave: for
each chunk the table keeps the neighbours that were *skipped*, so one encoded message serves all
others. *Hints* tell hosts with surplus copies of chunks of this home to evict them first; only the
home of a chunk may hint. Full queues and tables drop their oldest entry.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import peer_state
from acstor_agent.engine.data_structures import generational_cache
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.gossip import location_index
from acstor_agent.engine.ring import ring_view
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.util import lru_table
from acstor_common.util import token_buckets

DELAY_S = 0.1  # for which own announcements gather, unless they fill a message before
BATCH_CHUNKS = 512  # chunks of a kind, or segments with hints, in one message
NEW_CHUNKS = 4096  # latest announced chunks, which a new or reconnected neighbour gets
REPEAT_FIRST_S, REPEAT_LONGEST_S = 1.0, 60.0
"""Delay before a reconnected neighbour gets them: first, and longest after repeated failures."""
REMEMBERED_CHUNKS = 65_536  # announced chunks that are remembered
HINT_EVERY_S = 5.0
HINTS = 1024  # segments with hints for one host, and hosts with hints
HINTED_AT_A_TIME = 64  # hosts that get hints at a time, since each may need a connection
ANNOUNCED_CHUNKS = token_buckets.Rate(per_s=20_000.0, burst=20_000.0)
"""Announced chunks accepted from a peer; 10 Gbit/s carry 19,000 chunks of 64 KiB a second."""
LOOKUPS_OF_PEER = token_buckets.Rate(per_s=40_000.0, burst=20_000.0)
"""A look-up takes up to 1 us (measured): 4 % of a processor. A segment of an image costs more."""
LOOKUPS_OF_ALL = token_buckets.Rate(per_s=100_000.0, burst=50_000.0)
DENIAL_COST = 16  # chunks that a peer's allowance loses when it denies a chunk that it announced
RATED_PEERS = 4096  # peers whose announcement rate is remembered

_Skipped = tuple[ids.HostId, ...]


class _Announced(NamedTuple):
    segment: ids.Oid | None  # None: a segment of its own
    bit: int
    skipped: _Skipped


_Queue = dict[ids.Oid, _Announced]
_Chunks = Sequence[segments.Chunks]


class AnnouncementLimits:
    """Rate limits for the chunks and look-ups of peers' announcements; the excess is dropped.

    >>> h1, h2 = ids.HostId("h1"), ids.HostId("h2")
    >>> limits = AnnouncementLimits(token_buckets.Rate(per_s=10.0, burst=30.0), peers=100)
    >>> some = [(ids.Oid(number), 0b11) for number in range(1, 26)]
    >>> [segments.count(limits.admit_chunks(h1, some, now)) for now in (0.0, 1.0)]
    [30, 10]
    >>> len(limits.admit_chunks(h2, some, 1.0, lookups=10_000))  # with as many images attached
    2
    """

    def __init__(self, chunks: token_buckets.Rate, peers: int) -> None:
        self._chunks: token_buckets.TokenBuckets[ids.HostId] = token_buckets.TokenBuckets(
            chunks, peers
        )
        self._lookups: token_buckets.TokenBuckets[ids.HostId] = token_buckets.TokenBuckets(
            LOOKUPS_OF_PEER, peers
        )
        self._all_lookups: token_buckets.TokenBuckets[None] = token_buckets.TokenBuckets(
            LOOKUPS_OF_ALL, 1
        )

    def __len__(self) -> int:
        return len(self._chunks)

    def admit_chunks(
        self, host: ids.HostId, chunks: _Chunks, now: float, lookups: int = 1
    ) -> _Chunks:
        """Return the leading segments to accept, at ``lookups`` each."""
        chunks = chunks[: int(self.lookups_left(host, now) / lookups)]
        accepted = segments.first(chunks, int(self._chunks.tokens_left(host, now)))
        self._chunks.charge_tokens(host, segments.count(accepted), now)
        self.charge_lookups(host, len(accepted) * lookups, now)
        return accepted

    def lookups_left(self, host: ids.HostId, now: float) -> float:
        """Return how many look-ups a peer may cause now."""
        of_all = self._all_lookups.tokens_left(None, now)
        return max(0.0, min(self._lookups.tokens_left(host, now), of_all))

    def charge_lookups(self, host: ids.HostId, lookups: int, now: float) -> None:
        """Charge a peer for look-ups."""
        self._lookups.charge_tokens(host, lookups, now)
        self._all_lookups.charge_tokens(None, lookups, now)

    def penalize_peer(self, host: ids.HostId, chunks: int, now: float) -> None:
        """Reduce the allowance of a peer that announced wrong chunks."""
        self._chunks.charge_tokens(host, chunks, now)


class Announcements:
    """Sends and receives announcements; ``topology`` None: eviction hints only."""

    def __init__(
        self,
        out: actions.ActionQueue,
        deadlines: timers.Timers,
        ring: ring_view.RingView,
        peers: peer_state.PeerStates,
        locations: location_index.LocationIndex,
        topology: ring_view.Topology | None,
        attached: Collection[ids.ImageId],
    ) -> None:
        self._out, self._deadlines, self._ring, self._peers = out, deadlines, ring, peers
        self._locations, self._topology, self._attached = locations, topology, attached
        self._segment_chunks = ring.table.segment_chunks
        self.limits = AnnouncementLimits(ANNOUNCED_CHUNKS, RATED_PEERS)
        self.accepted_chunks = self.ignored_chunks = 0
        self._neighbours: dict[ids.HostId, None] = {}
        self._announced: generational_cache.GenerationalCache[ids.Oid, _Announced] = (
            generational_cache.GenerationalCache(REMEMBERED_CHUNKS)
        )
        self._held: _Queue = {}
        self._evicted: _Queue = {}
        self._due_s: float | None = None
        self._retry_scheduled: set[ids.HostId] = set()  # each has a REPEAT_ANNOUNCEMENTS timer
        self._retry_wait_s: dict[ids.HostId, float] = {}  # of neighbours that sent nothing since
        self.hints = lru_table.LruTable[ids.HostId, dict[ids.Oid, int]](HINTS)

    def __len__(self) -> int:
        return len(self._held) + len(self._evicted)

    def process_announcement(
        self,
        host: ids.HostId,
        held: _Chunks,
        evicted: _Chunks,
        evictable: _Chunks,
        segment_chunks: int,
        now: float,
    ) -> None:
        """Take an announcement of a peer."""
        self._retry_wait_s.pop(host, None)
        is_alike = segment_chunks == self._segment_chunks
        if not (is_alike and self._ring.is_near(host)) or self._peers.is_in_backoff(host, now):
            self.ignored_chunks += sum(map(segments.count, (held, evicted, evictable)))
            return
        known: _Chunks = ()
        lookups = 1 + len(self._attached)  # in the index of each image
        if self._topology is not None:
            self._locations.remove_holder(host, self._admit_chunks(host, evicted, 1, now))
            known = self._admit_chunks(host, held, lookups, now)
            self._locations.add_holder(host, known)
            if host in self._neighbours:
                self._skip_known(host, known)
        hinted = self._admit_chunks(host, evictable, lookups, now)
        evictable = [chunks for chunks in hinted if self._ring.home(chunks[0]) == host]
        if known or evictable:
            self._out.others.append(actions.ForwardAnnouncement(host, known, evictable))

    def _admit_chunks(self, host: ids.HostId, chunks: _Chunks, lookups: int, now: float) -> _Chunks:
        if not chunks:
            return chunks
        accepted = self.limits.admit_chunks(host, chunks, now, lookups)
        count = segments.count(accepted)
        self.accepted_chunks += count
        self.ignored_chunks += segments.count(chunks) - count
        return accepted

    def _skip_known(self, host: ids.HostId, known: _Chunks) -> None:
        bits_of = dict(known)
        for oid, entry in self._held.items():
            if entry.bit & bits_of.get(_segment(oid, entry), 0):
                self._held[oid] = entry = entry._replace(skipped=(*entry.skipped, host))
                self._announced.put(oid, entry)

    def follow_table(self, now: float) -> None:
        """Select the neighbours in the group; send new ones the latest announcements."""
        if self._segment_chunks != self._ring.table.segment_chunks:
            self._clear_tables()
        if self._topology is None:
            return
        self._flush(now)
        near, before = self._ring.near, self._neighbours
        hosts = [ids.HostId(host.host) for host in near.hosts]
        where = near.host_locations()
        self._neighbours = dict.fromkeys(self._topology(hosts, self._ring.own_host, where))
        known = self._retry_wait_s.items()
        self._retry_wait_s = {host: wait_s for host, wait_s in known if host in self._neighbours}
        self._send_latest([host for host in self._neighbours if host not in before], now)

    def _clear_tables(self) -> None:
        self._segment_chunks = self._ring.table.segment_chunks
        for table in (self._locations, self._announced, self._held, self._evicted, self.hints):
            table.clear()

    def _send_latest(self, hosts: Sequence[ids.HostId], now: float) -> None:
        last = self._announced.keys()[-NEW_CHUNKS:] if hosts else []
        for at in range(0, len(last), BATCH_CHUNKS):
            batch = [(oid, self._announced.get(oid)) for oid in last[at : at + BATCH_CHUNKS]]
            self._send({oid: entry for oid, entry in batch if entry is not None}, {}, hosts, now)

    def announcement_lost(self, host: ids.HostId, now: float) -> None:
        """Schedule announcements again for a neighbour that may have missed some."""
        if host in self._neighbours and host not in self._retry_scheduled:
            self._retry_scheduled.add(host)
            wait_s = self._retry_wait_s.get(host, REPEAT_FIRST_S)
            self._retry_wait_s[host] = min(2 * wait_s, REPEAT_LONGEST_S)
            self._deadlines.set_timer(now + wait_s, timers.Due.REPEAT_ANNOUNCEMENTS, host)

    def repeat_announcements(self, host: ids.HostId, now: float) -> None:
        """Send the latest announcements to a neighbour, if it still is one."""
        self._retry_scheduled.discard(host)
        if host in self._neighbours:
            self._send_latest([host], now)

    def announce_chunks(
        self, refs: Iterable[chunk_ref.ChunkRef], provider: ids.HostId | None, now: float
    ) -> None:
        """Announce cached chunks; ``provider`` None: the source."""
        if self._topology is None:
            return
        announced, bits = self._announced, 1 << self._segment_chunks
        # Skip chunks of a former segment length, and duplicates.
        unknown = (ref for ref in refs if ref.oid not in announced and ref.bit < bits)
        new = [*{ref.oid: ref for ref in unknown}.values()]
        if self._evicted:
            new = [ref for ref in new if not self._cancel_withdrawal(ref.oid)]
        before: bytes | None = None
        skipped: _Skipped = ()
        for ref, keys in zip(new, self._locations.all_keys(new), strict=True):
            if keys != before:  # often the same
                before, skipped = keys, self._neighbours_among(provider, keys)
            entry = _Announced(ref.segment, ref.bit if ref.segment is not None else 1, skipped)
            if self._neighbours:
                self._put(self._held, ref.oid, entry, now)
            announced.put(ref.oid, entry)

    def _cancel_withdrawal(self, oid: ids.Oid) -> bool:
        former = self._evicted.pop(oid, None)
        if former is not None:
            self._announced.put(oid, former)
        return former is not None

    def _neighbours_among(self, provider: ids.HostId | None, keys: bytes) -> _Skipped:
        hosts = (provider, *self._locations.hosts_of_keys(keys))
        return tuple({host: None for host in hosts if host in self._neighbours})

    def withdraw_chunk(self, oid: ids.Oid, now: float) -> None:
        """Withdraw the announcement of an evicted chunk."""
        entry = self._announced.pop(oid)
        if entry is not None and self._held.pop(oid, None) is None and self._neighbours:
            self._put(self._evicted, oid, entry, now)

    def flush(self, now: float) -> None:
        """Send the gathered announcements if they are due."""
        if self._due_s is not None and self._due_s <= now:
            self._flush(now)

    def _put(self, queue: _Queue, oid: ids.Oid, entry: _Announced, now: float) -> None:
        queue[oid] = entry
        if len(queue) >= BATCH_CHUNKS:
            self._flush(now)
        elif self._due_s is None:
            self._deadlines.set_timer(now + DELAY_S, timers.Due.ANNOUNCEMENTS, None)
            self._due_s = now + DELAY_S

    def _flush(self, now: float) -> None:
        held, evicted = self._held, self._evicted
        self._held, self._evicted, self._due_s = {}, {}, None
        if held or evicted:
            self._send(held, evicted, self._neighbours, now)

    def _send(self, held: _Queue, evicted: _Queue, hosts: Iterable[ids.HostId], now: float) -> None:
        to_others = _bitmaps(held, None), _bitmaps(evicted, None)
        some = {
            host for queue in (held, evicted) for entry in queue.values() for host in entry.skipped
        }
        for host in hosts:
            if host in some:
                self._send_message(host, _bitmaps(held, host), _bitmaps(evicted, host), (), now)
            else:
                self._send_message(host, *to_others, (), now)

    def _send_message(
        self,
        host: ids.HostId,
        held: tuple[segments.Chunks, ...],
        evicted: tuple[segments.Chunks, ...],
        evictable: tuple[segments.Chunks, ...],
        now: float,
    ) -> None:
        if (held or evicted or evictable) and self._is_reachable(host, now):
            message = actions.SendAnnouncement(host, held, evicted, evictable, self._segment_chunks)
            self._out.others.append(message)

    def _is_reachable(self, host: ids.HostId, now: float) -> bool:
        return host in self._ring.table and not self._peers.is_in_backoff(host, now)

    def hint_eviction(self, host: ids.HostId, ref: chunk_ref.ChunkRef) -> None:
        """Queue a hint that a host may evict a chunk first."""
        waiting = self.hints.get(host)
        if waiting is None:
            waiting = self.hints[host] = {}
        waiting[ref.ring_position] = waiting.get(ref.ring_position, 0) | ref.bit
        if len(waiting) > HINTS:
            del waiting[next(iter(waiting))]

    def withdraw_hint(self, host: ids.HostId, ref: chunk_ref.ChunkRef) -> None:
        """Remove a queued hint, because the host uses the chunk again."""
        waiting = self.hints.get(host, {})
        bits = waiting.get(ref.ring_position, 0)
        if bits & ~ref.bit:
            waiting[ref.ring_position] = bits & ~ref.bit
        else:
            waiting.pop(ref.ring_position, None)

    def flush_hints(self, now: float) -> None:
        """Send hints, one message for a host, to the hosts that wait longest."""
        for host in list(self.hints)[:HINTED_AT_A_TIME]:
            chunks = segments.bitmaps(self.hints.pop(host).items())
            self._send_message(host, (), (), chunks[:BATCH_CHUNKS], now)
            if rest := dict(chunks[BATCH_CHUNKS:]):
                self.hints[host] = rest
        self._deadlines.set_timer(now + HINT_EVERY_S, timers.Due.HINTS, None)


def _bitmaps(queue: _Queue, host: ids.HostId | None) -> tuple[segments.Chunks, ...]:
    return segments.bitmaps(
        [
            (_segment(oid, entry), entry.bit)
            for oid, entry in queue.items()
            if host not in entry.skipped
        ]
    )


def _segment(oid: ids.Oid, entry: _Announced) -> ids.Oid:
    return oid if entry.segment is None else entry.segment
