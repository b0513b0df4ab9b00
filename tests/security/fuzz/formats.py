# SPDX-License-Identifier: Apache-2.0
"""Targets of disks and Glance: chunk map, boot image, disk header, slab file, qcow2 file."""

import random
import struct
import zlib

import blake3

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.disks import disk_header
from acstor_common import errors
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps
from tests.fakes import qcow2_files
from tests.security.fuzz.target import Target

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
DISK = disk_header.parse_disk_id("11111111-2222-4333-8444-555555555555")
CHUNK_BYTES = 16 * geometry.KIB
CUT = geometry.Geometry(3 * CHUNK_BYTES + 100, CHUNK_BYTES)
OS_HASH = chunk_map.OsHash("sha256", bytes(range(32)))
SCOPE_KEY = ids.ScopeKey(bytes(range(32)))
DIGEST_BYTES = 32


def _fix_digests(data: bytearray, header_bytes: int, stop: int) -> None:
    """Correct the checksum of the header, and the one of all bytes before ``stop``."""
    for end in (header_bytes, stop):
        body = end - DIGEST_BYTES
        if 0 < body and end <= len(data):
            data[body:end] = blake3.blake3(bytes(data[:body])).digest()


EXTENTS = [
    layout.Extent(0, 4096, layout.Codec.DEFLATE, 700, 90),
    layout.Extent(4096, 4096, layout.Codec.ZSTD, 100, 80),
    layout.Extent(CHUNK_BYTES, 2 * CHUNK_BYTES, layout.Codec.STORED, 1000, 2 * CHUNK_BYTES),
]
RAW = (layout.DiskFormat.RAW, 0)
STORED_AS_QCOW2 = (layout.DiskFormat.QCOW2, 100_000)


def _map_seeds() -> list[bytes]:
    seeds = []
    for cut, os_hash, keys, of, extents in (
        (CUT, OS_HASH, (), RAW, []),
        (CUT, OS_HASH, (SCOPE_KEY, ids.ScopeKey(bytes(range(1, 33)))), RAW, []),
        (geometry.Geometry(1, 65536), chunk_map.UNKNOWN_OS_HASH, (), RAW, []),
        (geometry.Geometry(65536, 65536), OS_HASH, (), RAW, []),
        (CUT, OS_HASH, (), STORED_AS_QCOW2, EXTENTS),
        (geometry.Geometry(257 * CHUNK_BYTES, CHUNK_BYTES), OS_HASH, (), STORED_AS_QCOW2, []),
    ):
        stored = layout.StoredFile(of[0], of[1] or cut.size_bytes, len(extents))
        cids = (ids.cid_of(bytes([n % 256]), *keys[:1]) for n in range(cut.chunk_count))
        entries = map(layout.pack, extents)
        seeds.append(chunk_maps.made(IMAGE, cut, cids, os_hash, keys, stored, entries))
    return seeds


