# SPDX-License-Identifier: Apache-2.0
"""Works on many items, a limited number at a time."""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from typing import TypeVar

import trio

Item = TypeVar("Item")


async def run_for_each(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[None]],
    limit: int,
    failures: tuple[type[Exception], ...],
) -> None:
    """Work on ``limit`` items at once; the first of ``failures`` cancels the rest and is raised."""
    left, found = iter(items), []

    async def run_one_by_one(scope: trio.CancelScope) -> None:
        try:
            for item in left:
                await work(item)
        except failures as e:
            found.append(e)
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(limit):
            nursery.start_soon(run_one_by_one, nursery.cancel_scope)
    if found:
        raise found[0]
