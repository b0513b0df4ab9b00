# SPDX-License-Identifier: Apache-2.0
"""Hosts made of the pure cores, for swarms on a network in virtual time.

A host is its cores (chunk states, prefetcher, gossip, peer health, content index,
ring) and the smallest fetcher that can use them: ask who advertised the chunk and
has the fewest requests pending, else its home, else the source.  Some may lie.
"""

import collections
import itertools
import random
from collections.abc import Callable
from collections.abc import Sequence

from acstor_agent.core.exchange import gossip
from acstor_agent.core.exchange import neighbours
from acstor_agent.core.exchange import peer_health
from acstor_agent.core.exchange import prefetch
from acstor_agent.core.images import chunk_state
from acstor_common import ids
from acstor_common import peer_wire
from tests.fakes import swarm_world

E = chunk_state.ChunkEvent


class Flight:
    """One chunk on its way to a host: one request at a time."""

    def __init__(self, chunk_no: int, is_demand: bool) -> None:
        self.chunk_no = chunk_no
        self.began_as_demand = is_demand
        self.is_demand = is_demand
        self.waiting: list[int] = []  # guest's operations, by their number
        self.tried: set[ids.HostId] = set()
        self.referrals: list[ids.HostId] = []
        self.may_be_referred = True
        self.request_id: int | None = None
        self.reads_source = False


