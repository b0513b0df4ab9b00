# SPDX-License-Identifier: Apache-2.0
"""Lets writable disks depend on no host and on no source any more.

What a disk still has of its image is copied into the disk's own file, behind
everything that guests wait for; what guests write meanwhile stays theirs.  Zeros
stay where they are: the chunk map of this host knows them.  The one rule: a disk
that still depends on something is named, with the reason.
"""

from collections.abc import Sequence

from acstor_agent import disk_io
from acstor_agent.chunks import fetcher
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.disks import disk
from acstor_agent.images import bringing
from acstor_agent.images import mirror
from acstor_common import errors
from acstor_common import ids

_Place = tuple[disk.Disk, int]
"""A chunk of a disk."""


async def hydrate(
    disks: Sequence[disk.Disk],
    image: mirror.Mirror,
    chunks: fetcher.Fetcher,
    report: bringing.Report,
) -> dict[str, int]:
    """Copy what disks have of the image that they began as; return what it came to in bytes.

    :param report: is told the bytes done and the bytes in all, twice a second
    :raises errors.Unusable: some of it could not be had or kept; what came is kept
    """
    needed = [
        ((one, chunk_no), image.want(chunk_no).length)
        for one in disks
        for chunk_no in one.chunks_of_image()
        if image.map.cid(chunk_no) != ids.ZERO_CID
    ]

    async def bring(place: _Place) -> bool:
        one, chunk_no = place
        want = image.want(chunk_no)
        came = await chunks.fetch_ahead(want, fetcher.Errand.HYDRATE)
        here = came or await chunks.fetch_once(want, fetcher.Errand.HYDRATE)
        stream = requests.Stream(requests.Klass.FILL, f"hydrate {one.header.disk_id}")
        with disk_io.as_stream(stream):
            await one.keep(chunk_no, here.data)
        return came is not None

    came = await bringing.bring_all(
        needed,
        bring,
        report,
        total_bytes=sum(length for _, length in needed),
        at_a_time=chunks.background_limit,
    )
    for one in disks:
        await one.sync()
    if came.failures:
        raise _unfinished(disks, [(one, e) for (one, _), e in came.failures])
    return came.tally()


def _unfinished(
    disks: Sequence[disk.Disk], failures: Sequence[tuple[disk.Disk, Exception]]
) -> errors.Unusable:
    told = []
    for one in disks:
        whys = [str(e) for failed, e in failures if failed is one]
        if whys:
            count = f"{len(whys)} chunk{'s' if len(whys) > 1 else ''}"
            told.append(f"disk {one.header.disk_id}: {count} cannot be had ({whys[0]})")
    return errors.Unusable("hydration", "; ".join(told), "What came is kept; ask again")
