# SPDX-License-Identifier: Apache-2.0
"""This host among its peers: asks them, judges them, and tells them what it has.

One peer is asked at a time here; its answer is checked against the CID before
it goes anywhere, how it behaved is remembered, and a referral is followed.
What neighbours advertise tells whom to ask first; what comes to this host is
advertised to them.
"""

import logging
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import trio

from acstor_agent.chunks import want as want_
from acstor_agent.core.exchange import copies
from acstor_agent.core.exchange import errand as errand_
from acstor_agent.core.exchange import gossip
from acstor_agent.core.exchange import homes
from acstor_agent.core.exchange import identity
from acstor_agent.core.exchange import neighbours
from acstor_agent.core.exchange import pace
from acstor_agent.core.exchange import peer_health
from acstor_agent.sources import verify
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire
from acstor_common import ring

LOG = logging.getLogger(__name__)


class Ask(NamedTuple):
    """A question to one peer.

    :param address: where the agent of ``host`` listens
    :param may_read_source: the host may read the chunk through
    :param may_refer: it may name others to ask instead
    :param is_relayed: this host asks as a home, for others
    :param is_moved: ``host`` is the chunk's home since the last table only
    """

    host: ids.HostId
    address: str
    errand: errand_.Errand
    may_read_source: bool
    may_refer: bool
    is_relayed: bool = False
    is_moved: bool = False


AskPeer = Callable[[Ask, want_.Want], Awaitable[want_.Bytes | peer_wire.Refer]]
"""Asks one peer for one chunk."""
Tell = Callable[[ids.HostId, str, peer_wire.News], None]
"""Tells a host at an address something; never waits, never fails."""
LOOK_AT_RING_S = 1.0
"""A host that joins the ring beside this one hears after this time what is here."""
LET_GO_EVERY_S = 5.0
"""Hints about copies are told so often: they are in no hurry, and are few messages then."""
PEER_ERRORS = (errors.ChunkUnavailable, errors.RemoteProtocolError)
"""What asking a peer may end with: ask somebody else."""


