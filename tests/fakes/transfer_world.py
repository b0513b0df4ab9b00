# SPDX-License-Identifier: Apache-2.0
"""The world of ``transfer_hosts``: images, source, tables, connections, checks.

A *connection* is a tuple: opener, acceptor, and a count of their breaks.  A break loses all
messages in flight, and both ends see it.
"""

import collections
import random
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from typing import Any

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import identity
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import transfer as transfer_
from acstor_agent.engine.serve import authorization
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_request
from acstor_simulator.model import virtual_host as shells
from tests.fakes import link_network
from tests.fakes import serving_checks
from tests.fakes import transfer_hosts
from tests.fakes import transfer_source

CHUNK = 65536
SOURCE = "source"
IMAGE = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.ImageId("b3f10d1c-1a2b-4c3d-8e4f-5a6b7c8d9e0f")
SECRET = ids.ImageId("0f9e8d7c-6b5a-4c3d-8e1f-a0b1c2d3e4f5")
SECRET_CHUNKS = 16
IMAGES = (IMAGE, OTHER, SECRET)
LOOK_EVERY = 16
MAX_IN_FLIGHT_BYTES = 8 * 1024 * 1024
LONGEST_TIMES, LOOK_S = 4, 0.2
"""Limit of a request other than a home's: times its timeout, plus LOOK_S."""
RELAY_S = 5.0
"""The time after which a home reads the source, too, while a guest waits."""
LANES = 5
Broken = serving_checks.Broken
Host = transfer_hosts.Host
Mode = peer_request.Mode


