# SPDX-License-Identifier: Apache-2.0
"""Announcements: which chunks are here, which are gone, and which copies may be evicted.

A message names segments, and the chunks of each by a bitmap (:mod:`acstor_common.model.segments`).

This host *hears* hosts of its own group that are not in backoff, within
``announcement_limits``.  It *tells* its neighbours: announcements gather for DELAY_S or until a
message is full.  A host is not told what it announced or gave itself.  An eviction is announced to
those who were told of the chunk.  For each chunk the table keeps who was *not* told, mostly nobody,
so one encoded message serves all neighbours.  *Hints* tell hosts with surplus copies of what this
host is the home of that they may evict them first.  Segments of another length have other names, so
a new length begins with empty tables, and announcements by another length are ignored.

All queues and tables are bounded and drop their oldest entry.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import generational_cache
from acstor_agent.engine import neighbours
from acstor_agent.engine import peer_state
from acstor_agent.engine import ring_view
from acstor_agent.engine import timers
from acstor_agent.engine.gossip import location_index
from acstor_common.model import ids
from acstor_common.model import segments

DELAY_S = 0.1
BATCH_CHUNKS = 512
"""Chunks of a kind in one message, and segments of those that may go."""
NEW_CHUNKS = 4096
"""Of what was told to the others, that a neighbour is told who is new, or did not get it."""
AGAIN_S, AGAIN_LONGEST_S = 1.0, 60.0
"""After which such a neighbour is told again: at first, and when it was in vain again and again."""
TOLD_CHUNKS = 65_536
"""Chunks of which it is known that they were told."""
HINT_EVERY_S = 5.0
HINTS = 1024
"""Segments that wait for one host, and hosts that they wait for."""
HINTED_AT_A_TIME = 64
"""Hosts: each may need a connection."""

_Untold = tuple[ids.HostId, ...]


class _Told(NamedTuple):
    """An announced chunk: its place in a segment, and the neighbours that were not told.

    :param segment: None: the chunk is one
    """

    segment: ids.Oid | None
    bit: int
    untold: _Untold


_News = dict[ids.Oid, _Told]
_Chunks = Sequence[segments.Chunks]


class Announcements:
    """What is told and heard.

    :param topology: whom to tell what is here; None: nobody, and nobody is believed
    :param lookups: says how many each chunk takes on this host
    """

    def __init__(
        self,
        out: actions.Out,
        deadlines: timers.Timers,
        tables: ring_view.RingView,
        book: peer_state.PeerStates,
        holders: location_index.LocationIndex,
        topology: neighbours.Topology | None,
        lookups: Callable[[], int],
    ) -> None:
        self._out, self._deadlines, self._tables, self._book = out, deadlines, tables, book
        self._holders, self._topology, self._lookups = holders, topology, lookups
        self._segment_chunks = tables.table.segment_chunks
        self.heard_chunks = self.ignored_chunks = 0
        self._neighbours: dict[ids.HostId, None] = {}
        self._told: generational_cache.GenerationalCache[ids.Oid, _Told] = (
            generational_cache.GenerationalCache(TOLD_CHUNKS)
        )
        self._here: _News = {}
        self._gone: _News = {}
        self._due_s: float | None = None
        self._unheard: set[ids.HostId] = set()  # each has an entry among the deadlines
        self._again_s: dict[ids.HostId, float] = {}  # of neighbours that have said nothing since
        self.hints: collections.OrderedDict[ids.HostId, dict[ids.Oid, int]] = (
            collections.OrderedDict()
        )

    def __len__(self) -> int:
        """Return of how many chunks the neighbours are still to be told."""
        return len(self._here) + len(self._gone)

    # What is heard

    def process_announcement(
        self,
        host: ids.HostId,
        here: _Chunks,
        gone: _Chunks,
        evictable: _Chunks,
        segment_chunks: int,
        now: float,
    ) -> None:
        """Take note of what a peer tells.

        :param segment_chunks: the length of its segments
        """
        self._again_s.pop(host, None)
        is_alike = segment_chunks == self._segment_chunks
        if not (is_alike and self._tables.is_near(host)) or self._book.is_in_backoff(host, now):
            self.ignored_chunks += sum(map(segments.count, (here, gone, evictable)))
            return
        known: _Chunks = ()
        if self._topology is not None:
            self._holders.remove_holder(host, self._listen(host, gone, 1, now))
            known = self._listen(host, here, self._lookups(), now)
            self._holders.add_holder(host, known)
            if host in self._neighbours:
                self._need_not_tell(host, known)
        evictable = self._listen(host, evictable, self._lookups(), now)
        if known or evictable:
            self._out.others.append(actions.Heard(host, known, evictable))

    def _listen(self, host: ids.HostId, told: _Chunks, lookups: int, now: float) -> _Chunks:
        """Return what of it the host's allowance covers."""
        count = segments.count(told)
        heard = self._book.listening.admit_chunks(host, count, now, lookups) if count else 0
        self.heard_chunks += heard
        self.ignored_chunks += count - heard
        return told if heard == count else segments.first(told, heard)

    def _need_not_tell(self, host: ids.HostId, known: _Chunks) -> None:
        """Leave a neighbour out where it announced the same chunks meanwhile."""
        bits_of = dict(known)
        for oid, told in self._here.items():
            if told.bit & bits_of.get(_segment(oid, told), 0):
                self._here[oid] = told = told._replace(untold=(*told.untold, host))
                self._told.put(oid, told)

    # What is told

    def follow_table(self, now: float) -> None:
        """Choose the neighbours, among near hosts; tell new ones what the others were told last."""
        if self._segment_chunks != self._tables.table.segment_chunks:
            self._begin_anew()
        if self._topology is None:
            return
        self._flush(now)
        near, before = self._tables.near, self._neighbours
        hosts = [ids.HostId(host.host) for host in near.hosts]
        where = near.host_locations()
        self._neighbours = dict.fromkeys(self._topology(hosts, self._tables.here, where))
        known = self._again_s.items()
        self._again_s = {host: wait_s for host, wait_s in known if host in self._neighbours}
        self._tell_last([host for host in self._neighbours if host not in before], now)

    def _begin_anew(self) -> None:
        """Forget segments of another length."""
        self._segment_chunks = self._tables.table.segment_chunks
        for table in (self._holders, self._told, self._here, self._gone, self.hints):
            table.clear()

    def _tell_last(self, hosts: Sequence[ids.HostId], now: float) -> None:
        last = self._told.keys()[-NEW_CHUNKS:] if hosts else []
        for at in range(0, len(last), BATCH_CHUNKS):
            batch = [(oid, self._told.get(oid)) for oid in last[at : at + BATCH_CHUNKS]]
            self._send({oid: told for oid, told in batch if told is not None}, {}, hosts, now)

    def announcement_lost(self, host: ids.HostId, now: float) -> None:
        """Have a neighbour told again, in a while: it is not sure that it got what it was told."""
        if host in self._neighbours and host not in self._unheard:
            self._unheard.add(host)
            wait_s = self._again_s.get(host, AGAIN_S)
            self._again_s[host] = min(2 * wait_s, AGAIN_LONGEST_S)
            self._deadlines.put(now + wait_s, timers.Due.TELL_AGAIN, host)

    def tell_again(self, host: ids.HostId, now: float) -> None:
        """Tell a neighbour, if it still is one, what was told last."""
        self._unheard.discard(host)
        if host in self._neighbours:
            self._tell_last([host], now)

    def announce_chunks(
        self, refs: Iterable[chunk_ref.ChunkRef], giver: ids.HostId | None, now: float
    ) -> None:
        """Tell of chunks that are here now.

        :param giver: who gave them; None for the source
        """
        if self._topology is None:
            return
        told, bits = self._told, 1 << self._segment_chunks
        # Chunks of a former segment length are not announced, and equal ones once.
        unknown = (ref for ref in refs if ref.oid not in told and ref.bit < bits)
        new = [*{ref.oid: ref for ref in unknown}.values()]
        if self._gone:
            new = [ref for ref in new if not self._is_back(ref.oid)]
        before: bytes | None = None
        untold: _Untold = ()
        for ref, keys in zip(new, self._holders.all_keys(new), strict=True):
            if keys != before:  # the same for most of them
                before, untold = keys, self._neighbours_among(giver, keys)
            news = _Told(ref.segment, ref.bit if ref.segment is not None else 1, untold)
            if self._neighbours:
                self._put(self._here, ref.oid, news, now)
            told.put(ref.oid, news)

    def _is_back(self, oid: ids.Oid) -> bool:
        """Say whether others have not heard yet that a chunk was gone; then it is here again."""
        former = self._gone.pop(oid, None)
        if former is not None:
            self._told.put(oid, former)
        return former is not None

    def _neighbours_among(self, giver: ids.HostId | None, keys: bytes) -> _Untold:
        hosts = (giver, *self._holders.hosts_of_keys(keys))
        return tuple({host: None for host in hosts if host in self._neighbours})

    def withdraw_chunk(self, oid: ids.Oid, now: float) -> None:
        """Take back what was told of a chunk that is not here any more."""
        told = self._told.pop(oid)
        if told is not None and self._here.pop(oid, None) is None and self._neighbours:
            self._put(self._gone, oid, told, now)

    def flush(self, now: float) -> None:
        """Send what is due."""
        if self._due_s is not None and self._due_s <= now:
            self._flush(now)

    def _put(self, news: _News, oid: ids.Oid, told: _Told, now: float) -> None:
        news[oid] = told
        if len(news) >= BATCH_CHUNKS:
            self._flush(now)
        elif self._due_s is None:
            self._deadlines.put(now + DELAY_S, timers.Due.NEWS, None)
            self._due_s = now + DELAY_S

    def _flush(self, now: float) -> None:
        here, gone = self._here, self._gone
        self._here, self._gone, self._due_s = {}, {}, None
        if here or gone:
            self._send(here, gone, self._neighbours, now)

    def _send(self, here: _News, gone: _News, hosts: Iterable[ids.HostId], now: float) -> None:
        all_news = _bitmaps(here, None), _bitmaps(gone, None)
        some = {host for news in (here, gone) for told in news.values() for host in told.untold}
        for host in hosts:
            if host in some:
                self._tell(host, _bitmaps(here, host), _bitmaps(gone, host), (), now)
            else:
                self._tell(host, *all_news, (), now)

    def _tell(
        self,
        host: ids.HostId,
        here: tuple[segments.Chunks, ...],
        gone: tuple[segments.Chunks, ...],
        evictable: tuple[segments.Chunks, ...],
        now: float,
    ) -> None:
        """Tell a host something, if there is anything, and if it is on the table and not bad."""
        if (here or gone or evictable) and self._is_good(host, now):
            tell = actions.Tell(host, here, gone, evictable, self._segment_chunks)
            self._out.others.append(tell)

    def _is_good(self, host: ids.HostId, now: float) -> bool:
        return host in self._tables.table and not self._book.is_in_backoff(host, now)

    # Copies that may go

    def hint_eviction(self, host: ids.HostId, ref: chunk_ref.ChunkRef) -> None:
        """Have a host told that it may let a chunk go first."""
        if host not in self.hints and len(self.hints) >= HINTS:
            self.hints.popitem(last=False)
        waiting = self.hints.setdefault(host, {})
        waiting[ref.place] = waiting.get(ref.place, 0) | ref.bit
        if len(waiting) > HINTS:
            del waiting[next(iter(waiting))]

    def withdraw_hint(self, host: ids.HostId, ref: chunk_ref.ChunkRef) -> None:
        """Note that a host has use for a chunk again."""
        waiting = self.hints.get(host, {})
        bits = waiting.get(ref.place, 0)
        if bits & ~ref.bit:
            waiting[ref.place] = bits & ~ref.bit
        else:
            waiting.pop(ref.place, None)

    def flush_hints(self, now: float) -> None:
        """Send some hints, one message for a host, hosts that wait longest first."""
        for host in list(self.hints)[:HINTED_AT_A_TIME]:
            chunks = segments.bitmaps(self.hints.pop(host).items())
            self._tell(host, (), (), chunks[:BATCH_CHUNKS], now)
            if rest := dict(chunks[BATCH_CHUNKS:]):
                self.hints[host] = rest
        self._deadlines.put(now + HINT_EVERY_S, timers.Due.HINTS, None)


def _bitmaps(news: _News, host: ids.HostId | None) -> tuple[segments.Chunks, ...]:
    """Return the chunks of which a host is to be told, by segment."""
    return segments.bitmaps(
        [(_segment(oid, told), told.bit) for oid, told in news.items() if host not in told.untold]
    )


def _segment(oid: ids.Oid, told: _Told) -> ids.Oid:
    return oid if told.segment is None else told.segment
