# SPDX-License-Identifier: Apache-2.0
"""What peers ask this host for: chunks that are here, on their way, or to be read through.

Whether they may ask for it is the business of ``admission``, which comes first.
A peer that takes this host for the home joins only what is read through; one that was
referred to this host waits for what the host itself has under way, and only for a while:
so where rings differ no two hosts can wait for each other for long.
"""

from collections.abc import Callable
from collections.abc import Iterable

import trio

from acstor_agent import disk_io
from acstor_agent.cache import cache_files
from acstor_agent.chunks import admission as admission_
from acstor_agent.chunks import exchange
from acstor_agent.chunks import fetcher
from acstor_agent.chunks import home as home_
from acstor_agent.chunks import want as want_
from acstor_agent.core.cache import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.exchange import errand as errand_
from acstor_agent.core.exchange import identity
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire

REFERRED_WAIT_S = 2.0


class Serving:
    """The way of chunks from this host to others.

    :param here: id of this host
    :param admission: what may be asked for
    :param chunks: knows what is on its way here
    :param named: how chunks are named, told already what was in the cache at the start
    :param attached: the images that this host mirrored at the start
    :param sent: is told to whom how many bytes are given
    """

    def __init__(
        self,
        here: ids.HostId,
        *,
        admission: admission_.Admission,
        cache: cache_files.CacheFiles,
        chunks: fetcher.Fetcher,
        home: home_.Home,
        peers: exchange.Exchange,
        named: identity.Identity | None = None,
        attached: Iterable[ids.ImageId] = (),
        sent: Callable[[ids.HostId, int], None] = lambda host, count: None,
    ) -> None:
        self.admit = admission.admit
        self._admission = admission
        self._here = here
        self._cache = cache
        self._chunks = chunks
        self._home = home
        self._peers = peers
        self._named = named or identity.ByContent()
        self._attached = frozenset(attached)
        self._sent = sent

    async def look_up(
        self, host: ids.HostId, get: peer_wire.Get, is_urgent: bool = True
    ) -> want_.Want:
        """Return what a peer asks for, after a look at the source in the peer's turn.

        :param is_urgent: a guest waits for it, or will soon; all else comes after that of others
        :raises errors.ChunkUnavailable: see :meth:`admission.Admission.look_up`
        """
        with disk_io.as_stream(_stream(host, is_urgent)):
            return await self._admission.look_up(host, get)

    async def answer(
        self, host: ids.HostId, get: peer_wire.Get, want: want_.Want, is_urgent: bool = True
    ) -> want_.Bytes:
        """Return what a peer asks for.

        :param want: what was admitted
        :param is_urgent: see :meth:`look_up`
        :raises errors.ChunkUnavailable: see :meth:`serve`
        """
        with disk_io.as_stream(_stream(host, is_urgent)):
            data = await self.serve(want, get.may_read_source, get.is_relayed, host, get.is_moved)
        if not get.is_relayed:
            self._peers.gave(want, host)
        self._sent(host, len(data))
        return data

    def answer_nowait(
        self, host: ids.HostId, get: peer_wire.Get, want: want_.Want
    ) -> want_.Bytes | None:
        """Return what a peer asks for if it is here, and can be read without waiting."""
        data = self._cache.read_chunk_nowait(want.cid)
        if data is None or len(data) != want.length:
            return None
        if not self._may_give(want, get.may_read_source):
            return None
        self._count_served(data)
        if get.may_read_source and not get.is_relayed:  # who takes this host for the home
            self._peers.gave(want, host)
        self._sent(host, len(data))
        return data

    async def serve(
        self,
        want: want_.Want,
        may_read_source: bool,
        is_relayed: bool = False,
        requester: ids.HostId | None = None,
        is_moved: bool = False,
    ) -> want_.Bytes:
        """Return a chunk to a peer that asks for it.

        :param may_read_source: this host is the chunk's home for the peer, and reads it through
        :param is_relayed: the peer asks as a home: nobody else is asked or waited for
        :param is_moved: this host is the home by the peer's table, and was not by the one before
        :raises errors.ChunkUnavailable: it is not here, and may not or cannot be read
        """
        data: want_.Bytes | None = None
        if self._may_give(want, may_read_source):
            data = await self._cache.read_chunk(want.cid)
        if data is None:
            data = await self._get_for(want, may_read_source, is_relayed, requester, is_moved)
        self._count_served(data)
        return data

    def _may_give(self, want: want_.Want, may_read_source: bool) -> bool:
        """Say whether a chunk, if it is here, may be given.

        Who asks only for what is here may have nobody else to ask, and after a restart nobody
        knows by which names chunks had come: what was here then is of any image that was mirrored
        here then.  What came later under other names, and images that were attached later, as
        anybody's can be, show nothing of what other images brought here.
        """
        if self._peers.may_give(want):
            return True
        is_of_before = want.image_id in self._attached and self._named.is_of_before(want.cid)
        return not may_read_source and is_of_before and self._admission.is_attached(want)

    def _count_served(self, data: want_.Bytes) -> None:
        self._home.counters.served_chunks += 1
        self._home.counters.served_bytes += len(data)

    async def _get_for(
        self,
        want: want_.Want,
        may_read_source: bool,
        is_relayed: bool,
        requester: ids.HostId | None,
        is_moved: bool,
    ) -> want_.Bytes:
        """Get what is not here for a peer; nothing is awaited before it is in a table."""
        keep = public_cache.KeepClass.HOME
        if may_read_source and not is_relayed:
            errand = errand_.Errand.GUEST_WAITS
            return (await self._home.read(want, errand, keep, requester, is_moved)).data
        if may_read_source and not self._home.is_left_to(want, requester):
            return await self._home.read_source(want, keep, requester)
        return await self._flight_of(want, is_relayed)

    async def _flight_of(self, want: want_.Want, is_relayed: bool) -> want_.Bytes:
        """Wait for a chunk that is on its way here, for a peer that was referred to this host.

        Not for long: where rings differ, that peer may be the one that this host waits for.
        """
        with trio.move_on_after(REFERRED_WAIT_S):
            if (reading := self._home.reading(want)) is not None:
                return await reading.wait()
            flight = self._chunks.flight_to(want.cid)
            if flight is not None and not is_relayed:
                return (await flight.wait()).data
        raise errors.ChunkMissing(str(want), self._here)


def _stream(host: ids.HostId, is_urgent: bool) -> requests.Stream:
    klass = requests.Klass.PEER if is_urgent else requests.Klass.PREFETCH
    return requests.Stream(klass, host)
