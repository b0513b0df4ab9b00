# SPDX-License-Identifier: Apache-2.0
"""Runs work on many items, some at a time, until one fails."""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from typing import TypeVar

import trio

Item = TypeVar("Item")


async def run_some(
    at_a_time: int,
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[None]],
    failures: tuple[type[Exception], ...],
) -> None:
    """Run ``work`` on each item; cancel the rest at the first of ``failures``, and raise it."""
    left, found = iter(items), []

    async def run_one_by_one(scope: trio.CancelScope) -> None:
        try:
            for item in left:
                await work(item)
        except failures as e:
            found.append(e)
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(at_a_time):
            nursery.start_soon(run_one_by_one, nursery.cancel_scope)
    if found:
        raise found[0]
