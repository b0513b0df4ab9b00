# SPDX-License-Identifier: Apache-2.0
"""Hosts on a tree of switches, and a storage; hosts decide with ``acstor_agent.engine``."""

import dataclasses
import random
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import engine
from acstor_agent.engine import identity
from acstor_agent.engine import priority
from acstor_agent.engine import settings
from acstor_agent.engine.serve import authorization
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_simulator.model import boot_traces
from acstor_simulator.model import host_prefetch
from acstor_simulator.model import network
from acstor_simulator.model import topology
from acstor_simulator.model import virtual_host

CHUNK_BYTES = boot_traces.CHUNK_BYTES
MESSAGE_S = 0.0001  # latency of a message without chunk data
NOTHING = ids.Content(ids.ZERO_CID)


@dataclasses.dataclass
class Counts:
    """Chunks, frames and pieces that crossed the network, by origin."""

    storage: int = 0
    peer: int = 0


class SimulatedHost(virtual_host.VirtualHost):
    """One host, which measures the waits of guests and peers."""

    world: "Cloud"
    lag_s = 0.01

    def __init__(
        self,
        world: "Cloud",
        name: ids.HostId,
        number: int,
        table: hash_ring.Ring,
        settings: settings.Settings,
        may_refer: bool,
        urgency: priority.Priority,
    ) -> None:
        super().__init__(world, name)
        self.number, self.may_refer, self._urgency = number, may_refer, urgency
        self.images: dict[ids.ImageId, host_prefetch.HostPrefetch] = {}
        self.waited: dict[ids.HostId | None, tuple[int, float]] = {}  # chunks, s; None: storage
        self._asked_s: dict[int, float] = {}
        self.core = engine.Engine(
            name,
            table,
            cache=self.cache,
            rights=authorization.Authorization(name, world, identity.ByContent(), self.images),
            rng=random.Random(f"{world.seed}/{name}"),
            settings=settings,
        )

    def attach_image(self, image: boot_traces.TracedImage) -> None:
        """Attach an image for a guest."""
        if image.image_id not in self.images:
            self.images[image.image_id] = host_prefetch.HostPrefetch(self, image.chunks, self.cache)

    def read_chunk(
        self, chunk: chunk_ref.ChunkRef, done: Callable[[], None], guest: Hashable = None
    ) -> bool:
        """Read a chunk for a guest; return whether it is present, else call ``done`` later."""
        prefetching = self.images[chunk.image_id]
        if chunk.cid in self.cache:
            prefetching.on_read((chunk,))
            return True
        prefetching.on_demand_fetch(chunk)

        def answered(answer: actions.CompleteRead) -> None:
            assert answer.failure is None, answer.why
            self.call_later(given)

        def given() -> None:
            prefetching.on_read((chunk,))
            done()

        self.read((chunk,), self._urgency, answered, guest=guest)
        return False

    def fetch_object(
        self,
        what: chunk_ref.ChunkRef,
        urgency: priority.Priority,
        done: Callable[[], None],
        guest: Hashable = None,
    ) -> bool:
        """Fetch a frame or piece; return whether it is present, else call ``done`` later."""
        if what.cid in self.cache:
            return True

        def answered(answer: actions.CompleteRead) -> None:
            assert answer.failure is None, answer.why
            self.call_later(done)

        self.read((what,), urgency, answered, guest=guest)
        return False

    def _forward_announcement(self, announcement: actions.ForwardAnnouncement) -> None:
        for prefetching in self.images.values():
            self.call_later(prefetching.announcement_received, announcement.held)

    def record_wait(self, sender: ids.HostId | None, took_s: float, chunks: int = 1) -> None:
        """Add a wait; ``chunks`` is 0 if the request was cancelled."""
        count, before_s = self.waited.get(sender, (0, 0.0))
        self.waited[sender] = count + chunks, before_s + took_s

    def pop_waits(self) -> dict[ids.HostId | None, decision_messages.TimedTraffic]:
        """Return and reset the waits by origin; None is the storage."""
        taken, self.waited = self.waited, {}
        return {
            sender: decision_messages.TimedTraffic(count * CHUNK_BYTES, took_s)
            for sender, (count, took_s) in taken.items()
        }

    def _ask(self, ask: actions.RequestChunks) -> None:
        urgent = (number for number, _, attempt in ask.iter_chunks() if attempt.priority.is_urgent)
        self._asked_s.update(dict.fromkeys(urgent, self.world.now))
        super()._ask(ask)

    def _answered(self, host: ids.HostId, answers: list[Any]) -> None:
        for answer in answers:
            asked_s = self._asked_s.pop(answer.number, None)
            if asked_s is not None and isinstance(answer, actions.SendChunk):
                self.record_wait(host, self.world.now - asked_s)
        super()._answered(host, answers)

    def _cancel(self, cancel: actions.CancelRequests) -> None:
        asked = (self._asked_s.pop(number, None) for number in cancel.numbers)
        given_up_s = [self.world.now - asked_s for asked_s in asked if asked_s is not None]
        timeout_s = self.core.context.requests_out.timeout_s
        took_s = sum(s for s in given_up_s if s < timeout_s)  # longer waits mean a dead host
        if took_s:
            self.record_wait(cancel.host, took_s, chunks=0)
        super()._cancel(cancel)


