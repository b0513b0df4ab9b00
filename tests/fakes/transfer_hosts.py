# SPDX-License-Identifier: Apache-2.0
"""Hosts in virtual time that run the product's core, with checks of each action.

They are the simulator's hosts (``acstor_simulator.model.virtual_host``) on a ``link_network``,
whose connections behave like TCP: in order and reliable until they break, which both ends see.
In addition a host can restart, evict chunks, and have unknown images.  ``hostile_hosts``
has the malicious hosts.
"""

import random
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import engine
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import settings
from acstor_agent.engine.serve import authorization
from acstor_common.model import ids
from acstor_simulator.model import virtual_host
from tests.fakes import known_maps
from tests.fakes import serving_checks

Failure = failure.Failure


class Host(virtual_host.VirtualHost):
    """An honest host.

    :param world: a ``transfer_world.World``
    :ivar attached: mirrored images; None: all
    :ivar is_deaf: it reads no responses
    :ivar refuses: an image that it treats as all zeros
    :ivar found: CIDs cached since the start of this life
    :ivar came: CIDs and OIDs of chunks that arrived in this life
    :ivar on_announcement: called with each accepted announcement
    :ivar let_go: called with evicted CIDs
    :ivar judged: hosts put into backoff by the current event
    :ivar announced_before: neighbours by the previous table, which may still receive announcements
    """

    is_deaf = False
    judged: frozenset[ids.HostId] = frozenset()
    refuses: ids.ImageId | None = None
    found: frozenset[ids.Cid]
    came: set[tuple[ids.Cid, ids.Oid]]

    def __init__(self, world: Any, name: ids.HostId, **settings: Any) -> None:
        super().__init__(world, name)
        self._doing |= {actions.LookUpContents: self._look_up, actions.CloseConnection: self._drop}
        self.settings = settings
        self.lives = 0
        self.attached: set[ids.ImageId] | None = None
        self.is_dead = False
        self.on_announcement: Callable[[actions.ForwardAnnouncement], None] = lambda _: None
        self.let_go: Callable[[Sequence[ids.Cid]], None] = lambda cids: None
        self.announced_before: frozenset[ids.HostId] = frozenset()
        self.start()

    def start(self) -> None:
        """Start a life with the cache's content."""
        self.lives += 1
        self.is_dead = False
        self.reset_state()
        attached = self.attached if self.attached is not None else ()
        names = self.world.make_names()
        names.record_cached_at_start(self.cache)
        self.found, self.came = frozenset(self.cache), set()
        self.rights = authorization.Authorization(
            self.name, known_maps.KnownMaps(self.named, self.world.segments), names, attached
        )
        self.core = engine.Engine(
            self.name,
            self.world.table,
            cache=self.cache,
            rights=self.rights,
            rng=random.Random(f"{self.name}/{self.lives}"),
            settings=settings.Settings(**self.settings),
        )
        self.core.context.now = self.world.now

    def evict(self, cids: Sequence[ids.Cid]) -> None:
        """Evict chunks from the cache."""
        for cid in cids:
            del self.cache[cid]
        self.came = {name for name in self.came if name[0] in self.cache}
        self.found &= self.cache.keys()
        self.run_actions(self.core.chunks_evicted(self.world.now, cids))
        self.let_go(cids)

    def attach(self, images: Sequence[ids.ImageId]) -> None:
        """Mirror exactly these images from now on; start a new life."""
        self.attached = set(images)
        self.start()

    def named(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """Return the content at a place of an image, None if it needs a lookup."""
        if image_id == self.refuses:
            return ids.Content(ids.ZERO_CID)
        is_known = self.attached is None or image_id in self.attached
        found: ids.Content | None = self.world.named(image_id, offset, length) if is_known else None
        return found

    def read(
        self,
        batch: Sequence[chunk_ref.ChunkRef],
        urgency: priority.Priority,
        done: Callable[[actions.CompleteRead], None],
        deadline_s: float = float("inf"),
        opener: Hashable = None,
    ) -> None:
        """Read chunks; the core handles only those missing in the cache.

        :param done: called with the answer, which has the bytes of the whole batch
        """
        here = {chunk.cid: self.cache.get(chunk.cid) for chunk in batch}
        wanted = [chunk for chunk in batch if here[chunk.cid] is None]

        def answered(answer: actions.CompleteRead) -> None:
            if answer.failure is None:
                for chunk, data in zip(wanted, answer.chunks, strict=True):
                    here[chunk.cid] = data
                answer = answer._replace(chunks=[here[chunk.cid] for chunk in batch])
            done(answer)

        if wanted:
            opener = f"{wanted[0].image_id}/{(self._tokens + 1) % 3}"
            super().read(wanted, urgency, answered, deadline_s, opener)
        else:
            self.call_later(answered, actions.CompleteRead(None, [], None, ""))

    # Actions of the core, and checks

    def run_actions(self, todo: list[actions.Action]) -> None:
        """Carry out actions, and check the host."""
        self.judged = frozenset(one.host for one in todo if isinstance(one, actions.ReportBackoff))
        super().run_actions(todo)
        self.world.look_at(self)

    def _store(self, store: actions.Store) -> None:
        world = self.world
        world.watch.stored(self, store.runs)
        after_s = world.store_s * world.rng.random() if world.store_s else 0.0
        world.call_later(self, after_s, self._stored, store.runs)

    def _stored(self, runs: list[actions.ArrivedRun]) -> None:
        world = self.world
        if world.store_s and world.rng.random() < 0.05:
            self.run_actions(self.core.chunks_not_stored(world.now, runs))
            return
        stored = (ref for run in runs if run.is_stored for ref in run.refs)
        self.came.update((ref.cid, ref.oid) for ref in stored)
        super()._stored(runs)

    def _drop(self, drop: actions.CloseConnection) -> None:
        assert isinstance(drop.connection, tuple)
        self.world.break_(self.name, drop.connection[0])

    def _send_announcement(self, announcement: actions.SendAnnouncement) -> None:
        serving_checks.check_sent(self, announcement)
        for _ in range(self.world.times_of_news()):
            super()._send_announcement(announcement)

    def _forward_announcement(self, announcement: actions.ForwardAnnouncement) -> None:
        serving_checks.check_received(self, announcement)
        self.call_later(self.on_announcement, announcement)

    def _look_up(self, look_up: actions.LookUpContents) -> None:
        """Look up an image's content; the connection may end meanwhile."""
        world, requests = self.world, look_up.requests
        world.look_ups += len(requests)
        found = [
            (
                request,
                [world.named(request.image_id, request.offset, request.length)]
                if not world.source.way and request.image_id not in world.source.gone
                else Failure.UNREACHABLE,
            )
            for request in requests
        ]
        delay_s = world.source.delay_s * (1 if world.is_calm else world.rng.choice((1, 2000)))
        world.call_later(self, delay_s, self._looked_up, look_up.connection, found)

    def _looked_up(self, connection: Hashable, found: list[tuple[int, Any]]) -> None:
        self.run_actions(self.core.contents_looked_up(self.world.now, connection, found))

    def _ask(self, ask: actions.RequestChunks) -> None:
        self.world.watch.asks(self, ask)
        super()._ask(ask)

    def _reply(self, reply: actions.SendAnswers) -> None:
        for answer in reply.split_runs():
            if isinstance(answer, actions.SendReferral):
                host = self.world.host_of(reply.connection)
                serving_checks.check_referral(self, host, answer.hosts)
            if isinstance(answer, actions.SendChunk):
                data = answer.data if answer.data is not None else self.cache[answer.ref.cid]
                serving_checks.check_given(self, answer, data)
        super()._reply(reply)

    # Events

    def broken(self, host: ids.HostId) -> None:
        """Handle the loss of all connections with a host."""
        self.run_actions(
            self.core.connection_lost(
                self.world.now, host, self.world.connection_to(self.name, host)
            )
        )
        self.run_actions(self.core.announcement_lost(self.world.now, host))
        self.forget_peer(host)
        self.run_actions(
            self.core.peer_disconnected(self.world.now, self.world.connection_to(host, self.name))
        )

    def take_table(self, table: Any, former: Any) -> None:
        """Put another table in force."""
        self.announced_before = serving_checks.neighbours_of(self)
        super().take_table(table, former)
