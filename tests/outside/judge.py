# SPDX-License-Identifier: Apache-2.0
"""Compares acstor's answer for an image with QEMU's, which is the reference.

acstor must serve the bytes that ``qemu-img convert`` writes, or refuse the image with a reason.  It
must refuse what QEMU refuses, and may refuse a sound image only because of a feature.
"""

import enum
import errno
import os
import pathlib
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from typing import IO
from typing import NamedTuple

import trio

from acstor_agent.sources import base
from acstor_agent.sources import file
from acstor_agent.sources.wrappers import layout_source
from acstor_common import errors
from acstor_common.disks import qcow2_header
from acstor_common.disks.qcow2_header import RefusalReason
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance import sandbox
from acstor_glance.prepare import conversion
from acstor_glance.prepare import prehash
from tests.outside import bounded

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
SMALL_DISK_BYTES = 1 << 30
MAX_DISK_BYTES = 256 << 30
"""Larger disks are not compared: QEMU writes a file of that length."""
WORK_PREFIX = "judge-"
_PIECES = 64  # chunks of one read
FEATURES = frozenset(
    {
        RefusalReason.BACKING_FILE.value,
        RefusalReason.EXTERNAL_DATA.value,
        RefusalReason.ENCRYPTED.value,
        RefusalReason.FEATURES.value,
        RefusalReason.CORRUPT.value,
        RefusalReason.TOO_LARGE.value,
    }
)
"""Reasons to refuse images that QEMU serves, even sound ones."""


class Verdict(enum.StrEnum):
    """The result of the comparison."""

    EQUAL = "equal"
    BOTH_REFUSE = "both refuse"
    STRICTER = "acstor refuses"
    NOT_COMPARED = "not compared"
    DIFFERENT = "DIFFERENT BYTES"
    MILDER = "ONLY QEMU REFUSES"
    TOO_STRICT = "SOUND, REFUSED"
    BROKEN = "acstor FAILS"

    @property
    def is_fault(self) -> bool:
        """Whether acstor is wrong."""
        return self in (
            Verdict.DIFFERENT,
            Verdict.MILDER,
            Verdict.TOO_STRICT,
            Verdict.BROKEN,
        )


class Row(NamedTuple):
    """An image's answers of QEMU and acstor ("": served), and their comparison."""

    image: str
    qemu: str
    acstor: str
    verdict: Verdict


Prepare = Callable[[pathlib.Path, pathlib.Path, int], pathlib.Path]
"""Prepares an image in a folder, with a chunk size in bytes.

Returns the stored file; its chunk map (``.acmap``) is beside it.
"""


def judge_image(name: str, image: pathlib.Path, driver: str, prepare: Prepare) -> Row:
    """Ask both about an image, and compare all bytes."""
    with tempfile.TemporaryDirectory(dir=image.parent, prefix=WORK_PREFIX) as work:
        folder = pathlib.Path(work)
        raw = folder / "raw"
        qemu = bounded.why_not_converted(image, driver, raw, MAX_DISK_BYTES)
        if bounded.TOO_LARGE in qemu or qemu == bounded.NO_END:
            return Row(name, qemu, "", Verdict.NOT_COMPARED)
        if driver == "raw" and not qemu:
            _drop_padding(raw, image.stat().st_size)
        try:
            is_small = bool(qemu) or raw.stat().st_size <= SMALL_DISK_BYTES
            stored = prepare(image, folder, (64 if is_small else 4096) * geometry.KIB)
            difference = "" if qemu else find_difference(stored, raw)
        except (errors.NotRaw, errors.LimitExceeded) as refused:
            return _refused(name, image, driver, qemu, refused)
        except Exception as exc:  # any other answer is a fault
            return Row(name, qemu, repr(exc), Verdict.BROKEN)
    if qemu:
        return Row(name, qemu, "", Verdict.MILDER)
    return Row(name, "", difference, Verdict.DIFFERENT if difference else Verdict.EQUAL)


def _drop_padding(raw: pathlib.Path, size_bytes: int) -> None:
    """Cut QEMU's padding of the last sector, which it also adds to an agent's file."""
    if 0 < raw.stat().st_size - size_bytes < qcow2_header.SECTOR_BYTES:
        os.truncate(raw, size_bytes)


def _refused(
    name: str, image: pathlib.Path, driver: str, qemu: str, refused: errors.Unusable
) -> Row:
    why = refused.why
    if qemu:
        return Row(name, qemu, why, Verdict.BOTH_REFUSE)
    is_feature = any(part in why for part in FEATURES)
    if driver == "qcow2" and not is_feature and bounded.is_sound(image):
        return Row(name, "", why, Verdict.TOO_STRICT)
    return Row(name, "", why, Verdict.STRICTER)


