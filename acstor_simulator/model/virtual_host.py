# SPDX-License-Identifier: Apache-2.0
"""A host in virtual time whose rules are the product's own: a shell around ``engine``.

Nothing is decided here.  Events are fed to the machine, and what it says is done in its order on
the network of a :class:`World`: messages travel on connections, in their order.  The simulator's
hosts are such shells, and so are the swarm's (``tests/fakes/transfer_hosts``), whose network
loses, doubles and breaks, and whose hosts are killed.
"""

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
from acstor_common.wire import peer_request

Failure = failure.Failure
Priority = priority.Priority
proof_of = functools.lru_cache(maxsize=1 << 16)(peer_request.proof_of)

MESSAGE_BYTES, REQUEST_BYTES = 80, 60
"""What a message takes on the wire, with the headers below it, and each request in it."""
_FOR_OTHERS = actions.CancelRead, actions.Told, actions.LeftAlone
"""For the log, and for a source that reads some chunks before others."""


class Requests(NamedTuple):
    """Requests for chunks."""

    requests: list[chunk_ref.Request]


class Responses(NamedTuple):
    """Answers to some of them; what is given has its bytes."""

    answers: list[Any]


class Cancels(NamedTuple):
    """Nobody waits for these any more."""

    numbers: list[int]


class Hurries(NamedTuple):
    """Guests wait for these now."""

    numbers: list[int]


class Alive(NamedTuple):
    """What was asked is being worked on."""


class World(Protocol):
    """What hosts share: the time, the network and the source."""

    @property
    def now(self) -> float:
        """The time, in seconds."""

    def call_later(self, host: Any, after_s: float, call: Callable[..., None], *what: Any) -> None:
        """Call something of a host after a while, never at once."""

    def connection_to(self, opener: ids.HostId, other: ids.HostId) -> Hashable:
        """Return the connection that a host has opened, or opens now, to another one."""

    def host_of(self, connection: Hashable) -> ids.HostId:
        """Return who opened a connection: whose requests are answered on it."""

    def is_there(self, name: ids.HostId) -> bool:
        """Say whether a host can be reached."""

    def send(
        self, sender: Any, to: ids.HostId, message: Any, size_bytes: int, urgency: int
    ) -> bool:
        """Send something on the sender's own connection; False: nobody is there."""

    def send_on(
        self, connection: Hashable, sender: Any, to: ids.HostId, message: Any, size_bytes: int
    ) -> None:
        """Send answers on the connection of who asked; ``acknowledged`` tells when they are there.

        :param size_bytes: with the bytes of chunks
        """

    def read_source(self, host: Any, read: actions.ReadSource) -> None:
        """Let the source answer; what comes is an event of the host's machine."""

    def content_of(self, cid: ids.Cid) -> Any:
        """Return what stands for the bytes of a chunk."""


