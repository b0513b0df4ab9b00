# SPDX-License-Identifier: Apache-2.0
"""Fetches many chunks in the background; those of a failed run again, one by one."""

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Generic
from typing import TypeVar

import trio

from acstor_agent.engine import actions
from acstor_agent.engine_io import engine_driver
from acstor_agent.engine_io import read_request
from acstor_common import errors

T = TypeVar("T")

FetchedChunk = read_request.FetchedChunk
Outcome = FetchedChunk | errors.AcstorError


class BackgroundFetch(Generic[T]):
    """Chunks that are fetched in the background; leaving the block cancels them."""

    def __init__(self, driver: engine_driver.EngineDriver, priority: read_request.Priority) -> None:
        self._driver, self._priority = driver, priority
        self._left: dict[_FetchRun[T], None] = {}
        self._left_chunks = 0
        self._arrived: list[tuple[T, Outcome]] = []
        self._arrivals = trio.Event()

    def __enter__(self) -> "BackgroundFetch[T]":
        return self

    def __exit__(self, *_: object) -> None:
        left, self._left, self._left_chunks = self._left, {}, 0
        if left:
            self._cancel_runs(left)

    def __len__(self) -> int:
        return self._left_chunks + len(self._arrived)

    def request_items(self, items: Iterable[tuple[T, read_request.ChunkRef]]) -> None:
        """Fetch chunks that are not in the cache, each for an item of the caller."""
        run_chunks = self._driver.core.context.settings.run_chunks
        self._request_runs([_FetchRun(self, *run) for run in _runs(items, run_chunks)])

    def _cancel_runs(self, runs: "Iterable[_FetchRun[T]]") -> None:
        self._driver.handle_event(self._driver.core.cancel_reads, *runs)

    def _request_runs(self, runs: "list[_FetchRun[T]]") -> None:
        self._left.update(dict.fromkeys(runs))
        self._left_chunks += sum([len(run.refs) for run in runs])
        if not runs:
            return
        batches = [(run, run.refs) for run in runs]
        request = self._driver.core.request_batches
        if why := self._driver.handle_event(request, batches, self._priority):
            self._cancel_runs(runs)  # what was started before the engine failed
            for run in runs:
                self._take(
                    run, actions.CompleteRead(run, [], read_request.Failure.UNREACHABLE, why)
                )

    def missing_items(self) -> list[T]:
        """Return the items whose chunks have not arrived."""
        return [item for run in self._left for item in run.items]

    def wake_waiter(self) -> None:
        """Make :meth:`wait_for_arrivals` return."""
        self._arrivals.set()

    async def wait_for_arrivals(self) -> list[tuple[T, Outcome]]:
        """Wait for outcomes and return them; empty after :meth:`wake_waiter`."""
        if self._arrived:
            await trio.lowlevel.cancel_shielded_checkpoint()  # do not lose the outcomes
        else:
            self._arrivals = trio.Event()
            await self._arrivals.wait()
        arrived, self._arrived = self._arrived, []
        return arrived

    def chunks_completed(self, run: "_FetchRun[T]", answer: actions.CompleteRead) -> None:
        """Take the answer for a run; request its missing chunks one by one."""
        if run not in self._left:
            return
        if answer.failure is None or len(run.refs) == 1:
            self._take(run, answer)
            return
        self._forget(run)
        again: list[_FetchRun[T]] = []
        for item, ref, fetched in zip(run.items, run.refs, answer.chunks, strict=True):
            if fetched is None:
                again.append(_FetchRun(self, (item,), (ref,)))
            else:
                self._arrived.append((item, fetched))
        if len(again) < len(run.refs):
            self._arrivals.set()
        self._request_runs(again)

    def _take(self, run: "_FetchRun[T]", answer: actions.CompleteRead) -> None:
        if run not in self._left:
            return
        self._forget(run)
        if answer.failure is None:
            self._arrived += zip(run.items, answer.chunks, strict=True)
        else:
            failure = read_request.error_of(answer, run.description)
            self._arrived += [(item, failure) for item in run.items]
        self._arrivals.set()

    def _forget(self, run: "_FetchRun[T]") -> None:
        del self._left[run]
        self._left_chunks -= len(run.refs)


def _runs(
    items: Iterable[tuple[T, read_request.ChunkRef]], run_chunks: int
) -> Iterator[tuple[tuple[T, ...], tuple[read_request.ChunkRef, ...]]]:
    run: list[tuple[T, read_request.ChunkRef]] = []
    for item, ref in items:
        last = run[-1][1] if run else None
        if last is not None and not (
            len(run) < run_chunks
            and last.image_id == ref.image_id
            and last.offset + last.length == ref.offset
        ):
            yield tuple([entry for entry, _ in run]), tuple([entry for _, entry in run])
            run = []
        run.append((item, ref))
    if run:
        yield tuple([entry for entry, _ in run]), tuple([entry for _, entry in run])


class _FetchRun(Generic[T]):
    """Chunks that are requested together: the token of a waiter in the engine."""

    __slots__ = ("_fetch", "items", "refs")

    def __init__(
        self,
        fetch: BackgroundFetch[T],
        items: tuple[T, ...],
        refs: tuple[read_request.ChunkRef, ...],
    ) -> None:
        self._fetch, self.items, self.refs = fetch, items, refs

    def complete(self, answer: actions.CompleteRead) -> None:
        self._fetch.chunks_completed(self, answer)

    @property
    def description(self) -> str:
        return read_request.describe_chunk(self.refs[0])
