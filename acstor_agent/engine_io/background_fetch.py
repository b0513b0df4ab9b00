# SPDX-License-Identifier: Apache-2.0
"""Prefetches many chunks in one event, run by run, and reports each one as it arrives.

A chunk that fails stops none of the others: those of its run that have not come are fetched again,
each by itself.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Generic
from typing import TypeVar

import trio

from acstor_agent.engine import actions
from acstor_agent.engine_io import read_request
from acstor_common import errors

T = TypeVar("T")

FetchedChunk = read_request.FetchedChunk
Outcome = FetchedChunk | errors.AcstorError


class BackgroundFetch(Generic[T]):
    """What somebody has fetched ahead.  Who leaves its block waits for none of it any more.

    :param begin: has batches of chunks brought; each comes with the token of who wants it.  It
        returns why that failed, or nothing
    :param give_up: is told who wants nothing any more
    :param run_chunks: chunks that lie side by side are wanted together, up to so many
    """

    def __init__(
        self,
        begin: Callable[[Collection[tuple[Hashable, Sequence[read_request.ChunkRef]]]], str],
        give_up: Callable[[Collection[Hashable]], object],
        run_chunks: int = 1,
    ) -> None:
        self._begin, self._give_up, self._run_chunks = begin, give_up, run_chunks
        self._left: dict[_Run[T], None] = {}
        self._left_chunks = 0
        self._came: list[tuple[T, Outcome]] = []
        self._more = trio.Event()

    def __enter__(self) -> "BackgroundFetch[T]":
        return self

    def __exit__(self, *_: object) -> None:
        left, self._left, self._left_chunks = self._left, {}, 0
        if left:
            self._give_up(left)

    def __len__(self) -> int:
        """Return how many have not come, or have not been told of."""
        return self._left_chunks + len(self._came)

    def request_chunks(self, things: Iterable[tuple[T, read_request.ChunkRef]]) -> None:
        """Have chunks brought that are not here, for things of the caller's own."""
        self._ask([_Run(self, *run) for run in _runs(things, self._run_chunks)])

    def _ask(self, runs: "list[_Run[T]]") -> None:
        self._left.update(dict.fromkeys(runs))
        self._left_chunks += sum([len(run.wants) for run in runs])
        if runs and (why := self._begin([(run, run.wants) for run in runs])):
            self._give_up(runs)  # what has begun before the core failed waits for nobody
            for run in runs:
                self._take(run, actions.Complete(run, [], read_request.Failure.UNREACHABLE, why))

    def missing_items(self) -> list[T]:
        """Return the things whose chunks have not come."""
        return [thing for run in self._left for thing in run.things]

    def wake_waiter(self) -> None:
        """Let who waits for what comes go on, with nothing."""
        self._more.set()

    async def wait_for_arrivals(self) -> list[tuple[T, Outcome]]:
        """Return which have come since, or why they do not; wait until there is one.

        :returns: nothing if :meth:`wake_waiter` was called
        """
        if self._came:
            await trio.lowlevel.cancel_shielded_checkpoint()  # what has come is told
        else:
            self._more = trio.Event()
            await self._more.wait()
        came, self._came = self._came, []
        return came

    def chunks_completed(self, run: "_Run[T]", answer: actions.Complete) -> None:
        """Take an answer, the first one; ask again for what has failed with others."""
        if run not in self._left:
            return
        if answer.failure is None or len(run.wants) == 1:
            self._take(run, answer)
            return
        self._forget(run)
        again: list[_Run[T]] = []
        for thing, want, fetched in zip(run.things, run.wants, answer.chunks, strict=True):
            if fetched is None:
                again.append(_Run(self, (thing,), (want,)))
            else:
                self._came.append((thing, fetched))
        if len(again) < len(run.wants):
            self._more.set()
        self._ask(again)

    def _take(self, run: "_Run[T]", answer: actions.Complete) -> None:
        if run not in self._left:
            return
        self._forget(run)
        if answer.failure is None:
            self._came += zip(run.things, answer.chunks, strict=True)
        else:
            failure = read_request.error_of(answer, run.what)
            self._came += [(thing, failure) for thing in run.things]
        self._more.set()

    def _forget(self, run: "_Run[T]") -> None:
        del self._left[run]
        self._left_chunks -= len(run.wants)


def _runs(
    things: Iterable[tuple[T, read_request.ChunkRef]], run_chunks: int
) -> Iterator[tuple[tuple[T, ...], tuple[read_request.ChunkRef, ...]]]:
    """Cut things, in their order, into runs of chunks that lie side by side in one image."""
    run: list[tuple[T, read_request.ChunkRef]] = []
    for thing, want in things:
        last = run[-1][1] if run else None
        if last is not None and not (
            len(run) < run_chunks
            and last.image_id == want.image_id
            and last.offset + last.length == want.offset
        ):
            yield tuple([one for one, _ in run]), tuple([one for _, one in run])
            run = []
        run.append((thing, want))
    if run:
        yield tuple([one for one, _ in run]), tuple([one for _, one in run])


class _Run(Generic[T]):
    """Chunks that are wanted together: the core knows them as the token of a waiter."""

    __slots__ = ("_ahead", "things", "wants")

    def __init__(
        self,
        ahead: BackgroundFetch[T],
        things: tuple[T, ...],
        wants: tuple[read_request.ChunkRef, ...],
    ) -> None:
        self._ahead, self.things, self.wants = ahead, things, wants

    def complete(self, answer: actions.Complete) -> None:
        """Take the answer."""
        self._ahead.chunks_completed(self, answer)

    @property
    def what(self) -> str:
        """What is wanted, in words."""
        return read_request.in_words(self.wants[0])