class Cloud(authorization.ChunkMaps):
    """The hosts and the network between them; ``packed`` is the storage's compression ratio."""

    def __init__(
        self,
        tree: topology.Tree,
        images: Sequence[boot_traces.TracedImage] = (),
        seed: int = 0,
        packed: float = 1.0,
    ) -> None:
        self.agenda = network.EventQueue()
        self.tree, self.seed = tree, seed
        self.counts = Counts()
        self.hosts: dict[ids.HostId, SimulatedHost] = {}
        self._named = {
            (image.image_id, chunk.offset): ids.Content(chunk.cid)
            for image in images
            for chunk in (*image.chunks, *image.rest)
        }
        self._packed = {
            piece.cid: round(packed * piece.length) for image in images for piece in image.rest
        }

    @property
    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.agenda.now

    def add(
        self,
        name: ids.HostId,
        table: hash_ring.Ring,
        settings: settings.Settings,
        may_refer: bool,
        urgency: priority.Priority,
    ) -> SimulatedHost:
        """Add the next host."""
        host = SimulatedHost(self, name, len(self.hosts), table, settings, may_refer, urgency)
        self.hosts[name] = host
        return host

    def content_at(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """See :meth:`authorization.ChunkMaps.content_at`."""
        return self._named.get((image_id, offset), NOTHING)

    def content_of(self, cid: ids.Cid) -> Any:
        """Return the CID in place of the chunk's bytes."""
        return cid

    def call_later(self, host: Any, after_s: float, call: Callable[..., None], *what: Any) -> None:
        """Call a host's function after a delay."""
        self.agenda.schedule_after(after_s, call, *what)

    def connection_to(self, opener: ids.HostId, other: ids.HostId) -> Hashable:
        """Return the connection that a host opened to another one."""
        return opener, other

    def host_of(self, connection: Hashable) -> ids.HostId:
        """Return the host that opened a connection."""
        assert isinstance(connection, tuple)
        return ids.HostId(connection[0])

    def is_reachable(self, name: ids.HostId) -> bool:
        """Return whether a host is reachable."""
        return name in self.hosts

    def send(
        self, sender: SimulatedHost, to: ids.HostId, message: Any, size_bytes: int, urgency: int
    ) -> bool:
        """Send a message without chunks; it uses no bandwidth."""
        if not self.is_reachable(to):
            return False
        connection = self.connection_to(sender.name, to)
        self.agenda.schedule_after(
            MESSAGE_S, self.hosts[to].receive, sender.name, connection, message
        )
        return True

    def send_on(
        self,
        connection: Hashable,
        sender: SimulatedHost,
        to: ids.HostId,
        message: Any,
        size_bytes: int,
    ) -> None:
        """Send responses; each chunk arrives separately."""
        if not isinstance(message, virtual_host.Responses):
            self.agenda.schedule_after(
                MESSAGE_S, self.hosts[to].receive, sender.name, connection, message
            )
            return
        given = [answer for answer in message.answers if isinstance(answer, actions.SendChunk)]
        others = [answer for answer in message.answers if not isinstance(answer, actions.SendChunk)]
        arrive, receiver = self._arrive, self.hosts[to]
        if others:
            self.agenda.schedule_after(
                MESSAGE_S, arrive, connection, sender, receiver, others, not given
            )
        self.counts.peer += len(given)
        way = self.tree.links_between(sender.number, receiver.number) if given else ()
        for answer in given:
            what = connection, sender, receiver, [answer], answer is given[-1]
            network.send(self.agenda, way, answer.ref.length, MESSAGE_S, arrive, *what)

    def _arrive(
        self,
        connection: Hashable,
        sender: SimulatedHost,
        to: SimulatedHost,
        answers: list[Any],
        is_last: bool,
    ) -> None:
        to.receive(sender.name, connection, virtual_host.Responses(answers))
        if is_last:
            sender.answers_acknowledged(connection)

    def read_source(self, host: SimulatedHost, read: actions.ReadSource) -> None:
        """Read each chunk from the storage, which always succeeds."""
        for index, chunk in enumerate(read.refs):
            size_bytes = self._packed.get(chunk.cid, chunk.length)
            self.read_storage(host, size_bytes, self._gave, host, read, index, self.now)

    def _gave(
        self, host: SimulatedHost, read: actions.ReadSource, index: int, asked_s: float
    ) -> None:
        if read.priority.is_urgent:
            host.record_wait(None, self.now - asked_s)
        fetched = [(index, self.content_of(read.refs[index].cid))]
        host.run_actions(host.core.source_read_progressed(self.now, read.number, fetched))

    def read_storage(
        self, host: SimulatedHost, size_bytes: int, arrive: Callable[..., None], *what: Any
    ) -> None:
        """Transfer bytes from the storage to a host."""
        self.counts.storage += 1
        way = self.tree.links_from_storage(host.number)
        network.send(self.agenda, way, size_bytes, self.tree.shape.storage_s, arrive, *what)
