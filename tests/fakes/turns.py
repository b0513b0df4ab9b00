# SPDX-License-Identifier: Apache-2.0
"""How often a task has let others have their turn of the event loop."""

import contextlib
from collections.abc import AsyncIterator
from collections.abc import Iterator

import trio


class Counted(trio.abc.Instrument):
    """What was counted so far."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.turns = 0
        self._task = task

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Note that a task goes on after it let others run."""
        self.turns += task is self._task


@contextlib.contextmanager
def counted() -> Iterator[Counted]:
    """Count how often this task lets others run until the block ends, in which it never waits."""
    found = Counted(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(found)
    try:
        yield found
    finally:
        trio.lowlevel.remove_instrument(found)


class Taken:
    """Turns that a task beside a block has taken so far."""

    turns = 0


@contextlib.asynccontextmanager
async def taken_beside() -> AsyncIterator[Taken]:
    """Let a task take every turn that it gets until the block ends."""
    found = Taken()

    async def take() -> None:
        while True:
            found.turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        yield found
        nursery.cancel_scope.cancel()