def _check_map(taken: chunk_map.ChunkMap, data: bytes) -> None:
    header = chunk_map_header.header_bytes(taken.subject, taken.tables)
    cids = {taken.cid_of(number) for number in range(len(taken))}
    assert all(cid in data for cid in cids)
    assert all(0 <= taken.first_chunk(n) < len(taken) for n in range(taken.tables.contents))
    body = header + data[len(header) : -chunk_map.TRAILER_BYTES]  # reserved bytes are not kept
    again = chunk_map.ChunkMap.parse(body + blake3.blake3(body).digest(), "again")
    assert again.subject == taken.subject
    for number in range(len(taken)):
        taken.content_of(number).matches_data(b"bytes")
    assert len(taken.zero_bitmap()) == -(-len(taken) // 8)
    _check_layout(taken)


def _check_layout(taken: chunk_map.ChunkMap) -> None:
    stored, size_bytes = taken.subject.stored, taken.geometry.size_bytes
    found = taken.layout.find(0, size_bytes)
    if stored.is_identity:
        return
    assert len(found) == stored.entries
    end = 0
    for extent in found:
        assert end <= extent.at < extent.at + extent.length <= size_bytes
        assert extent.offset + extent.stored_bytes <= stored.size_bytes
        assert extent in taken.layout.find(extent.at + extent.length - 1, extent.at + extent.length)
        end = extent.at + extent.length


CHUNK_MAP = Target(
    "chunk_map",
    lambda data: chunk_map.ChunkMap.parse(data, "fuzz"),
    (errors.ChunkMapFormatError,),
    _map_seeds,
    _check_map,
    lambda data: _fix_digests(data, chunk_map.HEADER_BYTES, len(data)),
    max_bytes=20_000,
)


def _boot_seeds() -> list[bytes]:
    rng = random.Random(1)
    of = boot_image.Binding(IMAGE, CUT, OS_HASH)
    seeds = []
    for order, key in (((2, 0, 3), None), ((2, 3), SCOPE_KEY), ((), None), ((1,), None)):
        writer = boot_image.Writer(of, revision=3, key=key)
        for number in order:
            length = CUT.chunk_length(number)
            data = rng.randbytes(length) if number == 1 else bytes([number]) * length
            writer.add(number, data, ids.profile_key_of("db" if number == order[-1] else ""))
        seeds.append(b"".join(writer.iter_parts()))
    return seeds


def _fix_boot(data: bytearray) -> None:
    _fix_digests(data, boot_image.HEADER_BYTES, 0)
    try:
        head_bytes = boot_image.parse_header(bytes(data), "fuzz").head_bytes
    except errors.BootImageFormatError:
        return
    _fix_digests(data, boot_image.HEADER_BYTES, head_bytes)


def _check_boot(taken: boot_image.Head, data: bytes) -> None:
    cut = taken.header.binding.cut
    trace = list(taken.trace)
    assert all(0 <= n < cut.chunk_count for n in trace)
    parts = taken.profiled_trace.parts().values()
    assert [n for part in parts for n in part] == trace
    assert all(len(set(part)) == len(part) for part in parts)
    assert list(taken.frames_of(taken.parts)) == list(taken.frames)
    assert taken.raw_bytes == sum(map(cut.chunk_length, trace))
    assert taken.size_bytes == len(data)


BOOT_IMAGE = Target(
    "boot_image",
    lambda data: boot_frames.check_boot_image([data[:100], data[100:]], "fuzz", (SCOPE_KEY,)),
    (errors.BootImageFormatError,),
    _boot_seeds,
    _check_boot,
    _fix_boot,
    max_bytes=40_000,
)


def _parse_disk(data: bytes) -> tuple[disk_header.DiskHeader, bytes]:
    header, boot_id = disk_header.unpack(data, "fuzz")
    disk_header.check_marks(data[disk_header.AT_MARKS :], header, "fuzz")
    return header, boot_id


def _check_disk(taken: tuple[disk_header.DiskHeader, bytes], data: bytes) -> None:
    assert _same_disk(taken, disk_header.pack(*taken))
    assert taken[0].file_bytes == len(data)
    marks = data[disk_header.AT_MARKS :]
    reported = sum(len(list(disk_header.marked(marks, mark))) for mark in (0, 1, 2))
    assert reported == taken[0].cut.chunk_count


def _same_disk(taken: tuple[disk_header.DiskHeader, bytes], written: bytes) -> bool:
    return disk_header.unpack(written, "fuzz") == taken


def _fix_disk(data: bytearray) -> None:
    _fix_digests(data, disk_header.HEADER_BYTES, 0)


DISK_HEADER = Target(
    "disk_header",
    _parse_disk,
    (errors.FormatError,),
    lambda: [
        disk_header.pack(disk_header.DiskHeader(DISK, IMAGE, CUT, CHUNK_BYTES), bytes(16))
        + bytes([0, 1, 2, 0])
    ],
    _check_disk,
    _fix_disk,
)


def _parse_slab(data: bytes) -> tuple[cache_slab.SlabLayout, list[cache_slab.SlotRecord]]:
    layout = cache_slab.unpack_header(data[: cache_slab.HEADER_BYTES], 1 << 30, "fuzz")
    table = data[cache_slab.HEADER_BYTES :][: layout.slot_count * cache_slab.RECORD_BYTES]
    whole = len(table) - len(table) % cache_slab.RECORD_BYTES
    return layout, list(cache_slab.unpack_records(table[:whole], layout.slot_bytes))


def _check_slab(
    taken: tuple[cache_slab.SlabLayout, list[cache_slab.SlotRecord]], data: bytes
) -> None:
    layout, records = taken
    for record in records:
        packed = bytes(cache_slab.RECORD_BYTES) * record.slot_no
        packed += cache_slab.pack_record(*record[1:])
        assert list(cache_slab.unpack_records(packed, layout.slot_bytes)) == [record]
        assert 0 <= record.slot_no < layout.slot_count
        assert 0 < record.length <= layout.slot_bytes


def _slab_seeds() -> list[bytes]:
    header = cache_slab.pack_header(cache_slab.SlabLayout(65536, 3))
    used = cache_slab.pack_record(ids.cid_of(b"1"), 7, 65536, 1)
    small = cache_slab.pack_record(ids.cid_of(b"2"), 9, 100, 0)
    return [header + used + bytes(cache_slab.RECORD_BYTES) + small]


def _fix_slab(data: bytearray) -> None:
    _fix_digests(data, cache_slab.HEADER_BYTES, 0)
    for begin in range(cache_slab.HEADER_BYTES, len(data), cache_slab.RECORD_BYTES):
        end = begin + cache_slab.RECORD_BYTES
        if end <= len(data):
            data[end - 4 : end] = zlib.crc32(data[begin : end - 4]).to_bytes(4, "little")


SLAB = Target(
    "cache_slab", _parse_slab, (errors.CacheFormatError,), _slab_seeds, _check_slab, _fix_slab
)


QCOW2_LIMIT = 64 << 20
"""Limit of disks that are read completely here."""


def _read_qcow2(data: bytes) -> tuple[qcow2.Qcow2, list[layout.Extent], bytes]:
    disk = qcow2.Qcow2(qcow2_files.Bytes(data), QCOW2_LIMIT)
    cut = geometry.Geometry(disk.virtual_size, geometry.DEFAULT_CHUNK_BYTES)
    extents, window = [], bytearray(2 * geometry.MIB)
    digest = blake3.blake3()
    for start in range(0, disk.virtual_size, len(window)):
        view = memoryview(window)[: disk.virtual_size - start]
        part = disk.part_reader(start, start + len(view), cut)
        if part.fill_buffer(view, start):
            digest.update(view)
        extents += part.extents
    return disk, extents, digest.digest()


def _check_qcow2(taken: tuple[qcow2.Qcow2, list[layout.Extent], bytes], data: bytes) -> None:
    """Check that a chunk map accepts the extents: in order, inside the disk and the file."""
    disk, extents, _ = taken
    cut = geometry.Geometry(disk.virtual_size, geometry.DEFAULT_CHUNK_BYTES)
    stored = layout.StoredFile(layout.DiskFormat.QCOW2, len(data), len(extents))
    entries, index = b"".join(map(layout.pack, extents)), layout.IndexBuilder(cut)
    index.add_entries(entries)
    assert layout.why_invalid(entries, index.index_slots(), cut, stored) is None


def _qcow2_seeds() -> list[bytes]:
    cluster = 4096
    packed = qcow2_files.deflated(b"abc" * 1365 + b"d")
    of_zstd = qcow2_files.zstandard_of(b"abc" * 1365 + b"d")
    at = 4 * cluster
    plain = [at, 0, qcow2_files.ZERO | at, at]
    deflated = [qcow2_files.compressed_entry(at, len(packed)), at + cluster]
    zstd = [0, qcow2_files.compressed_entry(at + 9, len(of_zstd))]
    snapshot = struct.pack(">QIHH20xI", cluster, 1, 1, 3, 16) + bytes(16) + b"1one"
    bitmap = struct.pack(">QIIBBHI", at + 2 * cluster, 1, 2, 1, 16, 2, 0) + b"b0" + bytes(6)
    bitmaps = struct.pack(">IIIIQQ", 0x23852875, 24, 1, 0, len(bitmap), at + cluster) + bytes(8)
    files = (
        qcow2_files.File(
            snapshots=1, snapshot_offset=at, autoclear=1, extensions=bitmaps,
            data=snapshot.ljust(cluster, b"\0") + bitmap.ljust(cluster, b"\0") + bytes(8),
        ),
        qcow2_files.File(l2_entries=plain, data=b"a" * cluster),
        qcow2_files.File(version=2, l2_entries=plain[:2], data=b"a" * 100),
        qcow2_files.File(l2_entries=deflated, data=packed.ljust(cluster, b"\0") + b"b" * cluster),
        qcow2_files.File(
            incompatible=8, compression=1, l2_entries=zstd, data=bytes(9) + of_zstd, size=8192
        ),
        qcow2_files.File(cluster_bits=9, size=512, l2_entries=[2048], data=b"c" * 512),
        qcow2_files.File(
            cluster_bits=14, incompatible=16, l2_entries=[4 << 14, 1 << 40 | 3, 0, 1 << 32],
            data=bytes(range(256)) * 4,
        ),
    )  # fmt: skip
    return [file.pack() for file in files]


QCOW2 = Target(
    "qcow2",
    _read_qcow2,
    (qcow2_header.Refused,),
    _qcow2_seeds,
    _check_qcow2,
    max_bytes=80_000,
    time_limit_s=10.0,
)

ALL = (CHUNK_MAP, BOOT_IMAGE, DISK_HEADER, SLAB, QCOW2)
