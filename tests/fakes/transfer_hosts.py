# SPDX-License-Identifier: Apache-2.0
"""Hosts in virtual time whose rules are the product's own: shells around ``core/transfers``.

A shell does what the machine says, on a network of ``link_network`` whose messages travel on
connections as TCP has them: in order, whole, or not at all, when a connection breaks both ends hear
of it.  Those that are not honest are in ``transfer_strangers``.
"""

import functools
import random
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from acstor_agent.core.transfers import actions
from acstor_agent.core.transfers import failure
from acstor_agent.core.transfers import priority
from acstor_agent.core.transfers import settings as settings_
from acstor_agent.core.transfers import transfers
from acstor_agent.core.transfers import want
from acstor_agent.core.transfers.giving import rights
from acstor_common import ids
from acstor_common import peer_request
from tests.fakes import giving_checks

Failure = failure.Failure
Priority = priority.Priority
proof_of = functools.lru_cache(maxsize=1 << 16)(peer_request.proof_of)

MESSAGE_BYTES, REQUEST_BYTES = 80, 60
"""What a message takes on the wire, with the headers below it, and each request in it."""


class Asks(NamedTuple):
    """Requests for chunks."""

    requests: list[want.Request]


class Answers(NamedTuple):
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


class Host:
    """An honest host.

    :param world: a ``transfer_world.World``
    :ivar cache: bytes by CID
    :ivar attached: images that it mirrors; None: all that there are
    :ivar is_deaf: it reads no answers
    :ivar may_refer: it may be referred
    :ivar refuses: an image that it does not know, whatever it is asked
    :ivar found: what was in the cache when this life began, and is since
    :ivar came: what came in this life, and by which names
    :ivar heard: is told what others have; ``let_go``: what has left the cache
    :ivar told_before: the neighbours by the table before this one: what waited is for them
    """

    is_deaf = False
    may_refer = True
    refuses: ids.ImageId | None = None
    found: frozenset[ids.Cid]
    came: set[tuple[ids.Cid, ids.Oid]]

    def __init__(self, world: Any, name: ids.HostId, **settings: Any) -> None:
        self.world, self.name = world, name
        self.settings = settings
        self.lives = 0
        self.cache: dict[ids.Cid, bytes] = {}
        self.attached: set[ids.ImageId] | None = None
        self.waiting: dict[Hashable, Callable[[actions.Complete], None]] = {}
        self.is_dead = False
        self.heard: Callable[[actions.Heard], None] = lambda heard: None
        self.let_go: Callable[[Sequence[ids.Cid]], None] = lambda cids: None
        self.told_before: frozenset[ids.HostId] = frozenset()
        self.start()

    def start(self) -> None:
        """Begin a life, with what is in the cache."""
        self.lives += 1
        self.is_dead = False
        self.waiting = {}
        self._tick_at: float | None = None
        self._under: dict[Hashable, int] = {}
        self._watched: set[Hashable] = set()
        self._tokens = 0
        attached = self.attached if self.attached is not None else ()
        names = self.world.make_names()
        names.found(self.cache)
        self.found, self.came = frozenset(self.cache), set()
        self.rights = rights.Rights(self.name, self.named, names, attached)
        self.core = transfers.Transfers(
            self.name,
            self.world.table,
            cache=self.cache,
            rights=self.rights,
            rng=random.Random(f"{self.name}/{self.lives}"),
            settings=settings_.Settings(**self.settings),
        )
        self.core.parts.now = self.world.now

    def evict(self, cids: Sequence[ids.Cid]) -> None:
        """Let chunks leave the cache."""
        for cid in cids:
            del self.cache[cid]
        self.came = {name for name in self.came if name[0] in self.cache}
        self.found &= self.cache.keys()
        self.do(self.core.gone(self.world.now, cids))
        self.let_go(cids)

    def attach(self, images: Sequence[ids.ImageId]) -> None:
        """Mirror these images from now on, and no others: begin a new life."""
        self.attached = set(images)
        self.start()

    def named(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """Say what an image has somewhere; None if that must be looked up."""
        if image_id == self.refuses:
            return ids.Content(ids.ZERO_CID)
        is_known = self.attached is None or image_id in self.attached
        found: ids.Content | None = self.world.named(image_id, offset, length) if is_known else None
        return found

    # Guests and whoever else wants something

    def read(
        self,
        batch: Sequence[want.Want],
        urgency: priority.Priority,
        done: Callable[[actions.Complete], None],
        deadline_s: float = float("inf"),
    ) -> None:
        """Have chunks; what is here is no business of the machine.

        :param done: is told of the answer, with the bytes of the whole batch
        """
        here = {chunk.cid: self.cache.get(chunk.cid) for chunk in batch}
        wanted = [chunk for chunk in batch if here[chunk.cid] is None]

        def answered(answer: actions.Complete) -> None:
            if answer.failure is None:
                for chunk, data in zip(wanted, answer.chunks, strict=True):
                    here[chunk.cid] = data
                answer = answer._replace(chunks=[here[chunk.cid] for chunk in batch])
            done(answer)

        if not wanted:
            self._call(answered, actions.Complete(None, [], None, ""))
            return
        self._tokens += 1
        self.waiting[self._tokens] = answered
        now, opener = self.world.now, f"{wanted[0].image_id}/{self._tokens % 3}"
        self.do(self.core.wanted(now, wanted, urgency, self._tokens, deadline_s, True, opener))

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        self.world.later(self, 0.0, call, *arguments)

    # What the machine says

    def do(self, todo: list[actions.Action]) -> None:
        """Do it, and come back when something is due."""
        for action in todo:
            self._do(action)
        self.world.look_at(self)
        due_s = self.core.next_s
        if due_s is not None and (self._tick_at is None or due_s < self._tick_at):
            self._tick_at = due_s
            self.world.later(self, max(0.0, due_s - self.world.now), self._tick, due_s)

    def _tick(self, due_s: float) -> None:
        if self._tick_at == due_s:
            self._tick_at = None
            self.do(self.core.tick(self.world.now))

    def _do(self, action: actions.Action) -> None:
        match action:
            case actions.ReadSource():
                self.world.read_source(self, action)
            case actions.Store(chunks):
                self._store(chunks)
            case actions.Complete(token):
                self.waiting.pop(token)(action)
            case _:
                self._do_for_peers(action)

    def _store(self, chunks: list[actions.Arrived]) -> None:
        self.world.watch.stored(self, chunks)
        after_s = self.world.store_s * self.world.rng.random() if self.world.store_s else 0.0
        self.world.later(self, after_s, self._stored, chunks)

    def _stored(self, chunks: list[actions.Arrived]) -> None:
        world = self.world
        if world.store_s and world.rng.random() < 0.05:
            self.do(self.core.not_stored(world.now, chunks))
            return
        for chunk in chunks:
            self.cache[chunk.want.cid] = chunk.data
            self.came.add((chunk.want.cid, chunk.want.oid))
        self.do(self.core.stored(world.now, chunks))

    def _do_for_peers(self, action: actions.Action) -> None:
        match action:
            case actions.Ask():
                self._ask(action)
            case actions.Cancel(host, numbers):
                self.send(host, Cancels(numbers), MESSAGE_BYTES)
            case actions.Hurry(host, numbers):
                self.send(host, Hurries(numbers), MESSAGE_BYTES)
            case actions.Reply(connection, answers):
                self._reply(connection, answers)
            case actions.Watch(connections):
                self._watched.update(connections)
                for connection in connections:
                    self._look(connection)
            case actions.Drop(connection):
                self.world.break_(self.name, connection[0])
            case actions.LookUp(connection, _, requests):
                self._look_up(connection, requests)
            case _:
                self._tell(action)

    def _tell(self, action: actions.Action) -> None:
        match action:
            case actions.Alive(connections):
                for connection in connections:
                    host = self.world.host_of(connection)
                    self.world.send_on(connection, self, host, Alive(), MESSAGE_BYTES)
            case actions.Tell(host, here, gone, let_go):
                giving_checks.check_tell(self, action)
                size_bytes = MESSAGE_BYTES + 8 * (len(here) + len(gone) + len(let_go))
                for _ in range(self.world.times_of_news()):
                    self.send(host, action, size_bytes, Priority.ADVERTISED)
            case actions.Heard():
                giving_checks.check_heard(self, action)
                self._call(self.heard, action)

    def _look_up(self, connection: Hashable, requests: Sequence[want.Request]) -> None:
        """Learn what images name, as well as the source is; the connection may end meanwhile."""
        world = self.world
        world.look_ups += len(requests)
        found = [
            (
                request.number,
                world.named(request.image_id, request.offset, request.length)
                if not world.source.way and request.image_id not in world.source.gone
                else Failure.UNREACHABLE,
            )
            for request in requests
        ]
        delay_s = world.source.delay_s * (1 if world.is_calm else world.rng.choice((1, 2000)))
        world.later(
            self, delay_s, lambda: self.do(self.core.looked_up(world.now, connection, found))
        )

    def _ask(self, ask: actions.Ask) -> None:
        self.world.watch.asks(self, ask)
        requests = [
            want.Request(
                attempt.number,
                attempt.want.image_id,
                attempt.want.offset,
                attempt.want.length,
                proof_of(attempt.want.cid, self.name, ask.host),
                attempt.mode if self.may_refer else attempt.mode.plain,
                attempt.priority.at_peer,
                self.core.parts.asking.timeout_s,
            )
            for attempt in ask.attempts
        ]
        size_bytes = MESSAGE_BYTES + REQUEST_BYTES * len(requests)
        urgency = min(attempt.priority.at_peer for attempt in ask.attempts)
        connection = self.world.connection(self.name, ask.host)
        if ask.host in self.world.hosts and not self.world.hosts[ask.host].is_dead:
            for attempt in ask.attempts:
                attempt.connection = connection
        if not self.send(ask.host, Asks(requests), size_bytes, urgency):
            self._call(self._lost, ask.host)

    def _lost(self, host: ids.HostId) -> None:
        self.do(self.core.lost(self.world.now, host))

    def _reply(self, connection: Hashable, answers: list[Any]) -> None:
        host = self.world.host_of(connection)
        size_bytes = MESSAGE_BYTES
        sent = []
        for answer in answers:
            if isinstance(answer, actions.Referred):
                giving_checks.check_referral(self, host, answer.hosts)
            if isinstance(answer, actions.Given):
                data = answer.data if answer.data is not None else self.cache[answer.want.cid]
                giving_checks.check_given(self, answer, data)
                answer = answer._replace(data=data)
                size_bytes += answer.want.length
            sent.append(answer)
        self._under[connection] = self._under.get(connection, 0) + 1
        self.world.send_on(connection, self, host, Answers(self.said(host, sent)), size_bytes)

    def said(self, host: ids.HostId, answers: list[Any]) -> list[Any]:
        """Return what leaves this host: the truth."""
        return answers

    def acknowledged(self, connection: Hashable) -> None:
        """One answer on a connection has arrived."""
        if connection in self._under:
            self._under[connection] -= 1
            self._look(connection)

    def _look(self, connection: Hashable) -> None:
        if not self._under.get(connection) and connection in self._watched:
            self._watched.discard(connection)
            self._under.pop(connection, None)
            self._call(lambda: self.do(self.core.delivered(self.world.now, [connection])))

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
            case Asks(requests):
                self.do(self.core.peer_asked(now, connection, host, requests))
            case Hurries(numbers):
                self.do(self.core.peer_hurried(now, connection, numbers))
            case Cancels(numbers):
                self.do(self.core.peer_cancelled(now, connection, numbers))
            case actions.Tell(_, here, gone, let_go):
                self.do(self.core.heard(now, host, here, gone, let_go))
            case Alive():
                self.do(self.core.alive(now, host))
            case Answers(answers):
                self._answered(host, answers)

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
                    self.do(self.core.referred(now, host, number, hosts))
        if good:
            self.do(self.core.chunks_arrived(now, host, good))
        if refused:
            self.do(self.core.refused(now, host, refused))

    def _is_right(self, wanted: want.Want, data: bytes) -> bool:
        return bool(data == self.world.content_of(wanted.cid))

    def broken(self, host: ids.HostId) -> None:
        """Hear that the connections with a host are gone."""
        self.do(self.core.lost(self.world.now, host, self.world.connection(self.name, host)))
        for connection in [c for c in self._under if self.world.host_of(c) == host]:
            del self._under[connection]
            self._watched.discard(connection)
        self.do(self.core.peer_left(self.world.now, self.world.connection(host, self.name)))

    def take_table(self, table: Any, former: Any) -> None:
        """Put another table in force."""
        self.told_before = giving_checks.neighbours_of(self)
        self.do(self.core.table_changed(self.world.now, table, former))
