# SPDX-License-Identifier: Apache-2.0
"""Whom to send a requester to when this host has too much to send: demand makes its own tree.

A home sees every request for its chunks.  It answers the first ones itself and
sends those who come later to hosts that came before them, at most ``fan_out``
to each while there is a choice.  So the newcomers of one chunk form a tree whose
inner hosts give what they got, and the whole cloud's uplinks carry a chunk, not
only its home's.

The one rule: nobody is sent to a host that came after it, so within the tree of
one home no two hosts can wait for each other.
"""

import collections
import dataclasses
import heapq

from acstor_agent.core.exchange import gossip
from acstor_common import ids

FAN_OUT = 2
CHUNKS = 4096
"""Chunks whose holders are remembered; the one asked for longest ago is forgotten first."""
HOLDERS = 1024
"""Hosts that are remembered for one chunk; a later one is a leaf of the tree.  In the swarm
simulation 1,000 hosts that read at once need 2.4 times as long when it is 64."""
RECENT = 512
"""Referrals that make up a host's present load."""
CHOICE = 2
"""Hosts that a requester is told, in case that the first one is gone."""


@dataclasses.dataclass(slots=True)
class _Holder:
    host: ids.HostId
    depth: int
    urgency: gossip.Urgency
    below: int = 0


class Referrals:
    """Who was given which chunk, or sent to somebody for it.

    >>> referrals = Referrals()
    >>> cid = ids.Cid(bytes([1]) * 32)
    >>> referrals.refer(cid, ids.HostId("h1"))
    ()
    >>> referrals.served(cid, ids.HostId("h1"))
    >>> referrals.refer(cid, ids.HostId("h2")), referrals.refer(cid, ids.HostId("h3"))
    (('h1',), ('h1', 'h2'))
    """

    def __init__(self, fan_out: int = FAN_OUT) -> None:
        self._fan_out = fan_out
        self._holders: collections.OrderedDict[ids.Cid, list[_Holder]] = collections.OrderedDict()
        self._load: collections.Counter[ids.HostId] = collections.Counter()
        self._recent: collections.deque[ids.HostId] = collections.deque()

    def served(
        self,
        cid: ids.Cid,
        host: ids.HostId,
        depth: int = 0,
        urgency: gossip.Urgency = gossip.Urgency.DEMAND,
    ) -> None:
        """Note that ``host`` is given the chunk, by this host or at some depth below it.

        :param urgency: of its request: it gets the chunk no sooner than that lets it
        """
        holders = self._holders.setdefault(cid, [])
        self._holders.move_to_end(cid)
        if len(self._holders) > CHUNKS:
            self._holders.popitem(last=False)
        if len(holders) < HOLDERS and all(holder.host != host for holder in holders):
            holders.append(_Holder(host, depth, urgency))

    def refer(
        self,
        cid: ids.Cid,
        host: ids.HostId,
        urgency: gossip.Urgency = gossip.Urgency.DEMAND,
    ) -> tuple[ids.HostId, ...]:
        """Return whom ``host`` should ask instead, the best first; empty if nobody came before it.

        Hosts with room below them go first; of these those that were sent few lately, so that hosts
        which always come early do not give for all, and that are near to the root.
        Nobody is sent to a host that asked with less urgency, and may have to wait for long.
        A host that comes again for a chunk is sent to nobody: it was let down.
        """
        holders = self._holders.get(cid, [])
        if any(holder.host == host for holder in holders):
            return ()
        able = [holder for holder in holders if holder.urgency <= urgency]
        if not able:
            return ()
        ranked = heapq.nsmallest(CHOICE, able, key=self._rank)
        ranked[0].below += 1
        self._charge(ranked[0].host)
        self.served(cid, host, ranked[0].depth + 1, urgency)
        return tuple(holder.host for holder in ranked)

    def _rank(self, holder: _Holder) -> tuple[bool, int, int]:
        load = self._load[holder.host]
        return holder.below >= self._fan_out, load + holder.depth, holder.depth

    def _charge(self, host: ids.HostId) -> None:
        self._load[host] += 1
        self._recent.append(host)
        if len(self._recent) > RECENT:
            oldest = self._recent.popleft()
            self._load[oldest] -= 1
            if not self._load[oldest]:
                del self._load[oldest]
