# SPDX-License-Identifier: Apache-2.0
"""A map is made only of an unchanging image, however often the run is interrupted."""

import bisect
import errno
import hashlib
import itertools
import os
import pathlib
import random
from collections.abc import Callable

import pytest

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_glance.prepare import format_check
from acstor_glance.prepare import prehash
from acstor_glance.prepare import progress_log

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CHUNK = 16384
RECORD = 4 * CHUNK
SIZES = prehash.BufferSizes(record=RECORD)


class Stop(Exception):
    """Ends a run from its progress callback, as a kill would."""


@pytest.fixture
def image(tmp_path: pathlib.Path) -> pathlib.Path:
    """Ten records and a bit: data, written zeros, a hole, a short last chunk."""
    path = tmp_path / "image.raw"
    dice = random.Random(3)
    with path.open("wb") as file:
        for chunk_no in range(43):
            if 8 <= chunk_no < 13:
                file.write(bytes(CHUNK))
            elif 20 <= chunk_no < 30:
                file.seek(CHUNK, os.SEEK_CUR)
            else:
                file.write(dice.randbytes(CHUNK))
        file.write(b"the short end")
    return path


def expected_cids(path: pathlib.Path, chunk_bytes: int = CHUNK) -> list[ids.Cid]:
    data = path.read_bytes()
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    return [ids.cid_of(chunk) if any(chunk) else ids.ZERO_CID for chunk in chunks]


def cids_of(path: pathlib.Path) -> list[ids.Cid]:
    found = chunk_map.ChunkMap.parse(path.read_bytes(), str(path), expected_image_id=IMAGE_ID)
    return [found.cid_of(chunk_no) for chunk_no in range(len(found))]


def make(image: pathlib.Path, **options: object) -> prehash.Summary:
    arguments = {"chunk_bytes": CHUNK, "workers": 2, "sizes": SIZES, **options}
    return prehash.prehash(image, map_of(image), IMAGE_ID, **arguments)  # type: ignore[arg-type]


def map_of(image: pathlib.Path) -> pathlib.Path:
    return image.with_suffix(".acmap")


def part_of(image: pathlib.Path) -> pathlib.Path:
    return image.with_suffix(".acmap.part")


def stop_at(stop_bytes: int) -> Callable[[int], None]:
    def progress(done_bytes: int) -> None:
        if done_bytes >= stop_bytes:
            raise Stop

    return progress


def stop_run(image: pathlib.Path, stop_bytes: int = 5 * RECORD) -> None:
    with pytest.raises(Stop):
        make(image, progress=stop_at(stop_bytes))
    assert part_of(image).exists() and not map_of(image).exists()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("chunk_bytes", [16384, 32768])
def test_every_chunk_gets_its_cid(image: pathlib.Path, chunk_bytes: int, workers: int) -> None:
    summary = make(image, chunk_bytes=chunk_bytes, workers=workers)
    expected = expected_cids(image, chunk_bytes)
    assert cids_of(map_of(image)) == expected
    assert summary.zero_chunks == expected.count(ids.ZERO_CID) > 0
    assert summary.chunks == len(expected)
    assert {path.name for path in image.parent.iterdir()} == {"image.raw", "image.acmap"}


def test_chunks_larger_than_a_read_are_hashed_completely(image: pathlib.Path) -> None:
    make(image, chunk_bytes=RECORD, sizes=SIZES._replace(read=CHUNK))
    assert cids_of(map_of(image)) == expected_cids(image, RECORD)


@pytest.mark.parametrize("size_bytes", [1, CHUNK - 1, CHUNK, RECORD, RECORD + 1])
@pytest.mark.parametrize("fill", [b"\0", b"x"])
def test_images_of_any_size_are_hashed(
    tmp_path: pathlib.Path, size_bytes: int, fill: bytes
) -> None:
    image = tmp_path / "image.raw"
    image.write_bytes(fill * size_bytes)
    make(image)
    assert cids_of(map_of(image)) == expected_cids(image)


def bytes_read_so_far() -> int:
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