class Host:
    """An honest host, all of whose peers keep to the protocol, and which knows all images.

    :ivar core: its machine, which who makes a host sets
    :ivar cache: bytes by CID
    :ivar may_refer: it may be referred
    :ivar lag_s: so late its timers are, so that one does for many
    :ivar waiting: who is told when a batch is there, by its token
    """

    may_refer = True
    lag_s = 0.0
    core: engine.Engine

    def __init__(self, world: World, name: ids.HostId) -> None:
        self.world, self.name = world, name
        self.cache: dict[ids.Cid, Any] = {}
        self.waiting: dict[Hashable, Callable[[actions.Complete], None]] = {}
        self._doing: dict[type, Callable[[Any], None]] = {
            actions.ReadSource: self.read_source,
            actions.Store: self._store,
            actions.Complete: self._complete,
            actions.Ask: self._ask,
            actions.Cancel: self._cancel,
            actions.Hurry: self._hurry,
            actions.Reply: self._reply,
            actions.Watch: self._watch,
            actions.Alive: self._say_alive,
            actions.Tell: self._tell,
            actions.Heard: self._heard,
            **dict.fromkeys(_FOR_OTHERS, lambda action: None),
        }
        self.reset_state()

    def reset_state(self) -> None:
        """Know of nothing that is under way."""
        self.waiting = {}
        self._tick_at: float | None = None
        self._under: dict[Hashable, int] = {}
        self._watched: set[Hashable] = set()
        self._tokens = 0

    # Who wants something

    def read(
        self,
        batch: Sequence[chunk_ref.ChunkRef],
        urgency: priority.Priority,
        done: Callable[[actions.Complete], None],
        deadline_s: float = float("inf"),
        opener: Hashable = None,
    ) -> None:
        """Have chunks that are not in the cache.

        :param done: is told of the answer; it feeds this host nothing before it has returned
        :param opener: whose turn it is at the source, of those who have the image open
        """
        self._tokens += 1
        self.waiting[self._tokens] = done
        now, token = self.world.now, self._tokens
        self.run_actions(
            self.core.request_chunks(now, batch, urgency, token, deadline_s, True, opener)
        )

    def call_later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something after what is being done now."""
        self.world.call_later(self, 0.0, call, *arguments)

    # What the machine says

    def run_actions(self, todo: list[actions.Action]) -> None:
        """Do it, and come back when something is due."""
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
        """Have the source answer."""
        self.world.read_source(self, read)

    def _complete(self, complete: actions.Complete) -> None:
        self.waiting.pop(complete.token)(complete)

    def _store(self, store: actions.Store) -> None:
        self.call_later(self._stored, store.runs)

    def _stored(self, runs: list[actions.Arrived]) -> None:
        kept = [run for run in runs if run.is_stored]
        for run in kept:
            self.cache.update(zip([ref.cid for ref in run.refs], run.chunks, strict=True))
        self.run_actions(self.core.chunks_stored(self.world.now, kept))
        if len(kept) < len(runs):
            others = [run for run in runs if not run.is_stored]
            self.run_actions(self.core.not_stored(self.world.now, others))

    # What others are told

    def _ask(self, ask: actions.Ask) -> None:
        world, timeout_s = self.world, self.core.context.requests_out.timeout_s
        requests = []
        connection = world.connection_to(self.name, ask.host)
        is_there = world.is_there(ask.host)
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

    def _cancel(self, cancel: actions.Cancel) -> None:
        self.send(cancel.host, Cancels(cancel.numbers), MESSAGE_BYTES)

    def _hurry(self, hurry: actions.Hurry) -> None:
        self.send(hurry.host, Hurries(hurry.numbers), MESSAGE_BYTES)

    def _tell(self, tell: actions.Tell) -> None:
        entry_bytes = 8 if tell.segment_chunks == 1 else 10
        told = len(tell.here) + len(tell.gone) + len(tell.evictable)
        size_bytes = MESSAGE_BYTES + entry_bytes * told
        self.send(tell.host, tell, size_bytes, Priority.ADVERTISED)

    def _heard(self, heard: actions.Heard) -> None:
        """Take it that others have something: nobody here wants to know."""

    def _reply(self, reply: actions.Reply) -> None:
        connection, sent, size_bytes = reply.connection, [], MESSAGE_BYTES
        host = self.world.host_of(connection)
        for answer in reply.split_runs():
            if isinstance(answer, actions.Given):
                if answer.data is None:
                    answer = answer._replace(data=self.cache[answer.want.cid])
                size_bytes += answer.want.length
            sent.append(answer)
        self._under[connection] = self._under.get(connection, 0) + 1
        self.world.send_on(
            connection, self, host, Responses(self.outgoing_answers(host, sent)), size_bytes
        )

    def outgoing_answers(self, host: ids.HostId, answers: list[Any]) -> list[Any]:
        """Return what leaves this host: the truth."""
        return answers

    def answers_acknowledged(self, connection: Hashable) -> None:
        """One message of answers on a connection has arrived."""
        if connection in self._under:
            self._under[connection] -= 1
            self._look(connection)

    def _watch(self, watch: actions.Watch) -> None:
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
        """Forget what is on its way to a host: the connection has ended."""
        for connection in [c for c in self._under if self.world.host_of(c) == host]:
            del self._under[connection]
            self._watched.discard(connection)

    def _say_alive(self, alive: actions.Alive) -> None:
        for connection in alive.connections:
            host = self.world.host_of(connection)
            self.world.send_on(connection, self, host, Alive(), MESSAGE_BYTES)

    def send(
        self, host: ids.HostId, message: Any, size_bytes: int, urgency: int = Priority.GUEST
    ) -> bool:
        """Send a message on this host's own connection; say whether there is one."""
        return self.world.send(self, host, message, size_bytes, urgency)

    # What comes

    def receive(self, host: ids.HostId, connection: Hashable, message: Any) -> None:
        """Take a message."""
        now = self.world.now
        match message:
            case Requests(requests):
                self.run_actions(self.core.peer_asked(now, connection, host, requests))
            case Responses(answers):
                self._answered(host, answers)
            case Hurries(numbers):
                self.run_actions(self.core.peer_hurried(now, connection, numbers))
            case Cancels(numbers):
                self.run_actions(self.core.peer_cancelled(now, connection, numbers))
            case actions.Tell(_, here, gone, evictable, length):
                self.run_actions(
                    self.core.announcement_received(now, host, here, gone, evictable, length)
                )
            case Alive():
                self.run_actions(self.core.keep_alive_received(now, host))

    def _answered(self, host: ids.HostId, answers: list[Any]) -> None:
        now = self.world.now
        good, refused = [], []
        for answer in answers:
            match answer:
                case actions.Given(number, _, data, _):
                    wanted = self.core.asked_of(host, number)
                    if wanted is not None and self._is_right(wanted, data):
                        good.append((number, data))
                    else:
                        refused.append((number, Failure.INVALID))
                case actions.Refused(number, why):
                    refused.append((number, why))
                case actions.Referred(number, hosts):
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
