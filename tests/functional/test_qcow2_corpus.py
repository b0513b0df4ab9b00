# SPDX-License-Identifier: Apache-2.0
"""Files of QEMU's tools, with any options, read byte for byte as QEMU reads them."""

import pathlib
import random
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from acstor_common import errors
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_common.formats import chunk_map
from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import image_file
from acstor_glance.prepare import prehash
from tests.fakes import qcow2_corpus
from tests.fakes import qcow2_files

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
QCOW2 = layout.DiskFormat.QCOW2
CHUNK = 16 * geometry.KIB
SHA512 = chunk_map.OsHash("sha512", b"")

pytestmark = pytest.mark.skipif(
    not qcow2_corpus.HAS_TOOLS, reason="qemu-img and qemu-io are not installed"
)


OPTIONS: dict[str, Any] = {"disk_format": QCOW2, "chunk_bytes": CHUNK, "os_hash": SHA512}


def make_map(image: pathlib.Path, **options: Any) -> chunk_map.ChunkMap:
    path = image.with_suffix(".acmap")
    prehash.prehash(image, path, IMAGE_ID, **OPTIONS, **options)
    return chunk_map.ChunkMap.parse(path.read_bytes(), str(path))


def rebuilt(image: pathlib.Path, extents: Iterable[layout.Extent], start: int, stop: int) -> bytes:
    """Return the disk rebuilt from the layout alone, as a host reads it for a guest."""
    stored = image.read_bytes()
    data = bytearray(stop - start)
    for extent in extents:
        there = stored[extent.offset : extent.offset + extent.stored_bytes]
        got = codecs.decode(extent.codec, there, extent.length)
        low, high = max(start, extent.at), min(stop, extent.at + extent.length)
        data[low - start : high - start] = got[low - extent.at : high - extent.at]
    return bytes(data)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, id=variant.name)
        for variant in qcow2_corpus.variants()
        if not variant.has_subclusters and variant.size_bytes
    ],
)
def test_chunk_map_and_layout_equal_the_disk_that_qemu_reads(
    tmp_path: pathlib.Path, variant: qcow2_corpus.Variant
) -> None:
    image = variant.make(tmp_path)
    found = make_map(image)
    raw = qcow2_corpus.raw_bytes(image)
    assert found.geometry == geometry.Geometry(len(raw), CHUNK)
    assert found.layout.stored[:2] == (QCOW2, image.stat().st_size)
    for chunk_no in range(len(found)):
        chunk = raw[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]
        assert found.cid_of(chunk_no) == (ids.cid_of(chunk) if any(chunk) else ids.ZERO_CID), (
            chunk_no
        )
    middle, stop = len(raw) // 2, min(len(raw), len(raw) // 2 + 5001)
    for start, end in ((0, len(raw)), (middle, stop)):
        assert rebuilt(image, found.layout.find(start, end), start, end) == raw[start:end]


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, id=variant.name)
        for variant in qcow2_corpus.variants()
        if variant.has_subclusters
    ],
)
def test_image_with_subclusters_is_readable_but_not_served(
    tmp_path: pathlib.Path, variant: qcow2_corpus.Variant
) -> None:
    """oslo.utils refuses them, so Glance and Nova do too; a later version may accept them."""
    image = variant.make(tmp_path)
    raw = qcow2_corpus.raw_bytes(image)
    with image_file.open_image(image) as source:
        disk = qcow2.Qcow2(source, len(raw))
        got = bytearray(len(raw))
        cut = geometry.Geometry(len(raw), CHUNK)
        disk.part_reader(0, len(got), cut).fill_buffer(memoryview(got), 0)
        assert got == raw
        assert rebuilt(image, disk.iter_extents(), 0, len(raw)) == raw
    with pytest.raises(errors.NotRaw, match="incompatible features that are not known"):
        make_map(image)
    assert not list(tmp_path.glob("*.acmap*"))


def test_disk_without_a_byte_is_refused(tmp_path: pathlib.Path) -> None:
    image = tmp_path / "image.qcow2"
    qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", image, 0)
    with pytest.raises(errors.NotRaw, match="its disk is empty"):
        make_map(image)
    assert not list(tmp_path.glob("*.acmap*"))


