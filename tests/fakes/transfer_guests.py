# SPDX-License-Identifier: Apache-2.0
"""Guests of ``transfer_hosts`` that read batches and compare the data."""

from collections.abc import Sequence
from typing import Any

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from tests.fakes import transfer_world

Broken = transfer_world.Broken
Priority = priority.Priority


class Guest:
    """Reads and compares batches; repeats unfinished ones after a crash."""

    def __init__(
        self,
        run: Any,
        host: transfer_world.Host,
        batches: Sequence[Sequence[chunk_ref.ChunkRef]],
        window: int,
        deadline_s: float,
    ) -> None:
        self.run, self.host, self.window, self.deadline_s = run, host, window, deadline_s
        self.left = list(batches)[::-1]
        self.in_flight: dict[int, Sequence[chunk_ref.ChunkRef]] = {}
        self.answers = self.failures = 0
        self._life = 0
        self._last = 0

    @property
    def is_done(self) -> bool:
        """Whether all batches are read."""
        return not self.left and not self.in_flight

    def begin_anew(self) -> None:
        """Start, or restart the reads in flight when the host was killed."""
        self._life = self.host.lives
        self.left += self.in_flight.values()
        self.in_flight = {}
        for _ in range(self.window):
            self._next()

    def _next(self) -> None:
        if not self.left:
            return
        self._last += 1
        number, batch = self._last, self.left.pop()
        self.in_flight[number] = batch
        end_s = self.run.world.now + self.deadline_s

        def done(answer: actions.CompleteRead) -> None:
            self._done(number, answer, end_s)

        self.host.read(batch, Priority.GUEST, done, end_s)

    def _done(self, number: int, answer: actions.CompleteRead, end_s: float) -> None:
        batch = self.in_flight.pop(number, None)
        if batch is None:
            raise Broken(f"{self.host.name}: a read is answered twice")
        now, world = self.run.world.now, self.run.world
        if answer.failure is None:
            if answer.chunks != [world.content_of(chunk.cid) for chunk in batch]:
                raise Broken(f"{self.host.name}: wrong bytes")
        elif answer.failure is not failure.Failure.LATE or now < end_s:
            raise Broken(f"{self.host.name}: a read fails: {answer.failure!r} {answer.why}")
        else:
            self.failures += 1
            self.left.append(batch)
        if now > end_s + 0.01:
            raise Broken(f"{self.host.name}: answered {now - end_s:.2f} s after the deadline")
        self.answers += 1
        world.call_later(self.host, self.run.rng.expovariate(200), self._next)