def test_holes_are_not_read(tmp_path: pathlib.Path) -> None:
    image = tmp_path / "image.raw"
    with image.open("wb") as file:
        file.seek(512 * geometry.MIB)
        file.write(b"data")
        file.truncate(700 * geometry.MIB)
    before = bytes_read_so_far()
    summary = make(image, chunk_bytes=geometry.DEFAULT_CHUNK_BYTES)
    assert bytes_read_so_far() - before < 4 * geometry.MIB
    assert summary.chunks - summary.zero_chunks == 1


def test_progress_rises_to_the_size_of_the_image(image: pathlib.Path) -> None:
    seen: list[int] = []
    make(image, progress=seen.append)
    assert seen == [*range(0, image.stat().st_size, RECORD), image.stat().st_size]


def test_open_file_is_hashed_and_its_position_kept(image: pathlib.Path) -> None:
    with image.open("rb") as file:
        file.seek(77)
        prehash.prehash(file, map_of(image), IMAGE_ID, chunk_bytes=CHUNK, sizes=SIZES)
        assert file.tell() == 77 == os.lseek(file.fileno(), 0, os.SEEK_CUR)
    assert cids_of(map_of(image)) == expected_cids(image)


def test_hash_of_the_image_is_kept_or_computed(image: pathlib.Path) -> None:
    given = chunk_map.OsHash("sha256", hashlib.sha256(image.read_bytes()).digest())
    make(image, os_hash=given)
    found = chunk_map.ChunkMap.parse(map_of(image).read_bytes(), "m")
    assert (found.os_hash_algo, found.os_hash_value) == given
    seen: list[int] = []
    make(image, os_hash=chunk_map.OsHash("sha512", b""), progress=seen.append)
    found = chunk_map.ChunkMap.parse(map_of(image).read_bytes(), "m")
    assert found.os_hash_value == hashlib.sha512(image.read_bytes()).digest()
    assert seen == sorted(seen) and (seen[0], seen[-1]) == (0, image.stat().st_size)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_chunks_are_the_same_with_and_without_the_image_s_hash(
    image: pathlib.Path, workers: int
) -> None:
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(image.read_bytes()).digest())
    make(image, os_hash=os_hash, workers=workers)
    assert cids_of(map_of(image)) == expected_cids(image)


@pytest.mark.parametrize("at", [0, CHUNK * 20 + 7, -1])
def test_image_with_another_hash_in_glance_leaves_no_map(image: pathlib.Path, at: int) -> None:
    raw = bytearray(image.read_bytes())
    raw[at] ^= 1
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(raw).digest())
    with pytest.raises(errors.ContentMismatch, match="the sha512 of its data differs"):
        make(image, os_hash=os_hash)
    assert not map_of(image).exists() and not part_of(image).exists()


def test_hash_of_an_image_with_holes_includes_its_zeros(tmp_path: pathlib.Path) -> None:
    image = tmp_path / "image.raw"
    with image.open("wb") as file:
        file.truncate(9 * CHUNK + 100)
        file.seek(3 * CHUNK)
        file.write(b"data")
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(image.read_bytes()).digest())
    make(image, os_hash=os_hash)
    assert cids_of(map_of(image)) == expected_cids(image)


def test_stopped_run_hashes_the_image_from_its_start_and_keeps_the_chunks(
    image: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(image.read_bytes()).digest())
    with pytest.raises(Stop):
        make(image, os_hash=os_hash, progress=stop_at(5 * RECORD))
    named: list[int] = []

    class Counting(deduplication.Naming):
        def cid_of(self, chunk_no: int, data: deduplication.Data) -> ids.Cid:
            named.append(chunk_no)
            return super().cid_of(chunk_no, data)

    summary = make(image, os_hash=os_hash, naming=Counting())
    assert summary.resumed_chunks == 20
    assert named and min(named) >= 20
    assert cids_of(map_of(image)) == expected_cids(image)


