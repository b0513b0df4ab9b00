# SPDX-License-Identifier: Apache-2.0
"""Hosts with caches, a storage, guests that boot: the world that policies act in.

What a host does with a chunk is what its agent does: it keeps what it fetched,
asks for a chunk once however many of its guests want it, and a home reads the
storage once however many hosts ask.  It notes how long it waited for whom, as its
samples tell it.  What is left out is listed in doc/source/contributor/simulator.rst.
"""

import collections
import dataclasses
from collections.abc import Sequence

import simpy

from acstor_common import decision_api
from acstor_common import ids
from acstor_simulator import network
from acstor_simulator import topology
from acstor_simulator import traces

CHUNK_BYTES = 64 * 1024
HOP_S = 0.0002
"""A question and its answer between two hosts, without their bytes."""
STORAGE_S = 0.007
"""One range request to the image store, whatever its size (measured on Glance)."""


@dataclasses.dataclass
class Counts:
    """Chunks that crossed the network, by where they came from."""

    storage: int = 0
    peer: int = 0


class Host:
    """What one host has, what is on its way to it, and what it reads from the storage.

    :ivar waited: seconds for each chunk of late, by who gave it; None is the storage
    """

    def __init__(self) -> None:
        self.cache: set[ids.Cid] = set()
        self.on_the_way: dict[ids.Cid, simpy.Event] = {}
        self.reads: dict[ids.Cid, simpy.Event] = {}
        self.waited: collections.defaultdict[int | None, list[float]] = collections.defaultdict(
            list
        )

    def take_waited(self) -> dict[int | None, decision_api.Timed]:
        """Return what came since the last call, by the peer that gave it; None is the storage."""
        taken, self.waited = self.waited, collections.defaultdict(list)
        return {
            giver: decision_api.Timed(len(waits) * CHUNK_BYTES, sum(waits))
            for giver, waits in taken.items()
        }


class Cloud:
    """The hosts and the network between them, at one moment of virtual time."""

    def __init__(self, tree: topology.Tree) -> None:
        self.env = simpy.Environment()
        self.tree = tree
        self.hosts = [Host() for _ in range(tree.shape.hosts)]
        self.counts = Counts()

    def from_storage(self, host: int, cid: ids.Cid) -> network.Waiting:
        """Bring a chunk from the storage to a host, past all other hosts."""
        self.counts.storage += 1
        began_s = self.env.now
        way = self.tree.way_from_storage(host)
        yield from network.send(self.env, way, CHUNK_BYTES, STORAGE_S)
        self.hosts[host].waited[None].append(self.env.now - began_s)

    def from_peer(self, host: int, peer: int) -> network.Waiting:
        """Bring a chunk from one host's cache to another host."""
        self.counts.peer += 1
        yield from network.send(self.env, self.tree.way(peer, host), CHUNK_BYTES, HOP_S)

    def have(self, host: int, cid: ids.Cid, bring: network.Waiting) -> network.Waiting:
        """Wait until a host has a chunk in its cache.

        :param bring: how it comes there; not used when it is there or on its way
        """
        place = self.hosts[host]
        if cid not in place.cache:
            yield from self._once(place.on_the_way, cid, bring)
            place.cache.add(cid)

    def read_through(self, host: int, cid: ids.Cid) -> network.Waiting:
        """Wait until a host has a chunk that it reads from the storage, and from nobody else."""
        place = self.hosts[host]
        if cid not in place.cache:
            yield from self._once(place.reads, cid, self.from_storage(host, cid))
            place.cache.add(cid)

    def _once(
        self, under_way: dict[ids.Cid, simpy.Event], cid: ids.Cid, bring: network.Waiting
    ) -> network.Waiting:
        if cid in under_way:
            yield under_way[cid]
            return
        arrived = under_way[cid] = self.env.event()
        yield from bring
        del under_way[cid]
        arrived.succeed()


@dataclasses.dataclass
class Guest:
    """One guest that boots: where, from what, and how long it took (None until then)."""

    host: int
    trace: Sequence[traces.Read]
    booted_s: float | None = None
