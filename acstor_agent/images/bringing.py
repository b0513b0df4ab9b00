# SPDX-License-Identifier: Apache-2.0
"""How much is brought that nobody waits for: some at a time, to the end, with its progress.

The one rule: what cannot be had stops nothing else; it is told at the end.
"""

import dataclasses
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from typing import Generic
from typing import TypeVar

import trio

from acstor_common import errors

REPORT_INTERVAL_S = 0.5

Report = Callable[[int, int], Awaitable[None]]
_T = TypeVar("_T")


@dataclasses.dataclass
class Came(Generic[_T]):
    """What became of it, in bytes; ``failures`` has what could not be brought, and why."""

    done_bytes: int = 0
    fetched_bytes: int = 0
    failed_bytes: int = 0
    failures: list[tuple[_T, Exception]] = dataclasses.field(default_factory=list)

    def tally(self) -> dict[str, int]:
        """Return the bytes, as clients are told."""
        return {
            name: getattr(self, name) for name in ("done_bytes", "fetched_bytes", "failed_bytes")
        }


async def bring_all(
    things: Iterable[tuple[_T, int]],
    bring: Callable[[_T], Awaitable[bool]],
    report: Report,
    *,
    total_bytes: int,
    at_a_time: int,
) -> Came[_T]:
    """Bring things and return what came of it.

    :param things: each with its length in bytes
    :param bring: says whether it was not here; raises AcstorError or OSError if it cannot be had
    :param report: is told the bytes done and ``total_bytes``, twice a second
    """
    came, room = Came[_T](), trio.Semaphore(at_a_time)

    async def take(thing: _T, length: int) -> None:
        try:
            if await bring(thing):
                came.fetched_bytes += length
        except (errors.AcstorError, OSError) as e:
            came.failures.append((thing, e))
            came.failed_bytes += length
        finally:
            came.done_bytes += length
            room.release()

    async def tell() -> None:
        while True:
            await report(came.done_bytes, total_bytes)
            await trio.sleep(REPORT_INTERVAL_S)

    async with trio.open_nursery() as reporting:
        reporting.start_soon(tell)
        async with trio.open_nursery() as nursery:
            for thing, length in things:
                await room.acquire()
                nursery.start_soon(take, thing, length)
        reporting.cancel_scope.cancel()
    return came
