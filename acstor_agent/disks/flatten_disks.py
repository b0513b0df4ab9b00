# SPDX-License-Identifier: Apache-2.0
"""Flattens writable disks: copies base image data into them, except where guests wrote."""

from collections.abc import Sequence

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.disks import disk
from acstor_agent.engine_io import exchange
from acstor_agent.images.prefetch import bulk_fetch
from acstor_agent.images.read import mirror
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import ids

_Place = tuple[disk.Disk, int]


async def flatten(
    disks: Sequence[disk.Disk],
    image: mirror.Mirror,
    chunks: exchange.Exchange,
    report: bulk_fetch.Report,
) -> dict[str, int]:
    """Copy the base image's data into disks; return the byte counts.

    :param report: called with the bytes done and the total, twice a second
    :raises errors.Unusable: some chunks could not be fetched or stored; the others are kept
    """
    needed = [
        (flattened, chunk_no)
        for flattened in disks
        for chunk_no in flattened.chunks_of_image()
        if image.map.cid_of(chunk_no) != ids.ZERO_CID
    ]

    async def keep(place: _Place, came: exchange.FetchedChunk | None) -> None:
        flattened, chunk_no = place
        if came is None:  # it was local a moment ago
            came = await chunks.fetch_chunk(image.chunk_ref_of(chunk_no), exchange.Priority.FLATTEN)
        stream = requests.Stream(requests.Klass.FILL, f"flatten {flattened.header.disk_id}")
        with disk_io.use_stream(stream):
            await flattened.keep_base_chunk(chunk_no, came.data)

    came = await bulk_fetch.fetch_all(
        ((place, image.chunk_ref_of(place[1])) for place in needed),
        chunks.background_fetch(exchange.Priority.FLATTEN),
        lambda ref: chunks.has_chunk(ref.cid),
        report,
        total_bytes=sum(image.map.geometry.chunk_length(chunk_no) for _, chunk_no in needed),
        keep=keep,
    )
    for flattened in disks:
        await flattened.sync()
    if came.failures:
        raise _unfinished(disks, [(flattened, e) for (flattened, _), e in came.failures])
    return came.byte_totals()


def _unfinished(
    disks: Sequence[disk.Disk], failures: Sequence[tuple[disk.Disk, Exception]]
) -> errors.Unusable:
    reasons = []
    for candidate in disks:
        whys = [str(e) for failed, e in failures if failed is candidate]
        if whys:
            count = f"{len(whys)} chunk{'s' if len(whys) > 1 else ''}"
            reasons.append(f"disk {candidate.header.disk_id}: {count} unavailable ({whys[0]})")
    return errors.Unusable(
        "flatten", "; ".join(reasons), "Fetched data is kept; repeat the command"
    )