def test_sparse_disk_of_a_tebibyte_is_read(tmp_path: pathlib.Path) -> None:
    image = tmp_path / "image.qcow2"
    qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", image, 1 << 40)
    qcow2_corpus.qemu_io(image, ("write -P 1 1023G 1M",))
    summary = prehash.prehash(
        image, tmp_path / "map", IMAGE_ID, disk_format=QCOW2, chunk_bytes=4 * geometry.MIB
    )
    assert (summary.chunks, summary.chunks - summary.zero_chunks) == (1 << 18, 1)


def create(path: pathlib.Path, *words: object) -> None:
    qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", *words)


def with_backing_file(path: pathlib.Path) -> None:
    create(path, path.with_name("base"), "1M")
    create(path, "-b", path.with_name("base"), "-F", "qcow2", path)


def with_data_file(path: pathlib.Path) -> None:
    create(path, "-o", f"data_file={path.with_name('data')}", path, "1M")


def with_raw_data_file(path: pathlib.Path) -> None:
    create(path, "-o", f"data_file={path.with_name('data')},data_file_raw=on", path, "1M")


def encrypted(path: pathlib.Path) -> None:
    """Encrypt as old versions did; LUKS takes seconds: other tests cover its header."""
    secret = ["--object", "secret,id=s,data=abc"]
    create(path, *secret, "-o", "encrypt.format=aes,encrypt.key-secret=s", path, "1M")


def corrupt(path: pathlib.Path) -> None:
    create(path, path, "1M")
    raw = bytearray(path.read_bytes())
    raw[79] |= qcow2_header.Feature.CORRUPT
    path.write_bytes(raw)


def huge(path: pathlib.Path) -> None:
    create(path, "-o", "cluster_size=2M", path, "1E")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (with_backing_file, "backing file"),
        (with_data_file, "external data file"),
        (with_raw_data_file, "external data file"),
        (encrypted, "it is encrypted"),
        (corrupt, "marked as corrupt"),
        (huge, "its disk is too large"),
    ],
)
def test_unsupported_qcow2_features_are_refused(
    tmp_path: pathlib.Path, make: object, why: str
) -> None:
    image = tmp_path / "image.qcow2"
    try:
        make(image)  # type: ignore[operator]
    except subprocess.CalledProcessError as exc:
        pytest.skip(f"this QEMU does not make it: {exc.stderr.decode()}")
    with pytest.raises(errors.NotRaw, match=why):
        make_map(image)
    assert not list(tmp_path.glob("*.acmap*"))


def test_image_declared_in_the_wrong_format_is_refused(tmp_path: pathlib.Path) -> None:
    raw, image = tmp_path / "image.raw", tmp_path / "image.qcow2"
    raw.write_bytes(b"data" * 100_000)
    qcow2_corpus.qemu_img("convert", "-O", "qcow2", "-f", "raw", raw, image)
    with pytest.raises(errors.NotRaw, match="its format is raw, but qcow2 in Glance"):
        make_map(raw)
    with pytest.raises(errors.NotRaw, match="its format is qcow2, but raw in Glance"):
        prehash.prehash(image, tmp_path / "m", IMAGE_ID)


def test_stopped_run_is_resumed(tmp_path: pathlib.Path) -> None:
    variant = qcow2_corpus.Variant("stopped", "cluster_size=64k", 3 << 20, is_compressed=True)
    image = variant.make(tmp_path)
    sizes = prehash.BufferSizes(record=1 << 18)
    whole = make_map(image, sizes=sizes)
    expected = [whole.cid_of(number) for number in range(len(whole))]
    map_path, part = image.with_suffix(".acmap"), image.with_suffix(".acmap.part")
    map_path.unlink()

    class Stop(Exception):
        pass

    seen: list[int] = []

    def stop(done_bytes: int) -> None:
        seen.append(done_bytes)
        if len(seen) == 6:
            raise Stop

    options = {**OPTIONS, "sizes": sizes}
    with pytest.raises(Stop):
        prehash.prehash(image, map_path, IMAGE_ID, progress=stop, **options)
    assert part.exists() and not map_path.exists()
    del seen[:]
    summary = prehash.prehash(image, map_path, IMAGE_ID, progress=seen.append, **options)
    assert summary.resumed_chunks == 5 * (1 << 18) // CHUNK
    found = chunk_map.ChunkMap.parse(map_path.read_bytes(), "map")
    assert [found.cid_of(number) for number in range(len(found))] == expected
    assert found.layout.find(0, 3 << 20) == whole.layout.find(0, 3 << 20)
    assert found.os_hash_value == whole.os_hash_value
    assert seen == sorted(seen) and seen[-1] == image.stat().st_size


