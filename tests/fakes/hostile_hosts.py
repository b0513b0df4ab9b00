# SPDX-License-Identifier: Apache-2.0
"""Malicious hosts of ``transfer_hosts``, each in its own way."""

from collections.abc import Hashable
from typing import Any

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_simulator.model import virtual_host as shells
from tests.fakes import one_machine
from tests.fakes.transfer_hosts import Host

Failure = failure.Failure
Mode = peer_request.Mode
Priority = priority.Priority

BOAST_EVERY_S, BOAST_UNTIL_S = 1.0, 20.0
FLOOD_EVERY_S, FLOOD_UNTIL_S = 0.02, 10.0
FLOOD_REQUESTS = 192
PROMISES_S = 60.0
WITHHELD_S = 4.9
NOWHERE = ids.ImageId("00000000-0000-4000-8000-000000000000")


class FalseAnnouncer(Host):
    """Announces repeatedly that it has all chunks, and that others may evict them."""

    def start(self) -> None:
        """Start, and announce to all hosts."""
        super().start()
        self.call_later(self._boast)

    def _boast(self) -> None:
        world = self.world
        oids = one_machine.announced(*world.chunks[:512])
        for host in world.names:
            if host != self.name:
                gone = tuple(world.rng.sample(oids, len(oids) // 4))
                reported = actions.SendAnnouncement(host, oids, gone, oids)
                self.send(
                    host, reported, shells.MESSAGE_BYTES + 16 * len(oids), Priority.ADVERTISED
                )
        if world.now < BOAST_UNTIL_S:
            world.call_later(self, BOAST_EVERY_S, self._boast)


class WrongBytesHost(FalseAnnouncer):
    """Sends wrong bytes."""

    def outgoing_answers(self, host: ids.HostId, answers: list[Any]) -> list[Any]:
        """Replace the data of chunks."""
        return [
            answer._replace(data=b"a lie") if isinstance(answer, actions.SendChunk) else answer
            for answer in answers
        ]


class Denier(FalseAnnouncer):
    """Announces all chunks, and then refuses them."""

    def outgoing_answers(self, host: ids.HostId, answers: list[Any]) -> list[Any]:
        """Refuse all requests."""
        return [actions.SendRefusal(answer.number, Failure.MISSING) for answer in answers]


class Babbler(Host):
    """Answers twice, out of order, and unrequested."""

    def outgoing_answers(self, host: ids.HostId, answers: list[Any]) -> list[Any]:
        """Add duplicate and unrequested answers."""
        rng = self.world.rng
        said = [answer for answer in answers for _ in range(rng.randint(1, 2))]
        for answer in answers:
            said.append(answer._replace(number=rng.randrange(1 << 32)))
            said.append(actions.SendReferral(rng.randrange(2000), (self.name, host)))
            said.append(actions.SendRefusal(rng.randrange(2000), Failure.MISSING))
        rng.shuffle(said)
        return said


class Mute(Host):
    """Sends requests, but drops two thirds of its answers."""

    def outgoing_answers(self, host: ids.HostId, answers: list[Any]) -> list[Any]:
        """Drop most answers."""
        return [answer for answer in answers if self.world.rng.random() < 0.33]


class RequestingHost(Host):
    """Sends requests of its own, besides its guests' reads.

    :ivar asked: number of requests
    """

    asked = 0

    def ask(
        self, host: ids.HostId, chunk: chunk_ref.ChunkRef, proof: bytes, mode: Mode
    ) -> chunk_ref.Request:
        """Return a request with a number that the core never uses."""
        self.asked += 1
        number = 1 << 31 | self.asked
        place = chunk.image_id, chunk.offset, chunk.length
        urgency = self.world.rng.choice((Priority.PEER, Priority.READAHEAD, Priority.PREFETCH))
        return chunk_ref.Request(
            number, *place, proof, mode, urgency, self.world.rng.choice((1.0, 30.0))
        )


class Spy(RequestingHost):
    """Requests random content without knowing its CIDs."""

    def start(self) -> None:
        """Start sending requests."""
        super().start()
        self.call_later(self._spy, 0)

    def _spy(self, count: int) -> None:
        rng = self.world.rng
        for host in self.world.names:
            if host != self.name:
                mode = rng.choice(list(Mode))
                spied = self.ask(host, rng.choice(self.world.secret), rng.randbytes(16), mode)
                self.send(host, shells.Requests([spied]), shells.MESSAGE_BYTES)
        if count < 50:
            self.world.call_later(self, 0.2, self._spy, count + 1)

    def _answered(self, host: ids.HostId, answers: list[Any]) -> None:
        for answer in answers:
            if isinstance(answer, actions.SendChunk) and answer.data in self.world.secrets:
                self.world.broken_promise(f"{host} gave {self.name} a chunk of a foreign image")
        super()._answered(host, answers)


class Flooder(RequestingHost):
    """Sends too many requests, also for unknown images, and cancels some."""

    def start(self) -> None:
        """Start sending requests."""
        super().start()
        self.call_later(self._flood)

    def _flood(self) -> None:
        world, rng = self.world, self.world.rng
        host = rng.choice([name for name in world.names if name != self.name])
        requests = []
        for _ in range(FLOOD_REQUESTS):
            chunk = rng.choice(world.chunks)
            proof = shells.proof_of(chunk.cid, self.name, host)
            if rng.random() < 0.1:
                chunk = chunk._replace(image_id=NOWHERE)
            requests.append(self.ask(host, chunk, proof, rng.choice(list(Mode))))
        self.send(host, shells.Requests(requests), shells.MESSAGE_BYTES)
        if rng.random() < 0.3:
            some = [request.number for request in requests if rng.random() < 0.5]
            self.send(host, shells.Cancels(some), shells.MESSAGE_BYTES)
        if world.now < FLOOD_UNTIL_S:
            world.call_later(self, FLOOD_EVERY_S, self._flood)
        else:
            self._calm_down()

    def _calm_down(self) -> None:
        """Stop: ignore pending requests."""


class Deaf(Flooder):
    """A flooder that reads no answers until it stops."""

    is_deaf = True

    def start(self) -> None:
        """Start sending requests without reading answers."""
        self.is_deaf = True
        super().start()

    def _calm_down(self) -> None:
        self.is_deaf = False
        for host in self.world.names:
            if host != self.name:
                self.world.break_(self.name, host)


class Procrastinator(Host):
    """Answers no request, but signals progress all the time."""

    def receive(self, host: ids.HostId, connection: Hashable, message: Any) -> None:
        """Signal progress instead of an answer."""
        if isinstance(message, shells.Requests):
            self._promise(host, connection)
        else:
            super().receive(host, connection, message)

    def _promise(self, host: ids.HostId, connection: Hashable) -> None:
        promise = shells.Alive()
        self.world.send_on(connection, self, host, promise, shells.MESSAGE_BYTES)
        if self.world.connection_to(host, self.name) == connection and self.world.now < PROMISES_S:
            self.world.call_later(self, 0.5, self._promise, host, connection)


class Withholder(Host):
    """Serves prefetches at once, but lets guests wait nearly until their requests time out."""

    def receive(self, host: ids.HostId, connection: Hashable, message: Any) -> None:
        """Hold back urgent requests, and ignore that others become urgent."""
        if isinstance(message, shells.PriorityRaise):
            return
        if isinstance(message, shells.Requests):
            late = [one for one in message.requests if self.is_withheld(one)]
            rest = [one for one in message.requests if not self.is_withheld(one)]
            if late:
                what = super().receive, host, connection, shells.Requests(late)
                self.world.call_later(self, WITHHELD_S, *what)
            if not rest:
                return
            message = shells.Requests(rest)
        super().receive(host, connection, message)

    def is_withheld(self, request: chunk_ref.Request) -> bool:
        """Return whether to answer a request late."""
        return request.priority.is_urgent


class PartialWithholder(Withholder):
    """Lets those guests wait that read the last quarter of the image."""

    def is_withheld(self, request: chunk_ref.Request) -> bool:
        """Return whether to answer a request late."""
        is_last = request.offset >= self.world.chunks[-1].offset * 3 // 4
        return is_last and super().is_withheld(request)


class Busy(Host):
    """Refuses all requests as busy."""

    def outgoing_answers(self, host: ids.HostId, answers: list[Any]) -> list[Any]:
        """Refuse all requests as busy."""
        return [actions.SendRefusal(answer.number, Failure.BUSY) for answer in answers]


KINDS = (WrongBytesHost, Babbler, Mute, Denier, Spy, Flooder, Deaf, Procrastinator, Busy)
