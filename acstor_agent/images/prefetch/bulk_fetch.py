# SPDX-License-Identifier: Apache-2.0
"""Fetches many chunks in batches at low priority, with progress reports."""

import dataclasses
import itertools
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Generic
from typing import TypeVar

import trio

from acstor_agent.engine import chunk_ref
from acstor_agent.engine_io import background_fetch
from acstor_common import errors

BATCH = 64
"""Chunks per batch. The next batch is requested when so many are left: enough for the core to
start (``engine/fetch/prefetch_limits``), and few to cancel."""
REPORT_INTERVAL_S = 0.5

Report = Callable[[int, int], Awaitable[None]]
_T = TypeVar("_T")
_Item = tuple[_T, chunk_ref.ChunkRef]
Keep = Callable[[_T, background_fetch.FetchedChunk | None], Awaitable[None]]
_MaybeOutcome = background_fetch.Outcome | OSError | None


@dataclasses.dataclass
class BulkResult(Generic[_T]):
    """Result in bytes; ``failures`` lists failed items with their errors."""

    done_bytes: int = 0
    fetched_bytes: int = 0
    failed_bytes: int = 0
    failures: list[tuple[_T, Exception]] = dataclasses.field(default_factory=list)

    def record_result(self, item: _T, length: int, outcome: _MaybeOutcome) -> None:
        """Record the result of an item; None: it was local."""
        self.done_bytes += length
        if isinstance(outcome, Exception):
            self.failures.append((item, outcome))
            self.failed_bytes += length
        elif outcome is not None:
            self.fetched_bytes += length

    def byte_totals(self) -> dict[str, int]:
        """Return the byte counts for clients."""
        return {
            name: getattr(self, name) for name in ("done_bytes", "fetched_bytes", "failed_bytes")
        }


async def fetch_all(
    items: Iterable[_Item[_T]],
    ahead: background_fetch.BackgroundFetch[_Item[_T]],
    is_cached: Callable[[chunk_ref.ChunkRef], bool],
    report: Report,
    *,
    total_bytes: int,
    keep: Keep[_T] | None = None,
) -> BulkResult[_T]:
    """Fetch the chunks of items and store them by ``keep``, which gets None for a local one."""
    result = BulkResult[_T]()
    async with trio.open_nursery() as reporting:
        reporting.start_soon(_report_for_ever, result, report, total_bytes)
        with ahead:
            async for batch in _batches_of(items, ahead, is_cached):
                async with trio.open_nursery() as nursery:
                    for (item, ref), outcome in batch:
                        if keep is None or isinstance(outcome, errors.AcstorError):
                            result.record_result(item, ref.length, outcome)
                        else:
                            nursery.start_soon(_keep_one, result, item, ref.length, outcome, keep)
        reporting.cancel_scope.cancel()
    return result


async def _report_for_ever(result: BulkResult[_T], report: Report, total_bytes: int) -> None:
    while True:
        await report(result.done_bytes, total_bytes)
        await trio.sleep(REPORT_INTERVAL_S)


async def _keep_one(
    result: BulkResult[_T],
    item: _T,
    length: int,
    outcome: background_fetch.FetchedChunk | None,
    keep: Keep[_T],
) -> None:
    try:
        await keep(item, outcome)
    except (errors.AcstorError, OSError) as e:
        result.record_result(item, length, e)
    else:
        result.record_result(item, length, outcome)


async def _batches_of(
    items: Iterable[_Item[_T]],
    ahead: background_fetch.BackgroundFetch[_Item[_T]],
    is_cached: Callable[[chunk_ref.ChunkRef], bool],
) -> AsyncIterator[Sequence[tuple[_Item[_T], background_fetch.Outcome | None]]]:
    rest, is_more = iter(items), True
    while is_more or ahead:
        if not is_more or len(ahead) > BATCH:
            yield await ahead.wait_for_arrivals()
            continue
        await trio.lowlevel.checkpoint()
        batch = list(itertools.islice(rest, BATCH))
        is_more = bool(batch)
        local: list[_Item[_T]] = []
        missing: list[_Item[_T]] = []
        for chunk in batch:
            (local if is_cached(chunk[1]) else missing).append(chunk)
        ahead.request_items((chunk, chunk[1]) for chunk in missing)
        yield [(chunk, None) for chunk in local]