class Host:
    """One host, honest."""

    def __init__(
        self,
        world: swarm_world.World,
        host_id: ids.HostId,
        ops: Sequence[swarm_world.Op],
        start_s: float,
    ):
        self.world, self.host_id, self.ops, self.start_s = world, host_id, ops, start_s
        self.network, self.settings = world.network, world.settings
        count = len(world.contents)
        self.states = chunk_state.ChunkStates(count)
        self.prefetcher = prefetch.Prefetcher(
            self.states, world.settings.limit, world.settings.first, world.settings.gain
        )
        told = neighbours.neighbours(world.host_ids, host_id, world.settings.topology)
        self.gossip = gossip.Gossip(told)
        self.health = peer_health.PeerHealth(random.Random(host_id))
        self.bytes: dict[int, bytes] = {}  # the mirror: of the image, or written
        self.relayed: dict[int, bytes] = {}  # read through for others, as their home
        self.served: dict[int, collections.deque[ids.HostId]] = {}  # who asked this home
        self.flights: dict[int, Flight] = {}
        self.source_reads: dict[int, list[Callable[[bytes], None]]] = {}
        self.patient: dict[int, list[tuple[ids.HostId, int, peer_wire.Klass]]] = {}
        self.requests: dict[int, tuple[ids.HostId, int]] = {}  # live: host and chunk
        self.origins: collections.Counter[str] = collections.Counter()
        self.answers = [0] * len(ops)
        self.finished_s = start_s
        self.is_attached = False
        self._next_op = 0
        self._done_ops = 0
        self._ids = itertools.count(1)
        self._flush_at: float | None = None
        self.network.attach(host_id, self.receive)
        self.network.call_at(start_s, self._attach)

    @property
    def is_done(self) -> bool:
        """Say that the guest has all its answers."""
        return self._done_ops == len(self.ops)

    @property
    def prefetched(self) -> int:
        """Chunks that came by prefetch."""
        return self.origins["prefetch"]

    @property
    def wasted(self) -> int:
        """Chunks that were prefetched and that no guest has read."""
        return sum(state is chunk_state.ChunkState.LOCAL for state in self.states)

    # The guest

    def _attach(self) -> None:
        self.is_attached = True
        for prefix in self.gossip.known():
            self._hear(prefix)
        for _ in range(min(self.settings.window, len(self.ops))):
            self._step()
        self._prefetch()

    def _step(self) -> None:
        """Begin the guest's next operation."""
        if self._next_op == len(self.ops):
            return
        number, self._next_op = self._next_op, self._next_op + 1
        op = self.ops[number]
        if op.kind == "write":
            self._write(op.chunk_no, E.WHOLE_WRITTEN)
            self._answer(number)
        elif self._is_here(op.chunk_no):
            self._finish_op(number)
        else:
            self._need(op, number)
        self._prefetch()

    def _is_here(self, chunk_no: int) -> bool:
        """Say whether the mirror has the bytes; take what this home has read for others."""
        if not self.states.can_happen(chunk_no, E.GUEST_READ) and chunk_no in self.relayed:
            if flight := self.flights.get(chunk_no):
                self._landed(flight, self.relayed[chunk_no], self.host_id)
            else:
                self.bytes[chunk_no] = self.relayed[chunk_no]
                self.states.apply(chunk_no, E.DEMAND_ARRIVED)
                self._have(chunk_no, None)
        return self.states.can_happen(chunk_no, E.GUEST_READ)

    def _need(self, op: swarm_world.Op, number: int) -> None:
        flight = self.flights.get(op.chunk_no)
        if flight is None:
            self.prefetcher.fetched_on_demand(op.chunk_no)
            flight = self.flights[op.chunk_no] = Flight(op.chunk_no, is_demand=True)
            flight.waiting.append(number)
            self._ask_next(flight)
        else:
            flight.is_demand = True
            flight.waiting.append(number)

    def _finish_op(self, number: int) -> None:
        """The bytes are here: do with them what the guest wants."""
        op = self.ops[number]
        if op.kind == "part":
            self._write(op.chunk_no, E.PART_WRITTEN)
        else:
            self.states.apply(op.chunk_no, E.GUEST_READ)
            self.check_read(op.chunk_no, self.bytes[op.chunk_no])
        self._answer(number)

    def check_read(self, chunk_no: int, data: bytes) -> None:
        """Compare what the guest gets with what it must be."""
        own = b"written by %s in %d" % (self.host_id.encode(), chunk_no)
        is_written = self.states.state(chunk_no) is chunk_state.ChunkState.WRITTEN
        assert data == (own if is_written else self.world.contents[chunk_no])

    def _write(self, chunk_no: int, event: chunk_state.ChunkEvent) -> None:
        self.bytes[chunk_no] = b"written by %s in %d" % (self.host_id.encode(), chunk_no)
        self.states.apply(chunk_no, event)
        self.gone(chunk_no)
        if flight := self.flights.get(chunk_no):  # those who read get what was written
            self._end_flight(flight)
            for number in flight.waiting:
                self._finish_op(number)

    def _answer(self, number: int) -> None:
        self.answers[number] += 1
        self._done_ops += 1
        self.finished_s = self.network.now
        self.network.call_at(self.network.now + self.settings.think_s, self._step)

    # Getting chunks

    def _prefetch(self) -> None:
        under_way = sum(not flight.is_demand for flight in self.flights.values())
        for chunk_no in self.prefetcher.take(self.settings.prefetches - under_way):
            if chunk_no not in self.flights:  # else it is on its way on demand: that will do
                self.flights[chunk_no] = Flight(chunk_no, is_demand=False)
                self._ask_next(self.flights[chunk_no])

    def _ask_next(self, flight: Flight) -> None:
        """Ask the next place for a chunk; a prefetch has no place but those who advertised it."""
        if self.flights.get(flight.chunk_no) is not flight or flight.reads_source:
            return
        host = self._next_place(flight)
        if host is not None:
            flight.tried.add(host)
            self._ask(flight, host)
        elif flight.is_demand:
            flight.reads_source = True
            self._read_source(flight.chunk_no, lambda data: self._landed(flight, data, None))
        else:
            self._end_flight(flight)
            self.states.apply(flight.chunk_no, E.PREFETCH_FAILED)
            self._prefetch()

    def _next_place(self, flight: Flight) -> ids.HostId | None:
        holders = self.gossip.holders(self.world.prefixes[flight.chunk_no])
        home = self.world.homes[flight.chunk_no]
        if flight.is_demand and home is not None:
            pending = self.gossip.pending
            holders = [host for host in holders if pending(host) <= pending(home)]
        places = [*holders, *flight.referrals]
        if flight.is_demand and home is not None:
            places.append(home)
        for host in places:
            if host == self.host_id or host in flight.tried:
                continue
            if self.health.is_usable(host, self.network.now):
                return host
        return None

    def _ask(self, flight: Flight, host: ids.HostId) -> None:
        is_home = host == self.world.homes[flight.chunk_no]
        request_id = flight.request_id = next(self._ids)
        self.requests[request_id] = (host, flight.chunk_no)
        self.gossip.asked(host)
        klass = peer_wire.Klass.DEMAND if flight.is_demand else peer_wire.Klass.BULK
        get = self._get(request_id, flight.chunk_no, is_home and flight.is_demand)
        may_refer = flight.may_be_referred and get.may_read_source
        self.world.send(self.host_id, host, get._replace(may_refer=may_refer), klass)
        deadline = self.network.now + self.settings.timeout_s
        self.network.call_at(deadline, self._time_out, request_id)

    def _get(self, request_id: int, chunk_no: int, may_read_source: bool) -> peer_wire.Get:
        return peer_wire.Get(
            request_id,
            swarm_world.IMAGE,
            chunk_no * swarm_world.CHUNK_BYTES,
            swarm_world.CHUNK_BYTES,
            bytes(peer_wire.PROOF_BYTES),
            may_read_source,
            1000,
        )

    def _read_source(self, chunk_no: int, landed: Callable[[bytes], None]) -> None:
        """Read a chunk from the source, once for all who want it, until it comes."""
        if chunk_no in self.source_reads:
            self.source_reads[chunk_no].append(landed)
            return
        self.source_reads[chunk_no] = [landed]
        self._ask_source(chunk_no)

    def _ask_source(self, chunk_no: int) -> None:
        request_id = next(self._ids)
        self.requests[request_id] = (swarm_world.SOURCE, chunk_no)
        get = self._get(request_id, chunk_no, True)
        self.world.send(self.host_id, swarm_world.SOURCE, get, peer_wire.Klass.DEMAND)
        deadline = self.network.now + self.settings.timeout_s
        self.network.call_at(deadline, self._time_out, request_id)

    def _time_out(self, request_id: int) -> None:
        host, chunk_no = self.requests.get(request_id, (None, 0))
        if host is None:
            return
        if host in (swarm_world.SOURCE, swarm_world.NOBODY):
            del self.requests[request_id]
            if host == swarm_world.SOURCE:
                self._ask_source(chunk_no)
            return
        self.health.failed(host, self.network.now, peer_health.FailureKind.UNREACHABLE)
        self._close(request_id)

    def _close(self, request_id: int) -> None:
        """End a request that gave nothing, and go on with the next place."""
        host, chunk_no = self.requests.pop(request_id)
        self.gossip.answered(host)
        flight = self.flights.get(chunk_no)
        if flight and flight.request_id == request_id:
            self._ask_next(flight)

    def _landed(self, flight: Flight, data: bytes, giver: ids.HostId | None) -> None:
        """Right bytes came for a chunk: store them, then tell everybody who wants to know."""
        if self.flights.get(flight.chunk_no) is not flight:
            return  # it was written, or came from elsewhere
        chunk_no = flight.chunk_no
        self._end_flight(flight)
        self.bytes[chunk_no] = data
        if flight.began_as_demand:
            self.states.apply(chunk_no, E.DEMAND_ARRIVED)
            is_home = giver == self.world.homes[chunk_no]
            self.origins["source" if giver is None else "home" if is_home else "peer"] += 1
        else:
            self.states.apply(chunk_no, E.PREFETCH_ARRIVED)
            self.origins["prefetch"] += 1
        for number in flight.waiting:
            self._finish_op(number)
        self._have(chunk_no, giver)
        for sender, request_id, klass in self.patient.pop(chunk_no, []):
            self.serve(sender, request_id, chunk_no, klass)
        self._prefetch()

    def _have(self, chunk_no: int, giver: ids.HostId | None) -> None:
        if self.states.may_leave(chunk_no):  # the guest has not written to it at once
            self.gossip.have(self.world.prefixes[chunk_no], self.network.now, giver)
            self._plan_flush()

    def gone(self, chunk_no: int) -> None:
        """Take back what was advertised of a chunk."""
        self.gossip.gone(self.world.prefixes[chunk_no], self.network.now)
        self._plan_flush()

    def _end_flight(self, flight: Flight) -> None:
        del self.flights[flight.chunk_no]
        if flight.request_id in self.requests:  # an answer may still come: it is late then
            host, _ = self.requests[flight.request_id]
            self.gossip.answered(host)
            self.requests[flight.request_id] = (swarm_world.NOBODY, flight.chunk_no)

    # Messages

    def receive(self, sender: str, posted: swarm_world.Posted) -> None:
        """Take a message from the network."""
        host = ids.HostId(sender)
        match posted.message:
            case peer_wire.Get() as get:
                self.handle_get(host, get, posted.klass)
            case peer_wire.Chunk(request_id, data):
                self._chunk_came(host, request_id, bytes(data))
            case peer_wire.Refuse(request_id):
                self._refused(host, request_id)
            case peer_wire.Refer(request_id, hosts):
                self._referred(host, request_id, hosts)
            case peer_wire.Gone(prefixes):
                gone = [gossip.Prefix(prefix) for prefix in prefixes]
                self.gossip.taken_back(host, gone, self.network.now)
            case peer_wire.Advertise(prefixes):
                heard = self.gossip.advertised(
                    host, [gossip.Prefix(prefix) for prefix in prefixes], self.network.now
                )
                for prefix in heard:
                    self._hear(prefix)
                self._prefetch()

    def _refused(self, host: ids.HostId, request_id: int) -> None:
        asked, chunk_no = self.requests.get(request_id, (swarm_world.NOBODY, 0))
        if asked == host:
            self.gossip.denied(host, self.world.prefixes[chunk_no], self.network.now)
            self.health.succeeded(host, self.network.now)
            self._close(request_id)

    def _hear(self, prefix: gossip.Prefix) -> None:
        chunk_no = self.world.index.find(prefix)
        if chunk_no is not None and self.is_attached:
            self.prefetcher.advertised(chunk_no)

    def _referred(self, host: ids.HostId, request_id: int, hosts: Sequence[ids.HostId]) -> None:
        asked, chunk_no = self.requests.get(request_id, ("", 0))
        flight = self.flights.get(chunk_no)
        if asked != host or flight is None or not flight.may_be_referred:
            return
        flight.referrals = list(hosts)
        flight.may_be_referred = False
        flight.tried.discard(host)  # if those fail it is asked again
        self._close(request_id)

    def _chunk_came(self, host: ids.HostId, request_id: int, data: bytes) -> None:
        asked, chunk_no = self.requests.pop(request_id, (None, 0))
        if asked is None:
            return  # doubled
        is_right = ids.cid_of(data) == self.world.cids[chunk_no]
        if asked == swarm_world.SOURCE:
            self._source_came(chunk_no, data)
            return
        if asked == swarm_world.NOBODY:  # late: somebody else gave it, or it was written
            self.states.apply(chunk_no, E.PREFETCH_ARRIVED)
            return
        self.gossip.answered(host)
        flight = self.flights.get(chunk_no)
        if not is_right:
            self.gossip.denied(host, self.world.prefixes[chunk_no], self.network.now)
            self.health.failed(host, self.network.now, peer_health.FailureKind.LYING)
            if flight and flight.request_id == request_id:
                self._ask_next(flight)
            return
        self.health.succeeded(host, self.network.now)
        if flight:
            self._landed(flight, data, host)

    def _source_came(self, chunk_no: int, data: bytes) -> None:
        for landed in self.source_reads.pop(chunk_no, []):
            landed(data)

    def handle_get(self, sender: ids.HostId, get: peer_wire.Get, klass: peer_wire.Klass) -> None:
        """Answer from what is here, or as a home from the source, or refer, or say no."""
        chunk_no = get.offset // swarm_world.CHUNK_BYTES
        parents = self._parents(sender, chunk_no) if get.may_refer else ()
        if parents:
            self.world.send(self.host_id, sender, peer_wire.Refer(get.request_id, parents), klass)
        elif self.states.may_leave(chunk_no) or chunk_no in self.relayed:
            self.serve(sender, get.request_id, chunk_no, klass)
        elif get.may_read_source:

            def relay(data: bytes) -> None:
                self.relayed[chunk_no] = data
                self.serve(sender, get.request_id, chunk_no, klass)

            self._read_source(chunk_no, relay)
        elif chunk_no in self.flights and self.settings.children is not None:
            self.patient.setdefault(chunk_no, []).append((sender, get.request_id, klass))
        else:
            self.serve(sender, get.request_id, chunk_no, klass)

    def _parents(self, sender: ids.HostId, chunk_no: int) -> tuple[ids.HostId, ...]:
        """Return hosts that asked this home before, the one with the fewest below it first."""
        children = self.settings.children
        if children is None:
            return ()
        asked = self.served.setdefault(chunk_no, collections.deque(maxlen=1024))
        parents = [host for host in asked if host != sender][:2] if len(asked) >= children else []
        asked.rotate(-1 if parents else 0)
        asked.append(sender)
        return tuple(parents)

    def serve(
        self, sender: ids.HostId, request_id: int, chunk_no: int, klass: peer_wire.Klass
    ) -> None:
        """Send a chunk if it is here."""
        may_leave = self.states.may_leave(chunk_no)
        data = self.bytes[chunk_no] if may_leave else self.relayed.get(chunk_no)
        message: peer_wire.Message
        if data is None:
            message = peer_wire.Refuse(request_id, peer_wire.RefuseCode.MISSING)
        else:
            message = peer_wire.Chunk(request_id, data)
        self.world.send(self.host_id, sender, message, klass)

    def _plan_flush(self) -> None:
        due = self.gossip.next_timeout()
        if due is not None and (self._flush_at is None or due < self._flush_at):
            self._flush_at = due
            self.network.call_at(due, self._flush)

    def _flush(self) -> None:
        self._flush_at = None
        for host, prefixes in self.gossip.take_gone(self.network.now):
            self.world.send(self.host_id, host, peer_wire.Gone(prefixes), peer_wire.Klass.BULK)
        for host, prefixes in self.gossip.take_batches(self.network.now):
            message = peer_wire.Advertise(prefixes)
            self.world.send(self.host_id, host, message, peer_wire.Klass.BULK)
        self._plan_flush()


class Liar(Host):
    """It advertises everything, and gives wrong bytes for whatever it is asked."""

    def _attach(self) -> None:
        super()._attach()
        for prefix in self.world.prefixes:
            self.gossip.have(prefix, self.network.now)
        self._plan_flush()

    def handle_get(self, sender: ids.HostId, get: peer_wire.Get, klass: peer_wire.Klass) -> None:
        """Answer with a lie."""
        self.world.send(self.host_id, sender, peer_wire.Chunk(get.request_id, b"a lie"), klass)


def add_host(
    world: swarm_world.World,
    number: int,
    ops: Sequence[swarm_world.Op] = (),
    start_s: float = 0.0,
    kind: type[Host] = Host,
) -> Host:
    """Put a host in its place and let its guest begin at a time."""
    host = world.hosts[world.host_ids[number]] = kind(world, world.host_ids[number], ops, start_s)
    return host
