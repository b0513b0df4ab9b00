# SPDX-License-Identifier: Apache-2.0
"""Images stored as qcow2 by qemu-img, and their chunk maps.

The table reader here handles only files of qemu-img, and shares no code with the product.
"""

import pathlib
import struct
import uuid
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps
from tests.lab import local
from tests.lab import runs

DEFLATED = ("-c",)
ZSTD = ("-c", "-o", "compression_type=zstd")
STORED = ()
KINDS: dict[str, Sequence[str]] = {
    "deflate": DEFLATED,
    "zstd": ZSTD,
    "stored": STORED,
    "stored, all of it": ("-S", "0"),
    "small clusters": ("-c", "-o", "cluster_size=4k"),
    "large clusters": ("-c", "-o", "cluster_size=2M"),
    "large clusters of zstd": ("-c", "-o", "cluster_size=1M,compression_type=zstd"),
    "smallest clusters": ("-o", "cluster_size=512"),
    "subclusters": ("-o", "extended_l2=on,cluster_size=128k"),
    "version 2": ("-c", "-o", "compat=0.10"),
}
"""Options of ``qemu-img convert``."""


def some_bytes(length: int, seed: int = 0) -> bytes:
    """Return a mix of compressible, incompressible and zero bytes."""
    noise = local.random_bytes(length, seed, zero_share=0.3)
    text = (b"%d lines of text that compresses well\n" % seed) * (length // 20)
    parts = []
    for at in range(0, length, 40_000):
        parts.append((text if at // 40_000 % 3 else noise)[at : at + 40_000])
    return b"".join(parts)[:length]


def converted(raw: pathlib.Path, path: pathlib.Path, options: Sequence[str] = DEFLATED) -> None:
    """Make a qcow2 file from a raw file."""
    runs.tool(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", *options, raw, path])


def add(
    images: local.ImageFolder,
    data: bytes,
    options: Sequence[str] = DEFLATED,
    chunk_bytes: int = geometry.DEFAULT_CHUNK_BYTES,
) -> ids.ImageId:
    """Write an image as qcow2 and its map into an image folder; return its id.

    ``data`` is a whole number of sectors.
    """
    image_id = ids.parse_image_id(str(uuid.uuid4()))
    raw = images.folder.parent / "as-guests-read-it"
    raw.write_bytes(data)
    path = images.folder / f"{image_id}.qcow2"
    converted(raw, path, options)
    raw.unlink()
    images.map_path(image_id).write_bytes(map_of(path.read_bytes(), data, image_id, chunk_bytes))
    return image_id


def map_of(stored: bytes, data: bytes, image_id: ids.ImageId, chunk_bytes: int) -> bytes:
    """Return the chunk map of an image stored as qcow2.

    :param data: the disk's content
    """
    cut = geometry.Geometry(len(data), chunk_bytes)
    entries = [layout.pack(extent) for extent in layout.merge_within_pages(extents_of(stored), cut)]
    of = layout.StoredFile(layout.DiskFormat.QCOW2, len(stored), len(entries))
    chunks = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
    cids = (ids.cid_of(chunk) if any(chunk) else ids.ZERO_CID for chunk in chunks)
    return chunk_maps.made(image_id, cut, cids, stored=of, entries=entries)


def extents_of(stored: bytes) -> Iterator[layout.Extent]:
    """Yield a qcow2 file's extents; compressed ones end at a sector boundary."""
    version, bits, size_bytes = struct.unpack_from(">4xI12xIQ", stored)
    features = struct.unpack_from(">Q", stored, 72)[0] if version == 3 else 0
    codec = layout.Codec.DEFLATE
    if features & 8 and stored[104] == 1:
        codec = layout.Codec.ZSTD
    wide = features >> 4 & 1
    l1_entries, l1_at = struct.unpack_from(">IQ", stored, 36)
    cluster_bytes, per_table = 1 << bits, (1 << bits) // (16 if wide else 8)
    for number in range(l1_entries):
        (l2_at,) = struct.unpack_from(">Q", stored, l1_at + 8 * number)
        l2_at &= (1 << 56) - 512
        for index in range(per_table if l2_at else 0):
            at = (number * per_table + index) * cluster_bytes
            if at >= size_bytes:
                return
            place = l2_at + index * (16 if wide else 8)
            (word,) = struct.unpack_from(">Q", stored, place)
            if word >> 62 & 1:
                offset_bits = 62 - (bits - 8)
                offset = word & (1 << offset_bits) - 1
                sectors = (word >> offset_bits & (1 << bits - 8) - 1) + 1
                count = min(sectors * 512 - offset % 512, len(stored) - offset)
                length = min(cluster_bytes, size_bytes - at)
                yield layout.Extent(at, length, codec, offset, count)
                continue
            offset = word & (1 << 56) - 512
            bitmap = struct.unpack_from(">Q", stored, place + 8)[0] if wide else 1
            parts = 32 if wide else 1
            if not wide and (not offset or word & 1):
                continue
            size = cluster_bytes // parts
            for part in range(parts):
                start = at + part * size
                length = min(size, size_bytes - start, len(stored) - offset - part * size)
                if bitmap >> part & 1 and length > 0:
                    yield layout.Extent(
                        start, length, layout.Codec.STORED, offset + part * size, length
                    )
