# SPDX-License-Identifier: Apache-2.0
"""Deduplication of image files with those of their bases: on XFS, and other file systems."""

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from acstor_common import errors
from acstor_glance.dedup import block_dedup
from acstor_glance.dedup import common_ranges
from tests.fakes import composed_lines
from tests.fakes import file_systems

KIB, MIB = 1 << 10, 1 << 20
FS_BYTES = 512 * MIB
SIZE = 24 * MIB
FAST = 1 << 40

pytestmark = pytest.mark.skipif(bool(file_systems.why_not()), reason=file_systems.why_not())
Range = common_ranges.Range


@pytest.fixture(scope="module")
def xfs(tmp_path_factory):
    with file_systems.mounted(tmp_path_factory.mktemp("store"), FS_BYTES) as at:
        yield at


@pytest.fixture
def store(xfs, request):
    folder = xfs / request.node.name.translate({ord(c): "-" for c in "[]/"})
    folder.mkdir()
    return folder


def share(image, base, ranges=None, bytes_s=FAST, wait_s=lambda _: False):
    """Deduplicate two paths; by default all of them."""
    ranges = [Range(0, 0, base.stat().st_size)] if ranges is None else ranges
    with (
        block_dedup.open_stored_file(image, image.stat().st_size) as own,
        block_dedup.open_stored_file(base, base.stat().st_size) as below,
    ):
        return block_dedup.share_blocks(own, below, ranges, bytes_s, wait_s)


def share_images(image, base):
    with image.chunk_map() as own_map, base.chunk_map() as base_map:
        ranges = list(common_ranges.find_ranges(own_map, base_map, 4096))
    return share(image.path, base.path, ranges)


def pair(store, length=8 * MIB):
    """Return two files with the same bytes."""
    data = random.Random(3).randbytes(length)
    paths = store / "image", store / "base"
    for path in paths:
        path.write_bytes(data)
    return *paths, data


