# SPDX-License-Identifier: Apache-2.0
"""A host in virtual time, also for tests: the I/O shell of the agent's ``engine``."""

import functools
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import engine
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

Failure = failure.Failure
Priority = priority.Priority
proof_of = functools.lru_cache(maxsize=1 << 16)(peer_request.proof_of)

MESSAGE_BYTES, REQUEST_BYTES = 80, 60
"""Wire size of a message with its headers, and of each request in it."""
_FOR_OTHERS = actions.CancelSourceRead, actions.ReportStall, actions.ReportBackoff
"""Actions without effect here."""


class Requests(NamedTuple):
    """Requests for chunks."""

    requests: list[chunk_ref.Request]


class Responses(NamedTuple):
    """Responses with the data of chunks."""

    answers: list[Any]


class Cancels(NamedTuple):
    """Numbers of cancelled requests."""

    numbers: list[int]


class PriorityRaise(NamedTuple):
    """Numbers of requests that guests wait for now."""

    numbers: list[int]


class Alive(NamedTuple):
    """A keep-alive for pending requests."""


class World(Protocol):
    """Shared by hosts: the time, the network and the source."""

    @property
    def now(self) -> float:
        """Return the virtual time in seconds."""

    def call_later(self, host: Any, after_s: float, call: Callable[..., None], *what: Any) -> None:
        """Schedule a call to a host; never calls at once."""

    def connection_to(self, opener: ids.HostId, other: ids.HostId) -> Hashable:
        """Return a host's connection to another one; open it if needed."""

    def host_of(self, connection: Hashable) -> ids.HostId:
        """Return the host that opened a connection and sends requests on it."""

    def is_reachable(self, name: ids.HostId) -> bool:
        """Return whether a host is reachable."""

    def send(
        self, sender: Any, to: ids.HostId, message: Any, size_bytes: int, urgency: int
    ) -> bool:
        """Send a message on the sender's own connection; return False if it fails."""

    def send_on(
        self, connection: Hashable, sender: Any, to: ids.HostId, message: Any, size_bytes: int
    ) -> None:
        """Send responses, of ``size_bytes`` with chunks; ``answers_acknowledged`` follows."""

    def read_source(self, host: Any, read: actions.ReadSource) -> None:
        """Read from the source; the data arrives as events of the host's engine."""

    def content_of(self, cid: ids.Cid) -> Any:
        """Return what represents a chunk's bytes."""