def test_wrong_hash_of_the_file_is_refused(tmp_path: pathlib.Path) -> None:
    variant = qcow2_corpus.Variant("hashed", "cluster_size=64k", 3 << 20, is_compressed=True)
    image = variant.make(tmp_path)
    wrong = chunk_map.OsHash("sha512", bytes(64))
    with pytest.raises(errors.ContentMismatch):
        prehash.prehash(image, tmp_path / "m", IMAGE_ID, disk_format=QCOW2, os_hash=wrong)
    assert not list(tmp_path.glob("m*"))
    said = subprocess.run(
        ["sha512sum", image], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    right = chunk_map.OsHash("sha512", bytes.fromhex(said))
    prehash.prehash(image, tmp_path / "m", IMAGE_ID, disk_format=QCOW2, os_hash=right)


def test_damaged_cluster_is_refused_and_its_log_removed(tmp_path: pathlib.Path) -> None:
    variant = qcow2_corpus.Variant("damaged", "cluster_size=64k", 3 << 20, is_compressed=True)
    image = variant.make(tmp_path)
    raw = bytearray(image.read_bytes())
    first = make_map(image).layout.find(0, 3 << 20)[0]
    raw[first.offset : first.offset + 40] = b"\xff" * 40
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    image.write_bytes(raw)
    with pytest.raises(qcow2_header.Refused) as caught:
        make_map(image)
    assert caught.value.reason is qcow2_header.RefusalReason.DATA
    assert list(tmp_path.iterdir()) == [image]


DAMAGED = 60


def damaged(dice: random.Random) -> bytes:
    """Return a handwritten file with one to three changed numbers in its header or tables."""
    cluster = 4096
    packed = qcow2_files.deflated(b"abcd" * 1024)
    entries = [
        4 * cluster,
        0,
        qcow2_files.ZERO,
        qcow2_files.compressed_entry(5 * cluster, len(packed)),
    ]
    file = qcow2_files.File(l2_entries=entries, data=b"x" * cluster + packed.ljust(cluster, b"\0"))
    data = bytearray(file.pack())
    for _ in range(dice.choice((1, 1, 2, 3))):
        base, length = dice.choice(((0, 112), (cluster, 8), (3 * cluster, 32), (5 * cluster, 20)))
        width = dice.choice((1, 2, 4, 8))
        at = base + dice.randrange(0, length)
        was = int.from_bytes(data[at : at + width], "big")
        bit = 1 << dice.randrange(8 * width)
        value = dice.choice((was + 1, was ^ bit, was * 2, 4 * cluster, 1 << 62 | was, len(data)))
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")
    return bytes(data)


def test_accepted_damaged_files_read_as_in_qemu(tmp_path: pathlib.Path) -> None:
    dice, image, taken = random.Random(17), tmp_path / "image.qcow2", 0
    for number in range(DAMAGED):
        data = damaged(dice)
        try:
            disk = qcow2.Qcow2(qcow2_files.Bytes(data), 8 * geometry.MIB)
            cut = geometry.Geometry(disk.virtual_size, CHUNK)
            got = bytearray(disk.virtual_size)
            disk.part_reader(0, len(got), cut).fill_buffer(memoryview(got), 0)
        except qcow2_header.Refused:
            continue
        image.write_bytes(data)
        assert got == qcow2_corpus.raw_bytes(image), number
        taken += 1
    assert DAMAGED / 5 < taken < DAMAGED
