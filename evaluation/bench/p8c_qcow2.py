# SPDX-License-Identifier: Apache-2.0
"""P8c: the cost of a gigabyte of misses from a qcow2 image, compared with raw.

As P8b, from a folder in the page cache, sixteen chunks of 64 KiB at a time: an image as raw, and as
qcow2 without compression, with deflate and with zstd.  Its bytes compress to about half.  The
comparison is the minimum: codec and BLAKE3 alone, for all of its clusters, in this thread.  The
value is the size of the chunk map on disk and in memory; all else is in the details.
"""

import pathlib
import random
import shutil
import tempfile
import time

import trio

from acstor_agent.sources import base
from acstor_agent.sources import file
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import deadline_source
from acstor_agent.sources.wrappers import layout_source
from acstor_common.formats import chunk_map
from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from evaluation.bench import harness
from evaluation.bench import p8b_sources
from tests.fakes import qcow2_images
from tests.lab import local

IMAGE_BYTES = p8b_sources.IMAGE_BYTES
CHUNK_BYTES = p8b_sources.CHUNK_BYTES
ROUNDS = 3
WAYS = ("raw", "stored", "deflate", "zstd")


@harness.measures("P8c")
def run(say: harness.Say) -> harness.Result:
    """Read one image from each kind of file, in turns."""
    if shutil.which("qemu-img") is None:
        raise harness.CannotRun("qemu-img is not installed")
    costs: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="acstor-p8c-") as name:
        images = local.ImageFolder(pathlib.Path(name) / "images")
        data = _bytes(IMAGE_BYTES)
        made = {"raw": images.add(data)}
        for way in WAYS[1:]:
            made[way] = qcow2_images.add(images, data, qcow2_images.KINDS[way])
        maps = {way: images.map_of(image_id) for way, image_id in made.items()}
        for _ in range(ROUNDS):
            for way in WAYS:
                figures = trio.run(chain, images, maps[way])
                if way != "raw":
                    figures["least_cpu_s_per_gb"] = _least(images, maps[way])
                costs[way] = min(
                    figures, costs.get(way, figures), key=lambda one: one["cpu_s_per_gb"]
                )
        for way, figures in costs.items():
            length = images.map_path(made[way]).stat().st_size
            figures["map_bytes_per_chunk"] = length / len(maps[way])
            figures["stored_share"] = maps[way].layout.stored.size_bytes / IMAGE_BYTES
    for way, figures in costs.items():
        say(
            f"{way}: {figures['cpu_s_per_gb']:.2f} s/GB, {figures['gb_per_s']:.2f} GB/s, least "
            f"{figures.get('least_cpu_s_per_gb', 0):.2f} s/GB; stored "
            f"{figures['stored_share']:.2f}, map {figures['map_bytes_per_chunk']:.1f} bytes a chunk"
        )
    values = tuple(costs[way]["map_bytes_per_chunk"] for way in ("raw", "deflate"))
    return harness.Result({"P8c": values}, costs)


async def chain(images: local.ImageFolder, image_map: chunk_map.ChunkMap) -> dict[str, float]:
    """Return the cost of reading all chunks through all wrappers."""
    blob = base.Blob(image_map.image_id, base.BlobKind.IMAGE)
    cut = image_map.geometry
    pieces = [
        base.BlobPiece(cut.chunk_offset(n), cut.chunk_length(n), image_map.content_of(n))
        for n in range(len(image_map))
    ]
    async with trio.open_nursery() as nursery:
        place = deadline_source.DeadlineSource(file.FileSource(str(images.folder)))
        layouts = layout_source.LayoutSource(place, lambda image_id: image_map.layout, nursery)
        source = source_client.SourceClient([layouts])
        await source.read(blob, *pieces[0])
        with p8b_sources.Cost() as cost:
            for first in range(0, len(pieces), p8b_sources.AT_A_TIME):
                some = pieces[first : first + p8b_sources.AT_A_TIME]
                reported: list[tuple[int, base.Outcome]] = []
                await source.read_pieces(base.PieceRequest(blob, some, reported.extend))
                p8b_sources.check(some, [outcome for _, outcome in reported])
        await source.aclose()
        nursery.cancel_scope.cancel()
    return cost.figures


def _least(images: local.ImageFolder, image_map: chunk_map.ChunkMap) -> float:
    """Return the CPU seconds per GB of codec and BLAKE3."""
    stored = (images.folder / f"{image_map.image_id}.qcow2").read_bytes()
    began_s = time.thread_time()
    for extent in image_map.layout.find(0, IMAGE_BYTES):
        span = memoryview(stored)[extent.offset : extent.offset + extent.stored_bytes]
        if extent.codec is not layout.Codec.STORED:
            span = memoryview(codecs.decode(extent.codec, span, extent.length))
        for at in range(0, len(span), CHUNK_BYTES):
            ids.cid_of(span[at : at + CHUNK_BYTES])
    return (time.thread_time() - began_s) / (IMAGE_BYTES / p8b_sources.GB)


def _bytes(length: int) -> bytes:
    """Return distinct bytes that compress to about half."""
    rng = random.Random(8)
    return b"".join(rng.randbytes(geometry.KIB // 2).hex().encode() for _ in range(length >> 10))
