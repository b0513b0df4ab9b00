# SPDX-License-Identifier: Apache-2.0
"""Brings whole images to this host, behind everything that guests wait for.

Hosts that are told to take the same image at the same time would all ask for
the same chunk first.  So each begins with the chunks that it is the home of,
which nobody else can read through for it, and takes the others in turn from a
place of its own.
"""

from collections.abc import Callable
from collections.abc import Iterator

import xxhash

from acstor_agent.chunks import exchange
from acstor_agent.core.transfers import want as want_
from acstor_agent.images import bringing
from acstor_agent.images import mirror
from acstor_common import ids


def first_chunk_of(host: ids.HostId) -> int:
    """Return where a host begins, modulo the number of chunks."""
    return xxhash.xxh3_64_intdigest(host.encode())


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
    chunks: exchange.Exchange,
    report: bringing.Report,
    *,
    is_home: Callable[[want_.Want], bool],
    first_chunk: int,
) -> dict[str, int]:
    """Fetch what is not here of an image; return what it came to in bytes.

    :param report: is told the bytes done and the bytes in all, twice a second
    :param is_home: whether this host is the home of a chunk
    :raises errors.AcstorError: some chunk could not be had; what came is kept
    """
    cut = image.map.geometry
    order = chunks_in_order(cut.chunk_count, lambda n: is_home(image.want(n)), first_chunk)
    came = await bringing.bring_all(
        ((chunk_no, image.want(chunk_no)) for chunk_no in order),
        chunks.ahead(exchange.Priority.SEED),
        lambda want: want.cid == ids.ZERO_CID or chunks.has(want.cid),
        report,
        total_bytes=cut.size_bytes,
    )
    if came.failures:
        raise came.failures[0][1]
    return came.tally()
