# SPDX-License-Identifier: Apache-2.0
"""Hosts with caches, a storage, guests that boot: the world that policies act in.

What a host does with a chunk is what its agent does: it keeps what it fetched,
asks for a chunk once however many of its guests want it, and a home reads the
storage once however many hosts ask.  What is left out is listed in
doc/source/contributor/simulator.rst.
"""

import dataclasses
from collections.abc import Sequence

import simpy

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
    """What one host has, and what is on its way to it."""

    def __init__(self) -> None:
        self.cache: set[ids.Cid] = set()
        self.on_the_way: dict[ids.Cid, simpy.Event] = {}


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
        way = self.tree.way_from_storage(host)
        yield from network.send(self.env, way, CHUNK_BYTES, STORAGE_S)

    def from_peer(self, host: int, peer: int) -> network.Waiting:
        """Bring a chunk from one host's cache to another host."""
        self.counts.peer += 1
        yield from network.send(self.env, self.tree.way(peer, host), CHUNK_BYTES, HOP_S)

    def have(self, host: int, cid: ids.Cid, bring: network.Waiting) -> network.Waiting:
        """Wait until a host has a chunk in its cache.

        :param bring: how it comes there; not used when it is there or on its way
        """
        place = self.hosts[host]
        if cid in place.cache:
            return
        if cid in place.on_the_way:
            yield place.on_the_way[cid]
            return
        arrived = place.on_the_way[cid] = self.env.event()
        yield from bring
        place.cache.add(cid)
        del place.on_the_way[cid]
        arrived.succeed()


@dataclasses.dataclass
class Guest:
    """One guest that boots: where, from what, and how long it took (None until then)."""

    host: int
    trace: Sequence[traces.Read]
    booted_s: float | None = None
