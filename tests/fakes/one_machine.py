# SPDX-License-Identifier: Apache-2.0
"""An exchange core (``engine``) under a test's control."""

import random
from collections.abc import Callable
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from typing import TypeVar

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import engine
from acstor_agent.engine import failure
from acstor_agent.engine import identity
from acstor_agent.engine import priority
from acstor_agent.engine import settings
from acstor_agent.engine.ring import placement
from acstor_agent.engine.serve import authorization
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_request
from tests.fakes import known_maps

IMAGE = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.ImageId("b3f10d1c-1a2b-4c3d-8e4f-5a6b7c8d9e0f")
CHUNK = 65536
Priority = priority.Priority
Mode = peer_request.Mode
A = TypeVar("A")


def table(
    count: int, epoch: int = 1, weights: Mapping[str, int] = MappingProxyType({}), **more: Any
) -> hash_ring.Ring:
    """Return a table of the hosts ``h1``, ``h2`` and so on.

    :param weights: v-nodes of hosts; 40 by default
    """
    hosts = tuple(
        hash_ring.RingHost(f"h{n}", f"10.0.{n >> 8}.{n & 255}:7201", weights.get(f"h{n}", 40))
        for n in range(1, count + 1)
    )
    return hash_ring.Ring(epoch, hosts, **more)


UNKNOWN = ids.ImageId("00000000-0000-4000-8000-000000000000")


def data_of(number: int) -> bytes:
    """Return a chunk's bytes, short ones: the core never inspects them."""
    return b"chunk %d" % number


def chunk(number: int, image_id: ids.ImageId = IMAGE) -> chunk_ref.ChunkRef:
    """Return a chunk of an image; all images have the same chunks."""
    cid = ids.cid_of(data_of(number))
    return chunk_ref.ChunkRef(cid, ids.oid_of(cid), image_id, number * CHUNK, CHUNK)


def announced(*chunks: chunk_ref.ChunkRef) -> tuple[segments.Chunks, ...]:
    """Return chunks in the form of announcements."""
    return segments.bitmaps((chunk.ring_position, chunk.bit) for chunk in chunks)


