# SPDX-License-Identifier: Apache-2.0
"""The cost of neighbours' announcements for a host with the image attached.

``python -m evaluation.bench.announcement_cost`` prints the processor time per announced chunk,
from the decoded message to the prefetch decision, by segment length.  Four neighbours announce
all chunks of an image in order; *here*: the host has cached them.  Prefetching is on, but no
prefetched chunk arrives.
"""

import logging
import pathlib
import statistics
import sys
import tempfile
import time

import trio

from acstor_agent.engine.gossip import announcements
from acstor_agent.sources import base
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring
from acstor_common.util import token_buckets
from acstor_common.wire.peer import peer_wire
from tests.fakes import chunk_maps
from tests.fakes import one_host
from tests.fakes import one_machine

CHUNKS = 16_384
NEIGHBOURS = ("h2", "h3", "h4", "h5")
CHUNKS_TOLD = 512
"""Per message."""
LENGTHS = (1, 4, 16)
UNLIMITED = token_buckets.Rate(per_s=1e9, burst=1e9)


def unlimited(host: one_host.OneHost) -> None:
    """Lift the rate limit of neighbours' announcements."""
    announcements.LOOKUPS_OF_PEER = announcements.LOOKUPS_OF_ALL = UNLIMITED
    limits = announcements.AnnouncementLimits(UNLIMITED, len(NEIGHBOURS))
    host.chunks.core.context.announcements.limits = limits


async def us_a_chunk(segment_chunks: int, is_here: bool) -> list[float]:
    """Return the microseconds per announced chunk, by neighbour."""
    table = hash_ring.Ring(1, one_machine.table(16).hosts, segment_chunks=segment_chunks)
    cids = [ids.cid_of(b"%d" % number) for number in range(CHUNKS)]
    cut = geometry.Geometry(CHUNKS * one_host.CHUNK, one_host.CHUNK)
    with tempfile.TemporaryDirectory(prefix="acstor-announcements-") as folder:
        async with one_host.one_host(pathlib.Path(folder), table=table) as host:
            image_id, kind = one_host.IMAGE, base.BlobKind
            host.blobs[base.Blob(image_id, kind.IMAGE)] = bytes(cut.size_bytes)
            host.blobs[base.Blob(image_id, kind.CHUNK_MAP)] = chunk_maps.made(image_id, cut, cids)
            image = await host.mirrors.attach_image(image_id)
            unlimited(host)
            if is_here:
                host.chunks.has_chunk = lambda cid: True
            messages = []
            for first in range(0, CHUNKS, CHUNKS_TOLD):
                refs = host.chunks.chunk_refs_of(image.map, range(first, first + CHUNKS_TOLD))
                reported = segments.bitmaps((ref.ring_position, ref.bit) for ref in refs)
                messages.append(peer_wire.Advertise(reported, segment_chunks))
            return [cost_us(host, ids.HostId(name), messages) for name in NEIGHBOURS]


def cost_us(host: one_host.OneHost, name: ids.HostId, messages: list[peer_wire.Advertise]) -> float:
    """Return the microseconds per chunk that one neighbour announces."""
    began_s = time.process_time()
    for message in messages:
        host.news.announcement_received(name, message)
        while host.news._pending:  # what an agent does in later turns of its loop
            host.news._process_part()
    return (time.process_time() - began_s) / CHUNKS * 1e6


def main() -> int:
    """Measure and print."""
    logging.disable(logging.WARNING)  # neighbours without an answer
    for length in LENGTHS:
        for is_here in (False, True):
            each = trio.run(us_a_chunk, length, is_here)
            what = "here" if is_here else "not here"
            median = statistics.median(each)
            print(f"an announced chunk, {what}, segments of {length}: {median:.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
