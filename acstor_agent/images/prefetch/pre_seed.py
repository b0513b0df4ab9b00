# SPDX-License-Identifier: Apache-2.0
"""Prefetches whole images at low priority; each host begins with the chunks at home there."""

from collections.abc import Callable
from collections.abc import Iterator

import trio
import xxhash

from acstor_agent.engine import chunk_ref
from acstor_agent.engine_io import exchange
from acstor_agent.images.prefetch import bulk_fetch
from acstor_agent.images.read import mirror
from acstor_common.model import ids

CHUNKS_PER_CHECKPOINT = 200  # chunks examined between two checkpoints: about a millisecond


def first_chunk_of(host: ids.HostId) -> int:
    """Return a host's starting position, modulo the number of chunks."""
    return xxhash.xxh3_64_intdigest(host.encode())


def chunks_in_order(homes: bytearray, first: int) -> Iterator[int]:
    """Yield chunk numbers: those at home here, then the rest from ``first`` on.

    >>> list(chunks_in_order(bytearray([1, 0, 0, 1, 0, 0]), first=8))
    [0, 3, 2, 4, 5, 1]

    :param homes: 1 for each chunk at home here, else 0
    """
    count = len(homes)
    first %= count or 1
    yield from _places_of(1, homes, 0, count)
    yield from _places_of(0, homes, first, count)
    yield from _places_of(0, homes, 0, first)


def _places_of(what: int, homes: bytearray, start: int, stop: int) -> Iterator[int]:
    while (start := homes.find(what, start, stop)) >= 0:
        yield start
        start += 1


async def pre_seed(
    image: mirror.Mirror,
    chunks: exchange.Exchange,
    report: bulk_fetch.Report,
    *,
    is_home: Callable[[chunk_ref.ChunkRef], bool],
    first_chunk: int,
) -> dict[str, int]:
    """Fetch missing chunks; return byte counts, or raise AcstorError and keep what was fetched."""
    cut = image.map.geometry
    homes = bytearray()
    for chunk_no in range(cut.chunk_count):
        homes.append(is_home(image.chunk_ref_of(chunk_no)))
        if chunk_no % CHUNKS_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()
    order = chunks_in_order(homes, first_chunk)
    result = await bulk_fetch.fetch_all(
        ((chunk_no, image.chunk_ref_of(chunk_no)) for chunk_no in order),
        chunks.background_fetch(exchange.Priority.PRE_SEED),
        lambda ref: ref.cid == ids.ZERO_CID or chunks.has_chunk(ref.cid),
        report,
        total_bytes=cut.size_bytes,
    )
    if result.failures:
        raise result.failures[0][1]
    return result.byte_totals()
