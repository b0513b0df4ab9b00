# SPDX-License-Identifier: Apache-2.0
"""Announcements: which chunks are here, which are gone, and which copies may be evicted.

This host *hears* hosts of its own group that are not in backoff, within
``announcement_limits``.  It *tells* its neighbours: announcements gather for DELAY_S or until a
message is full.  A host is not told what it announced or gave itself.  An eviction is announced to
those who were told of the chunk.  For each chunk the table keeps who was *not* told, mostly nobody,
so one encoded message serves all neighbours.  *Hints* tell hosts with surplus copies of what this
host is the home of that they may evict them first.

All queues and tables are bounded and drop their oldest entry.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_agent.engine import actions
from acstor_agent.engine import generational_cache
from acstor_agent.engine import neighbours
from acstor_agent.engine import peer_state
from acstor_agent.engine import ring_view
from acstor_agent.engine import timers
from acstor_agent.engine.gossip import location_index
from acstor_common import ids

DELAY_S = 0.1
BATCH_OIDS = 512
"""OIDs of a kind in one message."""
NEW_OIDS = 4096
"""Of what was told to the others, that a neighbour is told who is new, or did not get it."""
AGAIN_S, AGAIN_LONGEST_S = 1.0, 60.0
"""After which such a neighbour is told again: at first, and when it was in vain again and again."""
TOLD_OIDS = 65_536
"""Contents of which it is known that they were told."""
HINT_EVERY_S = 5.0
HINTS = 1024
"""That wait for one host, and hosts that they wait for."""
HINTED_AT_A_TIME = 64
"""Hosts: each may need a connection."""

_Untold = tuple[ids.HostId, ...]
_News = dict[ids.Oid, _Untold]


class Announcements:
    """What is told and heard.

    :param topology: whom to tell what is here; None: nobody, and nobody is believed
    :param lookups: says how many each OID takes on this host
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
        self.heard_oids = self.ignored_oids = 0
        self._neighbours: dict[ids.HostId, None] = {}
        self._told: generational_cache.GenerationalCache[ids.Oid, _Untold] = (
            generational_cache.GenerationalCache(TOLD_OIDS)
        )
        self._here: _News = {}
        self._gone: _News = {}
        self._due_s: float | None = None
        self._unheard: set[ids.HostId] = set()  # each has an entry among the deadlines
        self._again_s: dict[ids.HostId, float] = {}  # of neighbours that have said nothing since
        self.hints: collections.OrderedDict[ids.HostId, dict[ids.Oid, None]] = (
            collections.OrderedDict()
        )

    def __len__(self) -> int:
        """Return of how many contents the neighbours are still to be told."""
        return len(self._here) + len(self._gone)

    # What is heard

    def heard(
        self,
        host: ids.HostId,
        here: Sequence[ids.Oid],
        gone: Sequence[ids.Oid],
        evictable: Sequence[ids.Oid],
        now: float,
    ) -> None:
        """Take note of what a peer tells."""
        self._again_s.pop(host, None)
        if not self._tables.is_near(host) or self._book.is_alone(host, now):
            self.ignored_oids += len(here) + len(gone) + len(evictable)
            return
        known: Sequence[ids.Oid] = ()
        if self._topology is not None:
            self._holders.taken_back(host, gone[: self._listen(host, len(gone), 1, now)])
            known = here[: self._listen(host, len(here), self._lookups(), now)]
            self._holders.told(host, known)
            if host in self._neighbours:
                for oid in self._here.keys() & known:  # he need not be told of them
                    self._here[oid] = untold = (*self._here[oid], host)
                    self._told.put(oid, untold)
        wished = evictable[: self._listen(host, len(evictable), self._lookups(), now)]
        mine = tuple(wished)
        if self._tables.table.segment_chunks == 1:  # else who knows the image knows the home
            mine = tuple(oid for oid in wished if self._tables.home(oid) == host)
        if known or mine:
            self._out.others.append(actions.Heard(host, tuple(known), mine))

    def _listen(self, host: ids.HostId, count: int, lookups: int, now: float) -> int:
        heard = self._book.listening.take(host, count, now, lookups) if count else 0
        self.heard_oids += heard
        self.ignored_oids += count - heard
        return heard

    # What is told

    def follow_table(self, now: float) -> None:
        """Choose the neighbours, among near hosts; tell new ones what the others were told last."""
        if self._topology is None:
            return
        self._flush(now)
        near, before = self._tables.near, self._neighbours
        hosts = [ids.HostId(host.host) for host in near.hosts]
        where = near.locations()
        self._neighbours = dict.fromkeys(
            neighbours.neighbours(hosts, self._tables.here, self._topology, locations=where)
        )
        known = self._again_s.items()
        self._again_s = {host: wait_s for host, wait_s in known if host in self._neighbours}
        self._tell_last([host for host in self._neighbours if host not in before], now)

    def _tell_last(self, hosts: Sequence[ids.HostId], now: float) -> None:
        last = self._told.keys()[-NEW_OIDS:] if hosts else []
        for at in range(0, len(last), BATCH_OIDS):
            batch = {oid: self._told.get(oid) or () for oid in last[at : at + BATCH_OIDS]}
            self._send(batch, {}, hosts, now)

    def unheard(self, host: ids.HostId, now: float) -> None:
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

    def have(self, oids: Sequence[ids.Oid], giver: ids.HostId | None, now: float) -> None:
        """Tell of contents that are here now.

        :param giver: who gave them; None for the source
        """
        if self._topology is None:
            return
        told, keys_of = self._told, self._holders.keys
        before: bytes | None = None
        untold: _Untold = ()
        for oid in oids:
            if oid in told:
                continue
            if self._gone and (former := self._gone.pop(oid, None)) is not None:
                told.put(oid, former)  # they have not heard yet that it was gone
                continue
            keys = keys_of(oid)
            if keys != before:  # the same for most of them
                before, untold = keys, self._neighbours_among(giver, keys)
            if self._neighbours:
                self._put(self._here, oid, untold, now)
            told.add(oid, untold)

    def _neighbours_among(self, giver: ids.HostId | None, keys: bytes) -> _Untold:
        hosts = (giver, *self._holders.named(keys))
        return tuple({host: None for host in hosts if host in self._neighbours})

    def gone(self, oid: ids.Oid, now: float) -> None:
        """Take back what was told of a content that is not here any more."""
        untold = self._told.pop(oid)
        if untold is not None and self._here.pop(oid, None) is None and self._neighbours:
            self._put(self._gone, oid, untold, now)

    def flush(self, now: float) -> None:
        """Send what is due."""
        if self._due_s is not None and self._due_s <= now:
            self._flush(now)

    def _put(self, news: _News, oid: ids.Oid, untold: _Untold, now: float) -> None:
        news[oid] = untold
        if len(news) >= BATCH_OIDS:
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
        all_here, all_gone = tuple(here), tuple(gone)
        some = {host for news in (here, gone) for untold in news.values() for host in untold}
        for host in hosts:
            told, taken_back = all_here, all_gone
            if host in some:
                told = tuple(oid for oid, untold in here.items() if host not in untold)
                taken_back = tuple(oid for oid, untold in gone.items() if host not in untold)
            self._tell(actions.Tell(host, told, taken_back, ()), now)

    def _tell(self, tell: actions.Tell, now: float) -> None:
        """Tell a host something, if there is anything, and if it is on the table and not bad."""
        if any(tell[1:]) and self._is_good(tell.host, now):
            self._out.others.append(tell)

    def _is_good(self, host: ids.HostId, now: float) -> bool:
        return host in self._tables.table and not self._book.is_alone(host, now)

    # Copies that may go

    def hint(self, host: ids.HostId, oid: ids.Oid) -> None:
        """Have a host told that it may let a content go first."""
        if host not in self.hints and len(self.hints) >= HINTS:
            self.hints.popitem(last=False)
        waiting = self.hints.setdefault(host, {})
        waiting[oid] = None
        if len(waiting) > HINTS:
            del waiting[next(iter(waiting))]

    def unhint(self, host: ids.HostId, oid: ids.Oid) -> None:
        """Note that a host has use for a content again."""
        self.hints.get(host, {}).pop(oid, None)

    def flush_hints(self, now: float) -> None:
        """Send some hints, one message for a host, hosts that wait longest first."""
        for host in list(self.hints)[:HINTED_AT_A_TIME]:
            oids = tuple(self.hints.pop(host))
            self._tell(actions.Tell(host, (), (), oids[:BATCH_OIDS]), now)
            if rest := oids[BATCH_OIDS:]:
                self.hints[host] = dict.fromkeys(rest)
        self._deadlines.put(now + HINT_EVERY_S, timers.Due.HINTS, None)
