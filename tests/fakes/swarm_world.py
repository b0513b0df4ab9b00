# SPDX-License-Identifier: Apache-2.0
"""What the hosts of a swarm share: settings, the image, its source, the ring, and the wire."""

import collections
import dataclasses
from typing import Any
from typing import NamedTuple

from acstor_agent.core.exchange import content_index
from acstor_agent.core.exchange import gossip
from acstor_agent.core.exchange import neighbours
from acstor_agent.core.exchange import prefetch
from acstor_common import geometry
from acstor_common import ids
from acstor_common import peer_wire
from acstor_common import ring
from tests.fakes import lossy_network

IMAGE = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
SOURCE = ids.HostId("source")
NOBODY = ids.HostId("")
"""Nobody waits for the answer any more; it may come all the same."""
CHUNK_BYTES = geometry.DEFAULT_CHUNK_BYTES
SMALL_BYTES = 150
"""What a message without data takes on the wire, with the headers below it."""


class Posted(NamedTuple):
    """A message on a connection of a class, as the receiver sees it."""

    klass: peer_wire.Klass
    message: peer_wire.Message


@dataclasses.dataclass(frozen=True)
class Op:
    """What a guest does next: read a chunk, write all of it, or write a part of it."""

    kind: str  # "read", "write", "part"
    chunk_no: int


@dataclasses.dataclass(frozen=True)
class Settings:
    """The same for all hosts of a swarm."""

    limit: int | None = prefetch.LIMIT
    first: int | None = prefetch.FIRST
    gain: int = prefetch.GAIN
    topology: neighbours.Topology = neighbours.Topology.RING
    timeout_s: float = 1e6  # nothing is lost on slow links, it only waits
    window: int = 8  # reads of a guest (and its read-ahead) under way at a time
    think_s: float = 0.0005  # a guest's time between two reads
    prefetches: int = 4  # prefetches under way at a time
    children: int | None = None  # a home answers so many itself and refers the rest; None: all


class World:
    """What all hosts share: the image, the ring, the network, and the book of all answers."""

    def __init__(
        self,
        host_count: int,
        chunk_count: int,
        network: lossy_network.LossyNetwork,
        settings: Settings | None = None,
    ) -> None:
        self.network = network
        self.settings = settings or Settings()
        self.contents = [b"chunk %d of the image" % n for n in range(chunk_count)]
        self.cids = [ids.cid_of(content) for content in self.contents]
        self.index = content_index.ContentIndex(self.cids)
        self.prefixes = [gossip.prefix_of(cid) for cid in self.cids]
        self.host_ids = [ids.HostId(f"h{n}") for n in range(host_count)]
        table = tuple(
            ring.RingHost(h, f"10.0.{n // 250}.{n % 250 + 1}:7201", 40)
            for n, h in enumerate(self.host_ids)
        )
        points = ring.Ring(1, table)
        self.homes = [points.owners_of(cid, 1)[0] for cid in self.cids]
        self.source_chunks = 0
        self.sent: collections.Counter[str] = collections.Counter()
        network.attach(SOURCE, self._answer_as_source)
        self.hosts: dict[ids.HostId, Any] = {}

    def run(self, until_s: float = 3600.0) -> None:
        """Run until every guest has its answers."""
        waiting = list(self.hosts.values())

        def is_done() -> bool:
            while waiting and waiting[-1].is_done:
                waiting.pop()
            return not waiting

        self.network.run(until_s, is_done)

    def send(
        self,
        sender: ids.HostId,
        to: ids.HostId,
        message: peer_wire.Message,
        klass: peer_wire.Klass,
    ) -> None:
        """Put a message on the wire with the bytes that it would have."""
        size_bytes, urgency = SMALL_BYTES, gossip.Urgency.PREFETCH
        if klass is peer_wire.Klass.DEMAND:
            urgency = gossip.Urgency.DEMAND
        if isinstance(message, peer_wire.Chunk):
            size_bytes += CHUNK_BYTES
        elif isinstance(message, peer_wire.Advertise | peer_wire.Gone):
            size_bytes += 8 * len(message.prefixes)
            urgency = gossip.Urgency.ADVERTISEMENT
        self.sent[type(message).__name__] += 1
        self.network.send(sender, to, Posted(klass, message), size_bytes, urgency)

    def _answer_as_source(self, sender: str, posted: Posted) -> None:
        assert isinstance(posted.message, peer_wire.Get)
        self.source_chunks += 1
        data = self.contents[posted.message.offset // CHUNK_BYTES]
        chunk = peer_wire.Chunk(posted.message.request_id, data)
        self.send(SOURCE, ids.HostId(sender), chunk, posted.klass)
