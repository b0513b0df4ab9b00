# SPDX-License-Identifier: Apache-2.0
"""The four ways of S4, section 5.2, in which a host gets a chunk that a guest reads.

``none`` keeps nothing and reads the storage each time; ``local`` keeps what it
read; ``collaborative`` asks the chunk's home on a ring of equal hosts in the
reader's own pod, whatever the traffic; ``acstor`` asks the home on the ring that
the decision service's cores make of the traffic (``acstor-switches``: of the load of
switches too).
"""

import abc
import contextlib
from collections.abc import Iterator

from acstor_common import ids
from acstor_simulator import cloud
from acstor_simulator import network
from acstor_simulator import rings


class Policy(abc.ABC):
    """How a chunk comes to the guest that reads it."""

    def __init__(self, world: cloud.Cloud) -> None:
        self.world = world

    @abc.abstractmethod
    def read(self, host: int, cid: ids.Cid) -> network.Waiting:
        """Wait until a guest of ``host`` has the chunk."""


class NoCache(Policy):
    """Every read goes to the storage."""

    def read(self, host: int, cid: ids.Cid) -> network.Waiting:
        """Read the storage."""
        return self.world.from_storage(host, cid)


class LocalCache(Policy):
    """Each host reads each chunk once from the storage."""

    def read(self, host: int, cid: ids.Cid) -> network.Waiting:
        """Look in the host's own cache, then read the storage."""
        return self.world.have(host, cid, self.world.from_storage(host, cid))


class Exchange(Policy):
    """Hosts ask a chunk's home, which reads the storage for all.

    :param table: says who the home is; what it says may change at any time
    """

    def __init__(self, world: cloud.Cloud, table: rings.Table) -> None:
        super().__init__(world)
        self._table = table

    def read(self, host: int, cid: ids.Cid) -> network.Waiting:
        """Look in the host's own cache, then ask the home."""
        return self.world.have(host, cid, self._bring(host, cid))

    def _bring(self, host: int, cid: ids.Cid) -> network.Waiting:
        home = self._table.home_of(cid, host)
        if home == host:
            yield from self._bring_to_home(host, cid, host)
            return
        with self._timed(host, home):
            yield from self.world.have(home, cid, self._bring_to_home(home, cid, host))
            yield from self.world.from_peer(host, home)

    def _bring_to_home(self, home: int, cid: ids.Cid, requester: int) -> network.Waiting:
        for upstream in self._table.upstreams(cid, home, requester):
            if self._gives(upstream, cid, home):
                with self._timed(home, upstream):
                    yield from self.world.read_through(upstream, cid)
                    yield from self.world.from_peer(home, upstream)
                return
        yield from self.world.read_through(home, cid)

    def _gives(self, upstream: int, cid: ids.Cid, home: int) -> bool:
        """Say whether a host that a home asks gives a chunk, read through if need be."""
        is_there = cid in self.world.hosts[upstream].cache
        return is_there or not self._table.is_left_to(cid, upstream, home)

    @contextlib.contextmanager
    def _timed(self, host: int, giver: int) -> Iterator[None]:
        """Note how long a host waited for a chunk of another one."""
        began_s = self.world.env.now
        yield
        self.world.hosts[host].waited[giver].append(self.world.env.now - began_s)