@pytest.mark.expect_log("its chunking or its names changed; starting over")
def test_log_of_another_naming_is_restarted(image: pathlib.Path) -> None:
    stop_run(image)
    key = ids.ScopeKey(b"k" * 32)
    assert make(image, naming=deduplication.Naming(key)).resumed_chunks == 0
    found = chunk_map.ChunkMap.parse(map_of(image).read_bytes(), "m")
    plain = expected_cids(image)
    assert found.scope_keys == (key,)
    for chunk_no, cid in enumerate(plain):
        assert found.is_zero(chunk_no) == (cid == ids.ZERO_CID)
        assert ids.is_keyed(found.cid_of(chunk_no)) != (cid == ids.ZERO_CID)
    assert map_of(image).stat().st_mode & 0o777 == 0o600


def test_stopped_run_is_resumed(image: pathlib.Path) -> None:
    stop_run(image, 5 * RECORD)
    before = bytes_read_so_far()
    summary = make(image, workers=1)
    hashed_bytes = image.stat().st_size - 5 * RECORD
    inspected_bytes = min(format_check.INSPECTED_BYTES, image.stat().st_size)
    assert summary.resumed_chunks == 20
    assert bytes_read_so_far() - before < hashed_bytes + inspected_bytes + 2 * RECORD
    assert cids_of(map_of(image)) == expected_cids(image)
    assert not part_of(image).exists()


def test_damaged_log_is_used_up_to_its_first_fault(image: pathlib.Path) -> None:
    stop_run(image, 3 * RECORD)
    log = part_of(image).read_bytes()
    cids = expected_cids(image)
    names = [b"".join(cids[4 * number : 4 * number + 4]) for number in range(3)]
    lengths = [4 + (len(name) if any(name) else 0) + 32 for name in names]
    header_bytes = len(log) - sum(lengths)
    ends = [header_bytes + end for end in itertools.accumulate(lengths)]
    for at in range(header_bytes, len(log), 7):
        for damaged in (
            log[:at],
            log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :],
            log[:at] + bytes(900),
        ):
            part_of(image).write_bytes(damaged)
            summary = make(image)
            assert cids_of(map_of(image)) == expected_cids(image)
            assert summary.resumed_chunks <= 4 * bisect.bisect_right(ends, at) + 4


@pytest.mark.expect_log("image.acmap.part: the image, its chunking .* starting over")
def test_image_changed_between_runs_is_restarted(image: pathlib.Path) -> None:
    stop_run(image)
    with image.open("r+b") as file:
        file.write(b"another beginning")
    os.utime(image, ns=(0, image.stat().st_mtime_ns + 1))
    assert make(image).resumed_chunks == 0
    assert cids_of(map_of(image)) == expected_cids(image)


@pytest.mark.expect_log("starting over")
@pytest.mark.parametrize("cut", [1, 40, 70])
def test_log_truncated_in_its_header_is_restarted(image: pathlib.Path, cut: int) -> None:
    stop_run(image)
    part_of(image).write_bytes(part_of(image).read_bytes()[:cut])
    assert make(image).resumed_chunks == 0
    assert cids_of(map_of(image)) == expected_cids(image)


@pytest.mark.expect_log("its chunking or its names changed; starting over")
def test_another_chunk_size_restarts_the_log(image: pathlib.Path) -> None:
    stop_run(image)
    assert make(image, chunk_bytes=2 * CHUNK).resumed_chunks == 0
    assert cids_of(map_of(image)) == expected_cids(image, 2 * CHUNK)


def test_log_is_reused_for_another_image_id_or_hash(image: pathlib.Path) -> None:
    stop_run(image)
    other = ids.parse_image_id("00000000-0000-4000-8000-000000000001")
    summary = prehash.prehash(image, map_of(image), other, chunk_bytes=CHUNK, sizes=SIZES)
    assert summary.resumed_chunks == 20
    found = chunk_map.ChunkMap.parse(map_of(image).read_bytes(), "m", expected_image_id=other)
    assert len(found) == 44


def write_at(image: pathlib.Path) -> None:
    os.utime(image, ns=(0, image.stat().st_mtime_ns + 1))


def cut_short(image: pathlib.Path) -> None:
    os.truncate(image, 40 * CHUNK)


