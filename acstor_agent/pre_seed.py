# SPDX-License-Identifier: Apache-2.0
"""Brings whole images to this host, behind everything that guests wait for.

Hosts that are told to take the same image at the same time would all ask for
the same chunk first.  So each begins with the chunks that it is the home of,
which nobody else can read through for it, and takes the others in turn from a
place of its own.
"""

import logging
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator

import trio

from acstor_agent import fetcher
from acstor_agent import mirror
from acstor_common import errors
from acstor_common import ids

LOG = logging.getLogger(__name__)

REPORT_INTERVAL_S = 0.5


def chunks_in_order(count: int, is_home: Callable[[int], bool], first: int) -> Iterator[int]:
    """Yield the numbers of ``count`` chunks: those at home here, then the rest from ``first`` on.

    >>> list(chunks_in_order(6, lambda chunk_no: chunk_no % 3 == 0, first=8))
    [0, 3, 2, 4, 5, 1]
    """
    yield from (n for n in range(count) if is_home(n))
    turned = ((first + n) % count for n in range(count))
    yield from (n for n in turned if not is_home(n))


async def pre_seed(
    image: mirror.Mirror,
    chunks: fetcher.Fetcher,
    report: Callable[[int, int], Awaitable[None]],
    *,
    is_home: Callable[[fetcher.Want], bool],
    first_chunk: int,
) -> dict[str, int]:
    """Fetch what is not here of an image; return what it came to in bytes.

    :param report: is told the bytes done and the bytes in all, twice a second
    :param is_home: whether this host is the home of a chunk
    :raises errors.AcstorError: some chunk could not be had; what came is kept
    """
    cut = image.map.geometry
    came = {"done_bytes": 0, "fetched_bytes": 0, "failed_bytes": 0}
    failures: list[errors.AcstorError] = []

    async def take(chunk_no: int, done: trio.Semaphore) -> None:
        want = image.want(chunk_no)
        try:
            if want.cid != ids.ZERO_CID and await chunks.fetch_ahead(want, fetcher.Errand.PRE_SEED):
                came["fetched_bytes"] += want.length
        except errors.AcstorError as e:
            failures.append(e)
            came["failed_bytes"] += want.length
        finally:
            came["done_bytes"] += want.length
            done.release()

    async def tell() -> None:
        while True:
            await report(came["done_bytes"], cut.size_bytes)
            await trio.sleep(REPORT_INTERVAL_S)

    room = trio.Semaphore(chunks.background_limit)
    async with trio.open_nursery() as reporting:
        reporting.start_soon(tell)
        async with trio.open_nursery() as nursery:
            for chunk_no in chunks_in_order(
                cut.chunk_count, lambda n: is_home(image.want(n)), first_chunk
            ):
                await room.acquire()
                nursery.start_soon(take, chunk_no, room)
        reporting.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return came
