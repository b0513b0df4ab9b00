# SPDX-License-Identifier: Apache-2.0
"""Asks every host for a chunk that its source has not got any more, before it is called lost.

A chunk that came here once may lie on any host: on former homes, on hosts that read it
themselves and told nobody.  So when the source says that there is no such thing, all hosts of the
v-node table are asked whether they have it.

The one rule: a chunk is lost only if every host has answered, and with no, and the source has said
so for a while (:mod:`acstor_agent.core.exchange.absences`).  A host that is silent, cut off, left
alone or was in the table a while ago leaves hope.
"""

import logging
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterator
from typing import Generic
from typing import TypeVar

import trio

from acstor_agent.chunks import exchange
from acstor_agent.chunks import flights
from acstor_agent.chunks import want as want_
from acstor_agent.core import log_limit
from acstor_agent.core.exchange import absences
from acstor_agent.core.exchange import denials
from acstor_common import errors
from acstor_common import ids

LOG = logging.getLogger(__name__)

HOSTS_AT_ONCE = 16
"""Hosts that are asked for one chunk at a time."""
CHUNKS_AT_ONCE = 4
"""Chunks that are searched for at a time; others wait for their turn."""
QUESTION_S = 0.004
"""A search in vain keeps its place so long for each host that was asked.  So a guest whose image is
gone makes this host ask 1000 times a second at most, whatever it reads."""
NAMED = 3
"""How many silent hosts are named."""
TELLS_EVERY_S = 60.0

Got = TypeVar("Got")


class LastSearch(Generic[Got]):
    """The searches of this host.

    :param nursery: where they run, so that they outlive the readers who asked
    :param hosts: returns all other hosts of the v-node table in force; None where one is to come
    :param left_alone: returns the hosts that are not asked now
    :param ask: asks a host for what it has, which does not read the source for it
    :param lost_after_s: so long the source must have said no before anything is lost
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        hosts: Callable[[], list[ids.HostId] | None],
        left_alone: Callable[[], Container[ids.HostId]],
        ask: Callable[[ids.HostId, want_.Want], Awaitable[Got]],
        clock: Callable[[], float],
        lost_after_s: float,
    ) -> None:
        self._hosts, self._left_alone, self._ask, self._clock = hosts, left_alone, ask, clock
        self._absences = absences.Absences(lost_after_s)
        self._denials = denials.Denials()
        self._flights: flights.Flights[Got] = flights.Flights(nursery)
        self._limiter = trio.CapacityLimiter(CHUNKS_AT_ONCE)
        self._told = log_limit.LogLimit(TELLS_EVERY_S)

    async def find(self, want: want_.Want, why: errors.ChunkMissing) -> Got:
        """Return a chunk from any host that has it.

        :param why: what the source says
        :raises errors.ChunkLost: nobody has it
        :raises errors.SourceUnreachable: a host that may have it is silent, or the source has not
            said so for long enough
        """

        async def search(_: flights.Flight[Got]) -> Got:
            return await self._search(want, why)

        return await self._flights.join(want.cid, search).wait()

    def source_gave(self, image_id: ids.ImageId) -> None:
        """Note that the source has an image, whatever it said before."""
        self._absences.given(image_id)

    async def _search(self, want: want_.Want, why: errors.ChunkMissing) -> Got:
        async with self._limiter:
            known, now_s = self._hosts(), self._clock()
            hosts = known or []
            departed = self._absences.departed(hosts, now_s)
            left = self._denials.left(want.cid, hosts, now_s)
            found, silent = await self._ask_all(want, left)
            if not found:
                await trio.sleep(QUESTION_S * len(left))
        if found:
            return found[0]
        more_s = self._absences.denied(want.image_id, self._clock())
        if silent := silent + departed:
            named = ", ".join([*silent[:NAMED], "…"] if len(silent) > NAMED else silent)
            said = f"{why.where} has not got it, and of the hosts that may have it these are silent"
            raise errors.SourceUnreachable(str(want), named, said)
        if known is None:
            said = f"{why.where} has not got it, and there is no v-node table yet"
            raise errors.SourceUnreachable(str(want), "other hosts", said)
        if more_s:
            self._warn(want, why, more_s)
            said = f"{why.why}; no host has got it; lost if that is still so in {more_s:.0f} s"
            raise errors.SourceUnreachable(str(want), why.where, said)
        self._tell(want, why)
        raise errors.ChunkLost(str(want), f"{why.where} and all other hosts", why.why)

    async def _ask_all(
        self, want: want_.Want, left: list[ids.HostId]
    ) -> tuple[list[Got], list[ids.HostId]]:
        """Ask hosts until one gives the chunk; return it, and who has not said anything."""
        found: list[Got] = []
        left_alone = self._left_alone()
        silent = [host for host in left if host in left_alone]

        async def ask(hosts: Iterator[ids.HostId]) -> None:
            for host in hosts:
                try:
                    found.append(await self._ask(host, want))
                    nursery.cancel_scope.cancel()
                except errors.ChunkRefused as e:  # its source does not let it look
                    LOG.debug("%s", e)
                    silent.append(host)
                except errors.ChunkMissing:
                    self._denials.denied(want.cid, host, self._clock())
                except exchange.PEER_ERRORS as e:
                    LOG.debug("%s", e)
                    silent.append(host)

        hosts = iter([host for host in left if host not in left_alone])
        async with trio.open_nursery() as nursery:
            for _ in range(min(HOSTS_AT_ONCE, len(left))):
                nursery.start_soon(ask, hosts)
        return found, silent

    def _tell(self, want: want_.Want, why: errors.ChunkMissing) -> None:
        untold = self._told.left_out((want.image_id, "lost"), self._clock())
        if untold is not None:
            LOG.error(
                "image %s: bytes of it are lost, guests that read them get I/O errors: "
                "no host has got %s, and the source says: %s (and %d like it)",
                want.image_id,
                want,
                why,
                untold,
            )

    def _warn(self, want: want_.Want, why: errors.ChunkMissing, more_s: float) -> None:
        if self._told.left_out((want.image_id, "absent"), self._clock()) is not None:
            LOG.warning(
                "image %s: bytes of it cannot be had, guests that read them wait and get I/O "
                "errors in %.0f s: no host has got %s, and the source says: %s",
                want.image_id,
                more_s,
                want,
                why,
            )