@pytest.mark.parametrize("change", [write_at, cut_short])
def test_image_changed_during_the_run_leaves_no_map(
    image: pathlib.Path, change: Callable[[pathlib.Path], None]
) -> None:
    def progress(done_bytes: int) -> None:
        if done_bytes == RECORD:
            change(image)

    with pytest.raises(errors.Unusable, match=r"image\.raw: changed while it was read\. Run again"):
        make(image, progress=progress)
    assert list(image.parent.iterdir()) == [image]


def test_concurrent_run_for_the_same_map_is_refused(image: pathlib.Path) -> None:
    def progress(done_bytes: int) -> None:
        with pytest.raises(errors.Unusable, match="another process is making this map right now"):
            make(image)

    make(image, progress=progress)
    assert cids_of(map_of(image)) == expected_cids(image)


def test_log_finished_by_another_process_is_not_used(
    image: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish_first(*arguments: object) -> None:
        part_of(image).unlink()

    monkeypatch.setattr(progress_log.fcntl, "flock", finish_first)
    with pytest.raises(errors.Unusable, match="another process has just finished this map"):
        make(image)


def test_file_that_is_no_log_is_not_overwritten(image: pathlib.Path) -> None:
    part_of(image).write_bytes(b"somebody's letters")
    with pytest.raises(errors.Unusable, match=r"image\.acmap\.part: exists"):
        make(image)
    assert part_of(image).read_bytes() == b"somebody's letters"


@pytest.mark.parametrize("name", ["m", "m.part"])
def test_image_is_never_overwritten_by_its_map(image: pathlib.Path, name: str) -> None:
    data = image.read_bytes()
    os.link(image, image.parent / name)
    with pytest.raises(errors.Unusable, match=f"{name}: is the image itself"):
        prehash.prehash(image, image.parent / "m", IMAGE_ID)
    assert image.read_bytes() == data


def test_failed_write_leaves_the_old_map_and_the_progress(
    image: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(image)
    old_map = map_of(image).read_bytes()
    os.utime(image, ns=(0, 1))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(prehash.os, "fsync", full)
        with pytest.raises(errors.Unusable, match=r"image\.acmap: No space left on device"):
            make(image)
    assert map_of(image).read_bytes() == old_map
    assert not list(image.parent.glob(f"{atomic_file.INCOMING}*"))
    assert make(image).resumed_chunks == 44


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"QFI\xfb\0\0\0\3", "qcow2"),
        (b"KDMV\1\0\0\0", "vmdk"),
        (b"vhdxfile", "vhdx"),
        (bytes(64) + b"\x7f\x10\xda\xbe", "vdi"),
        (b"conectix", "vhd"),
        (b"QED\0", "qed"),
    ],
    ids=["qcow2", "vmdk", "vhdx", "vdi", "vhd", "qed"],
)
def test_image_of_another_format_is_refused(tmp_path: pathlib.Path, head: bytes, name: str) -> None:
    image = tmp_path / "image.raw"
    image.write_bytes(head.ljust(2 * geometry.MIB, b"\0"))
    with pytest.raises(errors.NotRaw, match=f"its format is {name}, but .*qemu-img convert"):
        make(image)
    assert list(tmp_path.iterdir()) == [image]


def test_empty_image_is_refused(tmp_path: pathlib.Path) -> None:
    image = tmp_path / "image.raw"
    image.touch()
    with pytest.raises(errors.NotRaw, match="its disk is empty"):
        make(image)
    assert list(tmp_path.iterdir()) == [image]


def test_missing_or_special_file_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.Unusable, match="nowhere: No such file"):
        make(tmp_path / "nowhere")
    with pytest.raises(errors.Unusable, match="Is a directory"):
        make(tmp_path)
    with pytest.raises(errors.Unusable, match="/dev/zero: not a regular file"):
        prehash.prehash("/dev/zero", tmp_path / "m", IMAGE_ID)


def test_unwritable_map_is_refused_before_hashing(image: pathlib.Path) -> None:
    with pytest.raises(errors.Unusable, match=r"nowhere/m\.part: No such file"):
        prehash.prehash(image, image.parent / "nowhere" / "m", IMAGE_ID)
    with pytest.raises(errors.Unusable, match="exists and is not a regular file"):
        prehash.prehash(image, image.parent, IMAGE_ID)