def named(image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
    """Return an image's content at an offset: chunks of CHUNK bytes."""
    if image_id not in (IMAGE, OTHER):
        return None
    if offset % CHUNK or length != CHUNK:
        return ids.Content(ids.ZERO_CID)
    return ids.Content(ids.cid_of(data_of(offset // CHUNK)))


class Machine:
    """The core of host ``h1``; ``last`` holds the actions of the last event.

    :param names: the identity scheme of chunks
    :param attached: attached images
    :param source_access: the source access of images, by offset
    :ivar cache: cached CIDs
    """

    def __init__(self, hosts: int = 8, here: str = "h1", **more: Any) -> None:
        self.here = ids.HostId(here)
        self.now = 0.0
        self.cache: set[ids.Cid] = set()
        self.table = more.pop("table", None) or table(hosts)
        names = more.pop("names", None) or identity.ByContent()
        source_access = more.pop(
            "source_access", lambda image_id, offset: placement.SourceAccess.IN_PARTS
        )
        self.maps = known_maps.KnownMaps(named)
        self.rights = authorization.Authorization(
            self.here, self.maps, names, more.pop("attached", ())
        )
        self.core = engine.Engine(
            self.here,
            self.table,
            cache=self.cache,
            rights=self.rights,
            rng=random.Random(1),
            settings=settings.Settings(**more),
            source_access=source_access,
        )
        self.last: list[actions.Action] = []

    def __getattr__(self, event: str) -> Any:
        """Return a function that feeds an event at the current time."""

        def feed(*arguments: Any, **more: Any) -> list[actions.Action]:
            self.last = getattr(self.core, event)(self.now, *arguments, **more)
            return self.last

        return feed

    def wait(self, seconds: float) -> list[actions.Action]:
        """Advance the time; return all actions of due timers."""
        end_s, found = self.now + seconds, []
        while (next_s := self.core.next_s) is not None and next_s <= end_s:
            self.now = max(self.now, next_s)
            found += self.core.run_due_timers(self.now)
        self.now = end_s
        self.last = found
        return found

    def got(self, kind: type[A]) -> list[A]:
        """Return the last actions of a kind."""
        return [action for action in self.last if isinstance(action, kind)]

    def asks(self) -> dict[str, list[tuple[int, peer_request.Mode]]]:
        """Return the requests to send: chunk numbers and modes, by host."""
        found: dict[str, list[tuple[int, peer_request.Mode]]] = {}
        for ask in self.got(actions.RequestChunks):
            for _, ref, attempt in ask.iter_chunks():
                what = ref.offset // CHUNK, attempt.mode
                found.setdefault(ask.host, []).append(what)
        return found

    def attempt(self, index: int = 0) -> Any:
        """Return one of the attempts to send."""
        return [attempt for ask in self.got(actions.RequestChunks) for attempt in ask.attempts][
            index
        ]

    def home_of(self, number: int) -> str:
        """Return the home of a chunk."""
        home = self.core.context.ring.home(chunk(number).oid)
        assert home is not None
        return home

    def chunk_of(self, home: str, skip: int = 0) -> int:
        """Return the number of a chunk with this home."""
        numbers = (n for n in range(10_000) if self.home_of(n) == home)
        return [next(numbers) for _ in range(skip + 1)][-1]

    def move_home(self, former: str, new: str, vnodes: int) -> int:
        """Give ``new`` so many v-nodes; return a chunk whose home moved to it."""
        table_before = self.table
        self.table = table(8, epoch=2, weights={new: vnodes})
        self.table_changed(self.table, table_before)
        return next(
            n
            for n in range(5000)
            if table_before.owners_of(chunk(n).cid, 1) == (former,)
            and self.table.owners_of(chunk(n).cid, 1) == (new,)
        )

    def request(
        self,
        number: int,
        host: str,
        mode: peer_request.Mode = Mode.HOME,
        request_id: int = 0,
        image_id: ids.ImageId = IMAGE,
        urgency: priority.Priority = Priority.PEER,
        timeout_s: float = 30.0,
    ) -> chunk_ref.Request:
        """Return a valid request of a peer."""
        proof = peer_request.proof_of(chunk(number).cid, ids.HostId(host), self.here)
        return chunk_ref.Request(
            request_id or number + 1,
            image_id,
            number * CHUNK,
            CHUNK,
            proof,
            mode,
            urgency,
            timeout_s,
        )

    def ask_me(self, host: str, *requests: chunk_ref.Request) -> list[actions.Action]:
        """Feed requests of a peer; its connection has its name."""
        done: list[actions.Action] = self.peer_requested(host, ids.HostId(host), list(requests))
        return done

    def play(
        self,
        seconds: float,
        peer: Callable[[ids.HostId, Any], Any] = lambda host, attempt: None,
        source: Callable[[chunk_ref.ChunkRef], Any] = lambda chunk: None,
        step_s: float = 0.25,
    ) -> dict[Any, actions.CompleteRead]:
        """Let peers and the source answer at once; return the completed reads.

        :param peer: returns bytes, a Failure, or None for no answer; ``source`` as well
        """
        end_s, done, todo = self.now + seconds, {}, list(self.last)
        while True:
            while todo:
                action = todo.pop(0)
                if isinstance(action, actions.RequestChunks):
                    for attempt in action.attempts:
                        todo += self._answer(action.host, attempt, peer(action.host, attempt))
                elif isinstance(action, actions.ReadSource):
                    reported = [(n, source(chunk)) for n, chunk in enumerate(action.refs)]
                    known = [(n, what) for n, what in reported if what is not None]
                    todo += self.source_read_progressed(action.number, known) if known else []
                elif isinstance(action, actions.Store):
                    todo += self.chunks_stored(action.runs)
                elif isinstance(action, actions.CompleteRead):
                    done[action.token] = action
            if self.now >= end_s:
                return done
            todo = list(self.wait(min(step_s, end_s - self.now)))

    def _answer(self, host: ids.HostId, attempt: Any, what: Any) -> list[actions.Action]:
        if what is None:
            return []
        if isinstance(what, failure.Failure):
            failed = [(number, what) for number in attempt.numbers]
            refused: list[actions.Action] = self.peer_refused(host, failed)
            return refused
        given: list[actions.Action] = self.chunks_arrived(host, [(attempt.number, what)])
        return given

    def answers(self) -> list[Any]:
        """Return the last answers to peers."""
        return [answer for reply in self.got(actions.SendAnswers) for answer in reply.split_runs()]

    def completes(self) -> list[actions.CompleteRead]:
        """Return the last completed local reads."""
        return self.got(actions.CompleteRead)
