# SPDX-License-Identifier: Apache-2.0
"""Counts how often a task yields to others in the event loop."""

import contextlib
from collections.abc import AsyncIterator
from collections.abc import Iterator

import trio


class Counted(trio.abc.Instrument):
    """The number of turns so far."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.turns = 0
        self._task = task

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Count a resumption of the task."""
        self.turns += task is self._task


@contextlib.contextmanager
def counted() -> Iterator[Counted]:
    """Count how often this task yields in the block."""
    found = Counted(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(found)
    try:
        yield found
    finally:
        trio.lowlevel.remove_instrument(found)


class Taken:
    """The number of turns of a concurrent task."""

    turns = 0


@contextlib.asynccontextmanager
async def taken_beside() -> AsyncIterator[Taken]:
    """Run a task that takes each turn it gets, for the block."""
    found = Taken()

    async def take() -> None:
        while True:
            found.turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        yield found
        nursery.cancel_scope.cancel()