def prepare_qcow2(image: pathlib.Path, folder: pathlib.Path, chunk_bytes: int) -> pathlib.Path:
    """Prepare an image as qcow2."""
    return _prepare(image, folder, chunk_bytes, layout.DiskFormat.QCOW2)


def prepare_raw(image: pathlib.Path, folder: pathlib.Path, chunk_bytes: int) -> pathlib.Path:
    """Prepare an image as raw."""
    return _prepare(image, folder, chunk_bytes, layout.DiskFormat.RAW)


def prepare_converted(disk_format: str) -> Prepare:
    """Return a function that converts an image of this format and prepares it."""

    def prepare(image: pathlib.Path, folder: pathlib.Path, chunk_bytes: int) -> pathlib.Path:
        copied = folder / "uploaded"
        copied.write_bytes(image.read_bytes())
        record = image_record.Image(
            id=IMAGE_ID, disk_format=disk_format, size_bytes=copied.stat().st_size
        )
        isolation = sandbox.Sandbox.BUBBLEWRAP
        with (
            copied.open("r+b") as stored,
            conversion.convert_image(record, stored, folder, isolation) as made,
        ):
            return prepare_qcow2(pathlib.Path(made.name), folder, chunk_bytes)

    return prepare


def _prepare(
    image: pathlib.Path, folder: pathlib.Path, chunk_bytes: int, disk_format: layout.DiskFormat
) -> pathlib.Path:
    stored = folder / f"{IMAGE_ID}.{disk_format.glance_name}"
    stored.hardlink_to(image)  # an agent follows no symbolic links
    prehash.prehash(
        stored,
        stored.with_suffix(".acmap"),
        IMAGE_ID,
        disk_format=disk_format,
        chunk_bytes=chunk_bytes,
        max_virtual_bytes=MAX_DISK_BYTES,
        workers=1,
    )
    return stored


def find_difference(stored: pathlib.Path, raw: pathlib.Path) -> str:
    """Return the first difference of acstor's view to QEMU's file, "" if none."""
    found = chunk_map.ChunkMap.parse(stored.with_suffix(".acmap").read_bytes(), "map")
    cut, size_bytes = found.geometry, raw.stat().st_size
    if cut.size_bytes != size_bytes:
        return f"a disk of {cut.size_bytes} bytes, and QEMU's has {size_bytes}"
    with raw.open("rb") as opened:
        chunks = set(_data_chunks(opened, cut))
        read = set(number for number in range(len(found)) if not found.is_zero(number))
        for number in sorted(chunks | read):
            data = _chunk(opened, cut, number)
            expected = ids.cid_of(data) if any(data) else ids.ZERO_CID
            if found.cid_of(number) != expected:
                return f"the CID of chunk {number}"
        return trio.run(_find_read_difference, stored, found, opened, sorted(read))


async def _find_read_difference(
    stored: pathlib.Path, found: chunk_map.ChunkMap, raw: IO[bytes], numbers: list[int]
) -> str:
    """Return the first difference of an agent's reads by the layout."""
    cut, blob = found.geometry, base.Blob(IMAGE_ID, base.BlobKind.IMAGE)
    async with trio.open_nursery() as nursery:
        source = layout_source.LayoutSource(
            file.FileSource(str(stored.parent)), lambda image_id: found.layout, nursery
        )
        for first in range(0, len(numbers), _PIECES):
            part = numbers[first : first + _PIECES]
            reported: list[tuple[int, base.Outcome]] = []
            pieces = [
                base.BlobPiece(
                    number * cut.chunk_bytes,
                    len(_chunk(raw, cut, number)),
                    found.content_of(number),
                )
                for number in part
            ]
            await source.read_pieces(base.PieceRequest(blob, pieces, reported.extend))
            for index, outcome in reported:
                if outcome != _chunk(raw, cut, part[index]):
                    nursery.cancel_scope.cancel()
                    return f"chunk {part[index]} as an agent reads it: {outcome!r}"[:200]
            if sorted(index for index, _ in reported) != list(range(len(part))):
                nursery.cancel_scope.cancel()
                return f"{len(reported)} of {len(part)} chunks as an agent reads them"
        nursery.cancel_scope.cancel()
    return ""


def _chunk(raw: IO[bytes], cut: geometry.Geometry, number: int) -> bytes:
    start = number * cut.chunk_bytes
    raw.seek(start)
    return raw.read(min(cut.chunk_bytes, cut.size_bytes - start))


def _data_chunks(raw: IO[bytes], cut: geometry.Geometry) -> Iterator[int]:
    """Yield the chunks with data in QEMU's file."""
    at = 0
    while at < cut.size_bytes:
        try:
            at = os.lseek(raw.fileno(), at, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return
            raise
        stop = os.lseek(raw.fileno(), at, os.SEEK_HOLE)
        yield from range(at // cut.chunk_bytes, -(-stop // cut.chunk_bytes))
        at = stop