class VirtualHost:
    """An honest host whose peers keep to the protocol, and which knows all images."""

    may_refer = True  # peers may send referrals
    lag_s = 0.0  # delay of timers, so that one serves several deadlines
    core: engine.Engine  # set by subclasses

    def __init__(self, world: World, name: ids.HostId) -> None:
        self.world, self.name = world, name
        self.cache: dict[ids.Cid, Any] = {}
        self.waiting: dict[Hashable, Callable[[actions.CompleteRead], None]] = {}
        self._doing: dict[type, Callable[[Any], None]] = {
            actions.ReadSource: self.read_source,
            actions.Store: self._store,
            actions.CompleteRead: self._complete,
            actions.RequestChunks: self._ask,
            actions.CancelRequests: self._cancel,
            actions.RaisePriority: self._raise_priority,
            actions.SendAnswers: self._reply,
            actions.WatchDelivery: self._watch,
            actions.SendKeepalives: self._send_keepalives,
            actions.SendAnnouncement: self._send_announcement,
            actions.ForwardAnnouncement: self._forward_announcement,
            **dict.fromkeys(_FOR_OTHERS, lambda action: None),
        }
        self.reset_state()

    def reset_state(self) -> None:
        """Forget all pending work."""
        self.waiting = {}
        self._tick_at: float | None = None
        self._under: dict[Hashable, int] = {}
        self._watched: set[Hashable] = set()
        self._tokens = 0

    def read(
        self,
        batch: Sequence[chunk_ref.ChunkRef],
        urgency: priority.Priority,
        done: Callable[[actions.CompleteRead], None],
        deadline_s: float = float("inf"),
        guest: Hashable = None,
    ) -> None:
        """Request chunks that are not in the cache.

        :param done: called with the result; it must not feed events to this host directly
        :param guest: key of fair queuing at the source
        """
        self._tokens += 1
        self.waiting[self._tokens] = done
        now, token = self.world.now, self._tokens
        self.run_actions(
            self.core.request_chunks(now, batch, urgency, token, deadline_s, True, guest)
        )

    def call_later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call after the current event."""
        self.world.call_later(self, 0.0, call, *arguments)

    def run_actions(self, todo: list[actions.Action]) -> None:
        """Carry out actions, and schedule the next timer."""
        for action in todo:
            self._doing[type(action)](action)
        next_s = self.core.next_s
        if next_s is not None and (self._tick_at is None or next_s + self.lag_s < self._tick_at):
            self._tick_at = at_s = next_s + self.lag_s
            self.world.call_later(self, max(0.0, at_s - self.world.now), self._tick, at_s)

    def _tick(self, at_s: float) -> None:
        if self._tick_at == at_s:
            self._tick_at = None
            self.run_actions(self.core.run_due_timers(self.world.now))

    def read_source(self, read: actions.ReadSource) -> None:
        """Read from the source."""
        self.world.read_source(self, read)

    def _complete(self, complete: actions.CompleteRead) -> None:
        self.waiting.pop(complete.token)(complete)

    def _store(self, store: actions.Store) -> None:
        self.call_later(self._stored, store.runs)

    def _stored(self, runs: list[actions.ArrivedRun]) -> None:
        kept = [run for run in runs if run.is_stored]
        for run in kept:
            self.cache.update(zip([ref.cid for ref in run.refs], run.chunks, strict=True))
        self.run_actions(self.core.chunks_stored(self.world.now, kept))
        if len(kept) < len(runs):
            others = [run for run in runs if not run.is_stored]
            self.run_actions(self.core.chunks_not_stored(self.world.now, others))

    def _ask(self, ask: actions.RequestChunks) -> None:
        world, timeout_s = self.world, self.core.context.requests_out.timeout_s
        requests = []
        connection = world.connection_to(self.name, ask.host)
        is_there = world.is_reachable(ask.host)
        for number, ref, attempt in ask.iter_chunks():
            cid, _, image_id, offset, length, *_ = ref
            mode = attempt.mode if self.may_refer else attempt.mode.plain
            proof, urgency = proof_of(cid, self.name, ask.host), attempt.priority.at_peer
            place = image_id, offset, length
            requests.append(chunk_ref.Request(number, *place, proof, mode, urgency, timeout_s))
            if is_there:
                attempt.connection = connection
        size_bytes = MESSAGE_BYTES + REQUEST_BYTES * len(requests)
        urgency = min(request.priority for request in requests)
        if not self.send(ask.host, Requests(requests), size_bytes, urgency):
            self.call_later(self._lost, ask.host)

    def _lost(self, host: ids.HostId) -> None:
        self.run_actions(self.core.connection_lost(self.world.now, host))

    def _cancel(self, cancel: actions.CancelRequests) -> None:
        self.send(cancel.host, Cancels(cancel.numbers), MESSAGE_BYTES)

    def _raise_priority(self, todo: actions.RaisePriority) -> None:
        self.send(todo.host, PriorityRaise(todo.numbers), MESSAGE_BYTES)

    def _send_announcement(self, announcement: actions.SendAnnouncement) -> None:
        entry_bytes = 8 if announcement.segment_chunks == 1 else 10
        count = len(announcement.held) + len(announcement.evicted) + len(announcement.evictable)
        size_bytes = MESSAGE_BYTES + entry_bytes * count
        self.send(announcement.host, announcement, size_bytes, Priority.ADVERTISED)

    def _forward_announcement(self, announcement: actions.ForwardAnnouncement) -> None:
        pass

    def _reply(self, reply: actions.SendAnswers) -> None:
        connection, sent, size_bytes = reply.connection, [], MESSAGE_BYTES
        host = self.world.host_of(connection)
        for answer in reply.split_runs():
            if isinstance(answer, actions.SendChunk):
                if answer.data is None:
                    answer = answer._replace(data=self.cache[answer.ref.cid])
                size_bytes += answer.ref.length
            sent.append(answer)
        self._under[connection] = self._under.get(connection, 0) + 1
        self.world.send_on(
            connection, self, host, Responses(self.outgoing_answers(host, sent)), size_bytes
        )

    def outgoing_answers(self, host: ids.HostId, answers: list[Any]) -> list[Any]:
        """Return the responses to send; fakes override it."""
        return answers

    def answers_acknowledged(self, connection: Hashable) -> None:
        """Record that one message of responses on a connection has arrived."""
        if connection in self._under:
            self._under[connection] -= 1
            self._look(connection)

    def _watch(self, watch: actions.WatchDelivery) -> None:
        self._watched.update(watch.connections)
        for connection in watch.connections:
            self._look(connection)

    def _look(self, connection: Hashable) -> None:
        if not self._under.get(connection) and connection in self._watched:
            self._watched.discard(connection)
            self._under.pop(connection, None)
            self.call_later(self._delivered, connection)

    def _delivered(self, connection: Hashable) -> None:
        self.run_actions(self.core.answers_delivered(self.world.now, [connection]))

    def forget_peer(self, host: ids.HostId) -> None:
        """Forget unacknowledged responses to a host whose connection ended."""
        for connection in [c for c in self._under if self.world.host_of(c) == host]:
            del self._under[connection]
            self._watched.discard(connection)

    def _send_keepalives(self, alive: actions.SendKeepalives) -> None:
        for connection in alive.connections:
            host = self.world.host_of(connection)
            self.world.send_on(connection, self, host, Alive(), MESSAGE_BYTES)

    def send(
        self, host: ids.HostId, message: Any, size_bytes: int, urgency: int = Priority.GUEST
    ) -> bool:
        """Send a message on this host's own connection; return False if it fails."""
        return self.world.send(self, host, message, size_bytes, urgency)

    def receive(self, host: ids.HostId, connection: Hashable, message: Any) -> None:
        """Process a message."""
        now = self.world.now
        match message:
            case Requests(requests):
                self.run_actions(self.core.peer_requested(now, connection, host, requests))
            case Responses(answers):
                self._answered(host, answers)
            case PriorityRaise(numbers):
                self.run_actions(self.core.peer_raised_priority(now, connection, numbers))
            case Cancels(numbers):
                self.run_actions(self.core.peer_cancelled(now, connection, numbers))
            case actions.SendAnnouncement(_, held, evicted, evictable, length):
                self.run_actions(
                    self.core.announcement_received(now, host, held, evicted, evictable, length)
                )
            case Alive():
                self.run_actions(self.core.keep_alive_received(now, host))

    def _answered(self, host: ids.HostId, answers: list[Any]) -> None:
        now = self.world.now
        good, refused = [], []
        for answer in answers:
            match answer:
                case actions.SendChunk(number, _, data, _):
                    wanted = self.core.requested_chunk(host, number)
                    if wanted is not None and self._is_right(wanted, data):
                        good.append((number, data))
                    else:
                        refused.append((number, Failure.INVALID))
                case actions.SendRefusal(number, why):
                    refused.append((number, why))
                case actions.SendReferral(number, hosts):
                    self.run_actions(self.core.peer_referred(now, host, number, hosts))
        if good:
            self.run_actions(self.core.chunks_arrived(now, host, good))
        if refused:
            self.run_actions(self.core.peer_refused(now, host, refused))

    def _is_right(self, wanted: chunk_ref.ChunkRef, data: Any) -> bool:
        return bool(data == self.world.content_of(wanted.cid))

    def take_table(self, table: Any, former: Any) -> None:
        """Put another table in force."""
        self.run_actions(self.core.table_changed(self.world.now, table, former))