class Exchange:
    """Questions to peers, and news for them.

    :param current_ring: returns the v-node table in force
    :param former_ring: returns the one before it, while its homes are worth asking
    :param named: what hosts mean by the same chunk
    :param copies_limit: holders of a chunk of this home that are left alone; 0: all
    :param topology: whom to tell what is here; None turns advertisements off
    """

    def __init__(
        self,
        here: ids.HostId,
        *,
        current_ring: Callable[[], ring.Ring],
        ask_peer: AskPeer,
        tell: Tell,
        health: peer_health.PeerHealth,
        topology: neighbours.Topology | None,
        former_ring: Callable[[], ring.Ring | None] = lambda: None,
        named: identity.Identity | None = None,
        copies_limit: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.invalid_chunks = 0
        self.referrals = 0
        self._here = here
        self._current_ring = current_ring
        self._former_ring = former_ring
        self._named = named or identity.ByContent()
        self._ask_peer = ask_peer
        self._tell = tell
        self._health = health
        self._paces = {True: pace.Pace(), False: pace.Pace()}  # of homes, of holders
        self._topology = topology
        self._clock = clock
        self._gossip = gossip.Gossip()
        self.copies = copies.Copies(copies_limit)
        self._let_go_due = 0.0
        self._known_ring: ring.Ring | None = None
        self._given_up: set[ids.HostId] = set()
        self._has_news = trio.Event()

    @property
    def told(self) -> gossip.Statistics:
        """What was told and heard, in chunks."""
        return self._gossip.statistics

    # Asking

    async def ask(
        self, host: ids.HostId, want: want_.Want, errand: errand_.Errand, may_read_source: bool
    ) -> tuple[want_.Bytes, ids.HostId]:
        """Return a checked chunk from ``host``, or from one that it refers to, and who gave it.

        :raises errors.ChunkUnavailable: none of them gives it
        :raises errors.RemoteProtocolError: ``host`` broke the protocol
        """
        answer = await self._ask_one(host, want, errand, may_read_source, True)
        if not isinstance(answer, peer_wire.Refer):
            return answer, host
        self.referrals += 1
        for other in answer.hosts:
            if other != self._here and self.is_usable(other):
                try:
                    return await self._ask_plainly(other, want, errand, False), other
                except PEER_ERRORS as e:
                    LOG.debug("%s", e)
        return await self._ask_plainly(host, want, errand, may_read_source), host

    async def ask_upstream(
        self, host: ids.HostId, want: want_.Want, errand: errand_.Errand, may_read_source: bool
    ) -> want_.Bytes:
        """Return a checked chunk from another home, which asks nobody for it.

        A host that has left the ring is asked until it fails once.

        :raises errors.ChunkUnavailable: it does not give it
        :raises errors.RemoteProtocolError: it broke the protocol
        """
        try:
            return await self._ask_plainly(host, want, errand, may_read_source, is_relayed=True)
        except (errors.SourceUnreachable, errors.RemoteProtocolError):
            self._given_up.add(host)
            raise

    async def _ask_plainly(
        self,
        host: ids.HostId,
        want: want_.Want,
        errand: errand_.Errand,
        may_read_source: bool,
        is_relayed: bool = False,
    ) -> want_.Bytes:
        answer = await self._ask_one(host, want, errand, may_read_source, False, is_relayed)
        if isinstance(answer, peer_wire.Refer):
            raise errors.LocalProtocolError("a referral that nobody allowed")
        return answer

    async def _ask_one(
        self,
        host: ids.HostId,
        want: want_.Want,
        errand: errand_.Errand,
        may_read_source: bool,
        may_refer: bool,
        is_relayed: bool = False,
    ) -> want_.Bytes | peer_wire.Refer:
        """Ask one peer, check its answer, and remember how it behaved."""
        address = self._address_of(host, want)
        oid = self.oid(want)
        is_moved = may_read_source and not is_relayed and self._has_moved_to(host, oid)
        ask = Ask(host, address, errand, may_read_source, may_refer, is_relayed, is_moved)
        prefix = gossip.Prefix(oid)
        self._gossip.asked(host)
        asked_s = self._clock()
        try:
            answer = await self._ask_peer(ask, want)
            if not isinstance(answer, peer_wire.Refer):
                verify.check_chunk(answer, want.content, want, host)
        except (errors.ChunkInvalid, errors.RemoteProtocolError) as e:
            self.invalid_chunks += 1
            self._gossip.denied(host, prefix, self._clock())
            self.failed(host, peer_health.FailureKind.LYING, e)
            raise
        except errors.SourceUnreachable as e:
            self.failed(host, peer_health.FailureKind.UNREACHABLE, e)
            raise
        except errors.ChunkMissing:  # an honest no
            self._gossip.denied(host, prefix, self._clock())
            self._health.succeeded(host, self._clock())
            raise
        finally:
            self._gossip.answered(host)
        self._judge(ask, want, answer, self._clock() - asked_s)
        return answer

    def _judge(
        self, ask: Ask, want: want_.Want, answer: want_.Bytes | peer_wire.Refer, took_s: float
    ) -> None:
        """Note that a host answered; right bytes that come much too late are a failure, too."""
        is_waited_for = ask.errand is errand_.Errand.GUEST_WAITS and isinstance(answer, want_.Bytes)
        paces = self._paces[ask.may_read_source]
        match paces.judge(ask.host, took_s, is_waited_for):
            case pace.Verdict.LATE:
                self._note_late(ask.host, want, took_s)
            case pace.Verdict.IN_TIME:
                self._health.succeeded(ask.host, self._clock())

    def too_late(
        self, host: ids.HostId, want: want_.Want, took_s: float, may_read_source: bool
    ) -> None:
        """Note that another place was faster than ``host``, which has not answered yet."""
        self._paces[may_read_source].note(host, took_s)
        self._note_late(host, want, took_s)

    def _note_late(self, host: ids.HostId, want: want_.Want, took_s: float) -> None:
        error = errors.SourceUnreachable(str(want), host, f"it needs {took_s:.2f} s or more")
        self.failed(host, peer_health.FailureKind.UNREACHABLE, error)

    def _has_moved_to(self, host: ids.HostId, oid: ids.Oid) -> bool:
        """Say that ``host`` is a chunk's home by the last table, and was not by the one before."""
        former = self._former_ring()
        was_elsewhere = former is not None and homes.home(former, self._here, oid) != host
        return was_elsewhere and self.is_home(host, oid)

    def _address_of(self, host: ids.HostId, want: want_.Want) -> str:
        table = self._table_with(host)
        if table is None:
            raise errors.SourceUnreachable(str(want), host, "it is not on the ring any more")
        return table.address_of(host)

    def _table_with(self, host: ids.HostId) -> ring.Ring | None:
        """Return the table that a host is on: the one in force, or the one before it."""
        if host in (table := self._current_ring()):
            return table
        former = self._former_ring()
        is_known = former is not None and host in former and host not in self._given_up
        return former if is_known else None

    # Names

    def oid(self, want: want_.Want) -> ids.Oid:
        """Return the name of a chunk among hosts."""
        return self._named.oid(want.image_id, want.offset, want.cid)

    def may_give(self, want: want_.Want) -> bool:
        """Say whether a chunk, if it is in the cache, may be given to a peer that wants it."""
        return self._named.may_give(want.cid, self.oid(want))

    # Judging

    def is_usable(self, host: ids.HostId) -> bool:
        """Say whether ``host`` is worth asking now: on the ring and not in quarantine."""
        is_known = self._table_with(host) is not None
        return is_known and self._health.is_usable(host, self._clock())

    def failed(
        self, host: ids.HostId, kind: peer_health.FailureKind, error: errors.AcstorError
    ) -> None:
        """Note that ``host`` failed; say so in the log when it is left alone from now on."""
        was_quarantined = host in self.quarantined()
        self._health.failed(host, self._clock(), kind)
        if not was_quarantined and host in self.quarantined():
            self._gossip.lost(host)
            LOG.warning("%s is left alone for %.1f s: %s", host, self.quarantined()[host], error)

    def quarantined(self) -> dict[ids.HostId, float]:
        """Return the hosts that are left alone now, and for how many seconds more.

        May be called from any thread.
        """
        return self._health.quarantined(self._clock())

    # Advertisements

    def holders(self, want: want_.Want) -> list[ids.HostId]:
        """Return the hosts that advertised a chunk and may be asked, fewest pending requests first.

        Those that the table spares may not: traffic that took their v-nodes has no room for this.
        """
        hosts = self._gossip.holders(gossip.Prefix(self.oid(want)))
        others = [host for host in hosts if host != self._here and self.is_usable(host)]
        table = self._current_ring()
        return [host for host in others if not table.is_spared(host)]

    def is_busier(self, host: ids.HostId, other: ids.HostId) -> bool:
        """Say whether more requests of this host are pending at ``host`` than at ``other``."""
        return self._gossip.pending(host) > self._gossip.pending(other)

    def heard(self, host: ids.HostId, told: Sequence[int], lookups: int = 1) -> list[gossip.Prefix]:
        """Note what ``host`` advertises; return what is listened to, at ``lookups`` for each."""
        if self._topology is None or not self._is_near(host):
            return []
        known = [gossip.Prefix(prefix) for prefix in told]
        return self._gossip.advertised(host, known, self._clock(), lookups)

    def known(self) -> list[gossip.Prefix]:
        """Return everything that neighbours have advertised, for an image attached later."""
        return self._gossip.known()

    def have(self, want: want_.Want, giver: ids.HostId | None) -> None:
        """Tell the neighbours of a chunk that has come here.

        :param giver: the host that gave it; None for the source
        """
        oid = self.oid(want)
        self._named.note(want.cid, oid)
        if self._topology is not None:
            self._gossip.have(gossip.Prefix(oid), self._clock(), giver)
            self._has_news.set()

    def gone(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Take back what was told of a chunk that has left the cache; return its names."""
        names = self._named.gone(cid)
        if self._topology is not None:
            for oid in names:
                self._gossip.gone(gossip.Prefix(oid), self._clock())
            self._has_news.set()
        return names

    def heard_gone(self, host: ids.HostId, prefixes: Sequence[int]) -> None:
        """Note that ``host`` has lost chunks."""
        if self._is_near(host):
            self._gossip.taken_back(host, [*map(gossip.Prefix, prefixes)], self._clock())

    def _is_near(self, host: ids.HostId) -> bool:
        return host in self._current_ring().group_of(self._here)

    # Copies

    def is_home(self, host: ids.HostId, oid: ids.Oid) -> bool:
        """Say whether ``host`` is a chunk's home as this host sees the ring."""
        return homes.home(self._current_ring(), self._here, oid) == host

    def gave(self, want: want_.Want, host: ids.HostId) -> None:
        """Note that ``host`` has been given a chunk, or will be; if this is its home, count it."""
        if self.is_home(self._here, self.oid(want)):
            self.copies.gave(self.oid(want), host)

    def heard_let_go(
        self, host: ids.HostId, told: Sequence[int], lookups: int = 1
    ) -> list[gossip.Prefix]:
        """Return those chunks that ``host`` may ask this one to let go: it is their home."""
        if not self._is_near(host):
            return []
        heard = told[: self._gossip.listen(host, len(told), self._clock(), lookups)]
        return [gossip.Prefix(prefix) for prefix in heard if self.is_home(host, ids.Oid(prefix))]

    # Telling

    async def run(self) -> None:
        """Tell others what they are to know when it is due, for ever."""
        while True:
            self._follow_ring()
            now = self._clock()
            for host, prefixes in self._gossip.take_gone(now):
                self.tell_now(host, peer_wire.Gone(prefixes))
            for host, prefixes in self._gossip.take_batches(now):
                self.tell_now(host, peer_wire.Advertise(prefixes))
            self._tell_copies(now)
            due = self._gossip.next_timeout()
            if due is not None:
                await trio.sleep(max(0.0, due - now))
                continue
            self._has_news = trio.Event()
            with trio.move_on_after(LOOK_AT_RING_S):
                await self._has_news.wait()

    def _tell_copies(self, now: float) -> None:
        if now >= self._let_go_due:
            self._let_go_due = now + LET_GO_EVERY_S
            for hint in self.copies.take():
                self.tell_now(hint.host, peer_wire.LetGo(hint.oids))

    def tell_now(self, host: ids.HostId, news: peer_wire.News) -> None:
        """Tell a host something, if it is on the ring and worth it; never waits, never fails."""
        if host in (table := self._current_ring()) and self.is_usable(host):
            self._tell(host, table.address_of(host), news)

    def _follow_ring(self) -> None:
        """Choose the neighbours anew, among near hosts, when the ring has changed."""
        table = self._current_ring()
        if table is self._known_ring:
            return
        self._known_ring = table
        self._given_up.clear()
        if self._topology is None:
            return
        near = table.group_of(self._here)
        hosts = [ids.HostId(host.host) for host in near.hosts]
        told = neighbours.neighbours(hosts, self._here, self._topology, locations=near.locations())
        self._gossip.set_neighbours(told, self._clock())