def make_base(store, disk_format):
    raw = store / "base.raw"
    raw.write_bytes(random.Random(1).randbytes(SIZE // 2) + bytes(SIZE // 2))
    if disk_format == "qcow2":
        out = store / "base.qcow2"
        composed_lines.qcow2_corpus.qemu_img("convert", "-f", "raw", "-O", "qcow2", raw, out)
        raw.unlink()
        raw = out
    return composed_lines.stored(raw, disk_format, store)


WRITES = [
    ["write -P 7 1M 100k", "write -P 9 13M 1M"],
    ["write -P 8 2M 3M", "write -z 5M 1M"],
    ["write -P 3 1M 64k", "write -P 4 20M 300k"],
]


@pytest.mark.parametrize("base_format", ["raw", "qcow2"])
@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
def test_chain_of_snapshots_uses_only_the_space_of_its_writes(store, xfs, base_format, disk_format):
    """Each is deduplicated with the one before it, and the one in the middle deleted."""
    line = [make_base(store, base_format)]
    before = file_systems.used_bytes(xfs)
    for number, writes in enumerate(WRITES):
        image = composed_lines.snapshot(line[-1], store / f"s{number}", disk_format, store, writes)
        line.append(image)
    guests, hashes = [one.guest_bytes() for one in line], [one.path.read_bytes() for one in line]
    whole = file_systems.used_bytes(xfs) - before
    times = [one.path.stat().st_mtime_ns for one in line]
    for base, image in itertools.pairwise(line):
        assert share_images(image, base) >= 8 * MIB
    taken = file_systems.used_bytes(xfs) - before
    written = MIB + 100 * KIB + 4 * MIB + 400 * KIB
    holes = 12 * MIB if disk_format == "raw" and base_format == "qcow2" else 0
    assert whole > 30 * MIB and taken < written + holes + 5 * MIB
    assert [one.path.read_bytes() for one in line] == hashes
    assert [one.path.stat().st_mtime_ns for one in line] == times
    line[2].path.unlink()
    assert line[3].guest_bytes() == guests[3] and line[1].guest_bytes() == guests[1]


def test_three_flattens_in_a_row_give_the_bytes_of_a_single_one(store):
    base = make_base(store, "qcow2")
    image = base
    for number, writes in enumerate(WRITES):
        image = composed_lines.snapshot(image, store / f"s{number}", "qcow2", store, writes)
    once = composed_lines.snapshot(
        base, store / "once", "qcow2", store, [*WRITES[0], *WRITES[1], *WRITES[2]]
    )
    assert image.guest_bytes() == once.guest_bytes()


def test_repeated_deduplication_changes_nothing(store, xfs):
    image, base, data = pair(store)
    assert share(image, base) == len(data)
    used = file_systems.used_bytes(xfs)
    assert share(image, base) == len(data)
    assert file_systems.used_bytes(xfs) == used and image.read_bytes() == data


def test_different_bytes_are_not_shared(store):
    image, base, data = pair(store)
    with image.open("r+b") as file:
        file.seek(3 * MIB + 5)
        file.write(b"x")
    other = image.read_bytes()
    assert share(image, base) == len(data) - block_dedup.CALL_BYTES
    assert image.read_bytes() == other and base.read_bytes() == data


def test_ranges_past_the_end_of_a_file_are_refused(store):
    image, base, data = pair(store)
    with pytest.raises(errors.Unusable):
        share(image, base, [Range(0, len(data) - 4096, 8192)])
    assert share(image, base, [Range(len(data) + 4096, 0, 8192)]) == 0  # no bytes there


def test_overwrite_or_deletion_during_deduplication_is_harmless(store):
    image, base, data = pair(store)

    def change(_seconds):
        base.unlink(missing_ok=True)
        with image.open("r+b") as file:
            file.write(bytes(len(data)))
        return False

    assert share(image, base, wait_s=change) == block_dedup.CALL_BYTES
    assert image.read_bytes() == bytes(len(data))


def test_missing_base_or_one_of_another_length_is_not_opened(store):
    _image, base, data = pair(store)
    for length in (len(data) + 1, 0):
        with pytest.raises(errors.Unusable, match="not a file of"):
            block_dedup.open_stored_file(base, length).__enter__()
    link = store / "link"
    link.symlink_to(base)
    base.unlink()
    for path in (base, link, store):
        with pytest.raises(errors.Unusable):
            block_dedup.open_stored_file(path, len(data)).__enter__()


def test_file_systems_without_reflinks_are_named(store, tmp_path):
    _image, base, data = pair(store)
    away = tmp_path / "away"
    away.write_bytes(data)
    with pytest.raises(errors.Unusable, match="on different file systems"):
        share(away, base)
    with (
        file_systems.mounted(tmp_path, 64 * MIB, "ext4") as ext4,
        pytest.raises(errors.Unusable, match="does not support it"),
    ):
        share(*pair(ext4)[:2])
    with (
        file_systems.mounted(tmp_path, 512 * MIB, "plain-xfs") as plain,
        pytest.raises(errors.Unusable, match="does not support it"),
    ):
        share(*pair(plain)[:2])


def test_overlay_file_system_shares_or_names_the_reason(store):
    """Its files belong to the lower file system: both written there, both are on XFS."""
    parts = [store / name for name in ("lower", "upper", "work", "at")]
    for part in parts:
        part.mkdir()
    lower, upper, work, at = parts
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    file_systems.run("mount", "-t", "overlay", "overlay", "-o", options, at)
    try:
        image, base, data = pair(at)
        assert share(image, base) == len(data)
        assert image.read_bytes() == data
    finally:
        file_systems.run("umount", at)


def test_error_of_a_read_only_folder_names_the_option(store):
    pair(store)
    at = store / "ro"
    at.mkdir()
    with file_systems.shown_at(store, at):
        file_systems.run("mount", "-o", "remount,bind,ro", at)
        with pytest.raises(errors.Unusable, match="ReadWritePaths="):
            share(at / "image", at / "base")


CHILD = """
import os, sys, time
from acstor_common import errors
from acstor_glance.dedup import common_ranges, block_dedup
image, base = sys.argv[1:3]
length, bytes_s, user = map(int, sys.argv[3:])
ranges = [common_ranges.Range(0, 0, length)]
opened = block_dedup.open_stored_file
with opened(image, length) as own, opened(base, length) as below:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    print("began", flush=True)
    try:
        print(block_dedup.share_blocks(own, below, ranges, bytes_s, time.sleep))
    except errors.Unusable as e:
        print(e)
"""


def other_process(image, base, length, bytes_s=FAST, user=0):
    words = [sys.executable, "-c", CHILD, image, base, str(length), str(bytes_s), str(user)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_owner_of_a_file_may_deduplicate_it_and_others_may_not(store):
    image, base, data = pair(store)
    nobody = other_process(image, base, len(data), user=65534)
    assert "run the listener as Glance's user" in nobody.communicate(timeout=60)[0]
    os.chown(image, 65534, 65534)
    image.chmod(0o444)
    owner = other_process(image, base, len(data), user=65534)
    assert owner.communicate(timeout=60)[0].split() == ["began", str(len(data))]
    assert image.read_bytes() == data


def test_killed_deduplication_keeps_all_bytes_and_is_completed_later(store, xfs):
    image, base, data = pair(store, 64 * MIB)
    used = file_systems.used_bytes(xfs)
    for _ in range(3):
        killed = other_process(image, base, len(data), bytes_s=40 * MIB)
        killed.stdout.readline()
        time.sleep(0.3)
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
        assert image.read_bytes() == base.read_bytes() == data
    assert share(image, base) == len(data)
    assert file_systems.used_bytes(xfs) < used - 60 * MIB


def test_deduplication_stops_on_request(store):
    image, base, _data = pair(store)
    waited = []

    def wait_s(seconds):
        waited.append(seconds)
        return len(waited) == 3

    with pytest.raises(block_dedup.Stopped):
        share(image, base, wait_s=wait_s)
    assert len(waited) == 3


def test_holes_are_skipped(store, monkeypatch):
    image, base = store / "image", store / "base"
    for path in (image, base):
        with path.open("wb") as file:
            file.truncate(1 << 40)
            file.seek(1 << 39)
            file.write(b"x" * MIB)
    assert share(image, base) == MIB


def test_io_error_of_the_disk_is_reported(store, monkeypatch):
    image, base, _data = pair(store)

    def fail(*_args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(block_dedup, "_share_one", fail)
    with pytest.raises(errors.Unusable, match="Input/output error"):
        share(image, base)
