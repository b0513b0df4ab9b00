# SPDX-License-Identifier: Apache-2.0
"""How often a task has let others have their turn of the event loop."""

import contextlib
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
