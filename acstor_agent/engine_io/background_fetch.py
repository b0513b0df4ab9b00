# SPDX-License-Identifier: Apache-2.0
"""Prefetches many chunks in one event, and reports each one as it arrives.

A chunk that fails stops none of the others.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from typing import Generic
from typing import TypeVar

import trio

from acstor_agent.engine import actions
from acstor_agent.engine_io import read_request
from acstor_common import errors

T = TypeVar("T")

Fetched = read_request.Fetched
Outcome = Fetched | errors.AcstorError


class BackgroundFetch(Generic[T]):
    """What somebody has fetched ahead.  Who leaves its block waits for none of it any more.

    :param begin: has chunks brought; each comes with the token of who wants it.  It returns why
        that failed, or nothing
    :param give_up: is told who wants nothing any more
    """

    def __init__(
        self,
        begin: Callable[[Collection[tuple[Hashable, read_request.ChunkRef]]], str],
        give_up: Callable[[Collection[Hashable]], object],
    ) -> None:
        self._begin, self._give_up = begin, give_up
        self._left: dict[_One[T], None] = {}
        self._came: list[tuple[T, Outcome]] = []
        self._more = trio.Event()

    def __enter__(self) -> "BackgroundFetch[T]":
        return self

    def __exit__(self, *_: object) -> None:
        if self._left:
            self._give_up(self._left)

    def __len__(self) -> int:
        """Return how many have not come, or have not been told of."""
        return len(self._left) + len(self._came)

    def ask(self, things: Iterable[tuple[T, read_request.ChunkRef]]) -> None:
        """Have chunks brought that are not here, for things of the caller's own."""
        ones = [_One(self, thing, (want,)) for thing, want in things]
        self._left.update(dict.fromkeys(ones))
        if ones and (why := self._begin([(one, one.wants[0]) for one in ones])):
            self._give_up(ones)  # what has begun before the core failed waits for nobody
            for one in ones:
                self.complete(one, actions.Complete(one, [], read_request.Failure.UNREACHABLE, why))

    def left(self) -> list[T]:
        """Return the things whose chunks have not come."""
        return [one.thing for one in self._left]

    def wake(self) -> None:
        """Let who waits for what comes go on, with nothing."""
        self._more.set()

    async def came(self) -> list[tuple[T, Outcome]]:
        """Return which have come since, or why they do not; wait until there is one.

        :returns: nothing if :meth:`wake` was called
        """
        if self._came:
            await trio.lowlevel.cancel_shielded_checkpoint()  # what has come is told
        else:
            self._more = trio.Event()
            await self._more.wait()
        came, self._came = self._came, []
        return came

    def complete(self, one: "_One[T]", answer: actions.Complete) -> None:
        """Take an answer, the first one."""
        if one not in self._left:
            return
        del self._left[one]
        why = answer.failure is not None
        outcome = read_request.error_of(answer, one.what) if why else answer.chunks[0]
        self._came.append((one.thing, outcome))
        self._more.set()


class _One(Generic[T]):
    """One chunk: the core knows it as the token of a waiter."""

    __slots__ = ("_ahead", "thing", "wants")

    def __init__(
        self, ahead: BackgroundFetch[T], thing: T, wants: tuple[read_request.ChunkRef]
    ) -> None:
        self._ahead, self.thing, self.wants = ahead, thing, wants

    def complete(self, answer: actions.Complete) -> None:
        """Take the answer."""
        self._ahead.complete(self, answer)

    @property
    def what(self) -> str:
        """What is wanted, in words."""
        return read_request.in_words(self.wants[0])