class Watch:
    """Checks and counts the actions of hosts."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.asked_chunks = self.ask_messages = 0
        self.origins: collections.Counter[str] = collections.Counter()

    def asks(self, host: Host, ask: actions.RequestChunks) -> None:
        """Count a request."""
        self.ask_messages += 1
        chunks = len(list(ask.iter_chunks()))
        self.asked_chunks += chunks
        if not 1 <= chunks <= peer_request.MAX_BATCH:
            raise Broken(f"{host.name} asks for {chunks} chunks at once")
        if ask.host == host.name:
            raise Broken(f"{host.name} asks itself")

    def stored(self, host: Host, runs: list[actions.ArrivedRun]) -> None:
        """Count stored chunks, and check their bytes."""
        for run in runs:
            for ref, data in zip(run.refs, run.chunks, strict=True):
                if data != self.world.content_of(ref.cid):
                    raise Broken(f"{host.name} stores wrong bytes")
            origin = (
                "source" if run.provider is None else "home" if run.mode.reads_source else "peer"
            )
            self.origins[origin] += len(run.refs)


class World:
    """A cloud.

    :param chunks: number of the image's chunks; a second image has every other one
    :param link_bytes_per_s: of each host and of the source; None: unlimited
    :param names: the identity scheme of chunks
    :param table: of the first v-node table: ``vnodes`` of each host (40), ``location`` of each by
        its number, and further arguments of ``hash_ring.Ring``
    :ivar in_flight_limit_bytes: limit of requested bytes per peer
    """

    def __init__(
        self,
        seed: int,
        hosts: int,
        chunks: int,
        *,
        link_bytes_per_s: float | None = None,
        latency_s: float = 0.0005,
        names: type[identity.Identity] = identity.ByContent,
        segment_chunks: int = 1,
        **table: Any,
    ) -> None:
        self.segment_chunks = segment_chunks
        self.in_flight_limit_bytes = MAX_IN_FLIGHT_BYTES
        self.rng = random.Random(f"world/{seed}")
        self.make_names = names
        self._names = names()
        self.network = link_network.LinkNetwork(
            latency_s=latency_s, link_bytes_per_s=link_bytes_per_s
        )
        self.names = [ids.HostId(f"h{number}") for number in range(1, hosts + 1)]
        self.data = [b"chunk %d of seed %d" % (number, seed) for number in range(chunks)]
        self.chunks = self._in_segments([self._chunk(n, IMAGE, n) for n in range(chunks)])
        others = [self._chunk(2 * n, OTHER, n) for n in range((chunks + 1) // 2)]
        self.others = self._in_segments(others)
        self.secrets = secrets = [b"secret %d" % number for number in range(SECRET_CHUNKS)]
        self._content = {ids.cid_of(data): data for data in (*self.data, *secrets)}
        self.secret = self._in_segments(
            [self._want(ids.cid_of(data), SECRET, n) for n, data in enumerate(secrets)]
        )
        self._images = {
            chunks[0].image_id: chunks for chunks in (self.chunks, self.others, self.secret)
        }
        self._named = {
            (chunk.image_id, chunk.offset): ids.Content(chunk.cid)
            for chunk in (*self.chunks, *self.others, *self.secret)
        }
        self.source = transfer_source.Source()
        self.watch = Watch(self)
        self.hosts: dict[ids.HostId, Host] = {}
        self.location_of: Callable[[int], str] = table.get("location", lambda n: "")
        self.table = self.make_table(1, table)
        self._epochs: collections.Counter[frozenset[str]] = collections.Counter()
        self._silent: dict[frozenset[str], list[Callable[[], None]]] = {}
        self._events = 0
        self.delays: dict[ids.HostId, float] = {}
        self.network.attach(SOURCE, lambda sender, call: call())
        self.promise_broken: str = ""
        self.is_calm = True
        self.look_ups = 0
        self.store_s = 0.0

    @property
    def now(self) -> float:
        """The current time in seconds."""
        return self.network.now

    def make_table(
        self,
        epoch: int,
        more: dict[str, Any] | None = None,
        without: Collection[ids.HostId] = (),
    ) -> hash_ring.Ring:
        """Return a table with other weights, without some hosts."""
        known = dict(more or {})
        location, vnodes = known.pop("location", lambda n: ""), known.pop("vnodes", 40)
        hosts = tuple(
            hash_ring.RingHost(
                name,
                f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:7201",
                vnodes if epoch == 1 else self.rng.choice((5, 40, 80)),
                location(n),
            )
            for n, name in enumerate(self.names, 1)
            if name not in without
        )
        return hash_ring.Ring(epoch, hosts, **known, segment_chunks=self.segment_chunks)

    def add(self, name: ids.HostId, kind: type[Host] = Host, **settings: Any) -> Host:
        """Add a host."""
        self.network.attach(name, lambda sender, call: call())
        self.hosts[name] = kind(self, name, **settings)
        return self.hosts[name]

    # Contents

    def _want(self, cid: ids.Cid, image_id: ids.ImageId, place: int) -> chunk_ref.ChunkRef:
        oid = self._names.oid_of(image_id, place * CHUNK, cid)
        return chunk_ref.ChunkRef(cid, oid, image_id, place * CHUNK, CHUNK)

    def _chunk(self, number: int, image_id: ids.ImageId, place: int) -> chunk_ref.ChunkRef:
        return self._want(ids.cid_of(self.data[number]), image_id, place)

    def _in_segments(self, chunks: list[chunk_ref.ChunkRef]) -> list[chunk_ref.ChunkRef]:
        """Return an image's chunks with the names of their segments."""
        if self.segment_chunks == 1:
            return chunks
        cids, oids = [chunk.cid for chunk in chunks], [chunk.oid for chunk in chunks]
        named = zip(chunks, segments.names_and_bits(cids, oids, self.segment_chunks), strict=True)
        return [chunk._replace(segment=name, bit=bit) for chunk, (name, bit) in named]

    def places(self) -> collections.Counter[ids.Cid]:
        """Return the number of ring positions of each content."""
        chunks = {
            (chunk.cid, chunk.ring_position) for its in self._images.values() for chunk in its
        }
        return collections.Counter(cid for cid, _ in chunks)

    def segments(self, request: chunk_ref.Request) -> authorization.Segments | None:
        """Return the segments that a request touches."""
        if self.segment_chunks == 1:
            return None
        chunks = self._images[request.image_id]
        asked = request.offset // CHUNK
        stop = asked + request.chunk_count
        first, stop = segments.covering(asked, stop, self.segment_chunks, len(chunks))
        cids = [chunk.cid for chunk in chunks[first:stop]]
        return authorization.Segments(cids, asked - first, CHUNK, self.segment_chunks)

    def content_of(self, cid: ids.Cid) -> bytes:
        """Return the bytes of a CID."""
        return self._content[cid]

    def named(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """Return an image's content at an offset."""
        zero = ids.Content(ids.ZERO_CID)
        return self._named.get((image_id, offset), zero) if length == CHUNK else zero

    # Time and messages

    def call_later(self, host: Host, after_s: float, call: Callable[..., None], *what: Any) -> None:
        """Schedule a call, skipped if the host's life ends before."""
        life = host.lives

        def live() -> None:
            if host.lives == life and not host.is_dead:
                call(*what)

        self.network.call_at(self.now + after_s, live)

    def connection_to(self, opener: str, other: str) -> Hashable:
        """Return the connection that a host opened to another one."""
        return opener, other, self._epochs[frozenset((opener, other))]

    def host_of(self, connection: Hashable) -> ids.HostId:
        """Return the opener of a connection, which receives the answers on it."""
        assert isinstance(connection, tuple)
        return ids.HostId(connection[0])

    def is_reachable(self, name: ids.HostId) -> bool:
        """Whether a host is alive."""
        return name in self.hosts and not self.hosts[name].is_dead

    def send(
        self, sender: Host, to: ids.HostId, message: Any, size_bytes: int, urgency: int
    ) -> bool:
        """Send a message on the sender's own connection; False: the host is dead."""
        if not self.is_reachable(to):
            return False
        connection = self.connection_to(sender.name, to)
        self._post(connection, sender, to, message, size_bytes, urgency)
        return True

    def send_on(
        self, connection: Hashable, sender: Host, to: ids.HostId, message: Any, size_bytes: int
    ) -> None:
        """Send answers on the requester's connection; the sender sees their arrival."""
        self._post(connection, sender, to, message, size_bytes, priority.Priority.GUEST)

    def _post(
        self,
        connection: Hashable,
        sender: Host,
        to: ids.HostId,
        message: Any,
        size_bytes: int,
        urgency: int,
    ) -> None:
        assert isinstance(connection, tuple)
        pair, epoch = frozenset((sender.name, to)), connection[2]
        is_answer = connection[0] == to

        def arrive() -> None:
            if self._epochs[pair] != epoch or to not in self.hosts or self.hosts[to].is_dead:
                return
            if pair in self._silent:
                self._silent[pair].append(arrive)
                return
            if is_answer and isinstance(message, shells.Responses):
                if self.hosts[to].is_deaf:
                    return
                self.call_later(sender, 0.0005, sender.answers_acknowledged, connection)
            self.hosts[to].receive(sender.name, connection, message)

        delay_s = self.delays.get(sender.name, 0.0) + self.delays.get(to, 0.0)
        if delay_s:
            self.network.send(sender.name, to, lambda: self._after(delay_s, arrive), size_bytes)
        else:
            self.network.send(sender.name, to, arrive, size_bytes, urgency)

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        self.network.call_at(self.now + delay_s, call)

    def break_(self, one: str, other: str) -> None:
        """Break the connections between two hosts."""
        pair = frozenset((one, other))
        for host, peer in ((one, other), (other, one)):
            found = self.hosts.get(ids.HostId(host))
            if found is not None and not found.is_dead:
                found.broken(ids.HostId(peer))
        self._epochs[pair] += 1
        if pair in self._silent:
            self._silent[pair] = []

    def silence(self, one: str, other: str) -> Callable[[], None]:
        """Hold back all messages between two hosts until the returned call."""
        pair = frozenset((one, other))
        self._silent.setdefault(pair, [])

        def end() -> None:
            for arrive in self._silent.pop(pair, []):
                self.network.call_at(self.now, arrive)

        return end

    def kill(self, host: Host, is_wiped: bool) -> None:
        """Kill a host; its ``start`` restarts it."""
        host.is_dead = True
        host.lives += 1
        for other in self.names:
            if other != host.name and other in self.hosts:
                self.break_(host.name, other)
        if is_wiped:
            host.cache.clear()

    # The source

    def read_source(self, host: Host, read: actions.ReadSource) -> None:
        """Read from the source."""
        self.source.read(self, host, read)

    def times_of_news(self) -> int:
        """Return the deliveries of an announcement: none if lost, two if duplicated."""
        return 1 if self.is_calm else self.rng.choices((0, 1, 2), (15, 75, 10))[0]

    def from_source(
        self, host: Host, length: int, delay_s: float, arrive: Callable[[], None]
    ) -> None:
        """Send bytes from the source to a host, after a delay."""
        self._after(delay_s, lambda: self.network.send(SOURCE, host.name, arrive, length))

    def broken_promise(self, why: str) -> None:
        """Report a violated invariant."""
        raise Broken(why)

    # Invariants

    def look_at(self, host: Host) -> None:
        """Check a host after every LOOK_EVERY events."""
        self._events += 1
        if self._events % LOOK_EVERY == 0 and not host.is_dead:
            check_host(host)

    def check(self) -> None:
        """Check all hosts.

        :raises Broken: an invariant does not hold
        """
        for host in self.hosts.values():
            if not host.is_dead:
                check_host(host)

    def left(self) -> dict[str, dict[str, int]]:
        """Return the unfinished work of hosts, by kind."""
        found = {}
        for host in self.hosts.values():
            context = host.core.context
            peers = context.peers.list_peers()
            requesters = host.core.requests.links.requesters.values()
            counts = {
                "transfers": len(host.core),
                "waiters": len(host.core.pending),
                "peer_requests": len(host.core.requests),
                "attempts": sum(len(peer.pending) for peer in peers),
                "charged_to": sum(found.begun + found.requests for found in requesters),
                "undelivered": sum(found.undelivered for found in requesters),
                "answers": sum(
                    len(uploads) + uploads.used
                    for uploads in (context.uploads, context.far_uploads)
                ),
                "news": len(context.announcements),
                "reads": len(context.source_reads),
                "kept": len(context.kept),
                "lanes": host.core.pending.prefetch_limits.in_flight,
            }
            if any(counts.values()):
                found[host.name] = {what: count for what, count in counts.items() if count}
        return found


def check_host(host: Host) -> None:
    """Check a host's invariants between two events."""
    serving_checks.check(host)
    for transfer in host.core.context.transfers.values():
        _check_transfer(host, transfer)
    for peer in host.core.context.peers.list_peers():
        _check_peer(host, peer)
    _check_turns(host)
    reads = len(host.core.context.source_reads._ranges)
    if reads > host.core.context.settings.max_source_reads:
        raise Broken(f"{host.name}: {reads} ranges are read at a time")
    spare = host.core.context.settings.run_chunks - 1  # of the last run, beyond the limit
    ahead = host.core.pending.prefetch_limits.in_flight
    most = host.settings.get("background_limit", 64)
    if not 0 <= ahead <= LANES * (most + spare):
        raise Broken(f"{host.name}: {ahead} chunks are fetched ahead at a time")


def _check_turns(host: Host) -> None:
    turns = host.core.context.source_reads._queue
    queues = [subflows for flows in turns._by_priority for subflows in flows.values()]
    waiting = [len(reads) for queue in queues for reads in queue.values()]
    if sum(waiting) != len(turns) or 0 in waiting or {} in queues:
        raise Broken(f"{host.name}: {waiting} reads wait by opener, {len(turns)} in all")


def _check_transfer(host: Host, transfer: transfer_.Transfer) -> None:
    in_time = [attempt.host for attempt in transfer.attempts if not attempt.is_late]
    if len(in_time) > 1:
        raise Broken(f"{host.name}: {in_time} are asked for one content, and none of them is late")
    awaits_local_read = transfer.awaits_local_read and host.core.context.settings.learns_ring
    if transfer.is_idle and not awaits_local_read:
        raise Broken(f"{host.name}: nothing of {transfer.first_ref.offset // CHUNK} is under way")
    is_moving = transfer.attempts or transfer.relay or transfer.read is not None
    if transfer.is_fetching and not is_moving:
        raise Broken(f"{host.name}: a fetch that goes nowhere")
    relay, now = transfer.relay, host.world.now
    if relay is not None and relay.mode is not Mode.RELAYED:
        raise Broken(f"{host.name}: asks another home as a host")
    if relay is not None and transfer.read is None and not relay.is_late:
        guest_waits = any(pending.priority <= 1 for pending in transfer.peer_requests)
        if guest_waits and now - relay.at_s > RELAY_S + LOOK_S + host.settings["timeout_s"]:
            raise Broken(f"{host.name}: a guest waits for another home since {relay.at_s}")


def _check_peer(host: Host, peer: peer_state.Peer) -> None:
    timeout_s = host.settings.get("timeout_s", 10.0)
    for attempt in peer.pending.values():
        waits_s = host.world.now - (host.world.now if attempt.sent_s is None else attempt.sent_s)
        times = 1 if attempt.track is transfer_.Track.RELAY else LONGEST_TIMES
        if waits_s > times * timeout_s + LOOK_S:
            raise Broken(f"{host.name}: {peer.host} owes an answer since {waits_s:.1f} s")
    run_bytes = host.core.context.settings.run_chunks * CHUNK
    if not 0 <= peer.in_flight_bytes < host.world.in_flight_limit_bytes + run_bytes:
        raise Broken(f"{host.name}: {peer.in_flight_bytes} bytes are under way with {peer.host}")
    asks = dict.fromkeys(peer.pending.values())
    sent = sum(attempt.length for attempt in asks if attempt.sent_s is not None)
    if sent != peer.in_flight_bytes:
        raise Broken(
            f"{host.name}: {sent} bytes are asked of {peer.host}, not {peer.in_flight_bytes}"
        )
