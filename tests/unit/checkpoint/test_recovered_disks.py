# SPDX-License-Identifier: Apache-2.0
"""Restore records that an agent writes, as the checkpoint daemon reads them."""

import os
import subprocess
import uuid

import pytest

from acstor_agent.core.disks import disk_header
from acstor_agent.core.disks import restore_record
from acstor_checkpoint.restore import recovered_disks
from acstor_common import errors
from acstor_common.disks import recovery_marker
from acstor_common.model import ids

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
DISK = disk_header.parse_disk_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
CREATE = ["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b"]


def keep(folder, key=b"", backing="/"):
    """Write a restore record and its disk as an agent does."""
    disks = folder / "disks"
    disks.mkdir(exist_ok=True)
    of = restore_record.restore_record_of(
        checkpoint_id=DISK,
        instance_id=str(uuid.UUID(int=5)),
        image_id=IMAGE,
        owner="h1",
        vault_disk=str(uuid.UUID(int=6)),
        manifest_name="ab" * 32,
        holders=[],
        key=key.hex(),
    )
    (disks / f"{DISK}.acrecovery").write_bytes(restore_record.pack(of))
    made = recovered_disks.RecoveredDisks(folder)
    subprocess.run([*CREATE, str(backing), made.checkpoint_path(DISK), "1M"], check=True)
    return made


def test_disk_is_incomplete_while_its_record_has_a_key(tmp_path):
    assert not keep(tmp_path, key=b"k" * 32).is_complete(DISK)
    assert keep(tmp_path).is_complete(DISK)


@pytest.mark.parametrize("damage", [b"", b"\0" * 5000, b"{}", b'{"version": 1}'])
def test_damaged_restore_record_is_refused(tmp_path, damage):
    of = keep(tmp_path)
    (tmp_path / f"disks/{DISK}.acrecovery").write_bytes(damage)
    with pytest.raises(errors.Unusable):
        of.is_complete(DISK)


def test_record_of_another_version_is_incomplete(tmp_path):
    of = keep(tmp_path)
    said = b'{"version": 2, "instance_id": "", "key": ""}'
    (tmp_path / f"disks/{DISK}.acrecovery").write_bytes(said)
    assert not of.is_complete(DISK)


def test_recovered_disk_belongs_to_one_server(tmp_path):
    of = keep(tmp_path)
    of.check_server(DISK, str(uuid.UUID(int=5)))
    with pytest.raises(errors.Unusable, match="it does not belong to server"):
        of.check_server(DISK, str(uuid.UUID(int=6)))


def test_missing_disk_is_refused(tmp_path):
    of = recovered_disks.RecoveredDisks(tmp_path)
    for ask in (of.is_complete, of.base_path):
        with pytest.raises(errors.Unusable):
            ask(DISK)


def test_backing_path_is_read_without_following_links(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/mirror/that/may/not/answer")
    assert keep(tmp_path, backing=link).base_path(DISK) == str(link)


@pytest.mark.parametrize("backing", ["/none", "relative"])
def test_invalid_backing_path_is_refused(tmp_path, backing):
    with pytest.raises(errors.Unusable, match="its backing file"):
        keep(tmp_path, backing=backing).base_path(DISK)


def test_overlay_is_on_a_mirror_or_on_a_checkpoint(tmp_path):
    bases = recovered_disks.BackingImages("/mirror/")
    path = str(tmp_path / "disk")
    link = tmp_path / "link"
    link.symlink_to(f"/mirror/images/{IMAGE}.raw")
    for backing, image, checkpoint in (
        (link, IMAGE, None),
        (f"/mirror/disks/{DISK}.qcow2", None, DISK),
        (f"/mirror/disks/{DISK}.raw", None, None),
        (f"/elsewhere/disks/{DISK}.qcow2", None, None),
    ):
        subprocess.run([*CREATE, backing, path, "1M"], check=True)
        assert (bases.image_of(path), bases.checkpoint_of(path)) == (image, checkpoint)


def test_marked_overlay_belongs_to_its_checkpoint_and_no_image(tmp_path):
    bases = recovered_disks.BackingImages("/mirror/")
    path = str(tmp_path / "disk")
    link = tmp_path / "link"
    link.symlink_to(f"/mirror/images/{IMAGE}.raw")
    subprocess.run([*CREATE, link, path, "1M"], check=True)
    recovery_marker.write(path, DISK)
    assert (bases.image_of(path), bases.checkpoint_of(path)) == (None, DISK)
    assert not bases.is_backed_by_checkpoint(path)
    recovery_marker.remove(path)
    recovery_marker.remove(path)
    assert (bases.image_of(path), bases.checkpoint_of(path)) == (IMAGE, None)


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_mark_that_is_no_regular_file_is_not_read(tmp_path, kind):
    """The directory belongs to Nova; root reads in it."""
    mark = tmp_path / f"disk{recovery_marker.ENDING}"
    if kind == "link":
        (tmp_path / "another").write_text(DISK)
        mark.symlink_to(tmp_path / "another")
    else:
        os.mkfifo(mark)
    with pytest.raises(OSError):
        recovery_marker.read(str(tmp_path / "disk"))


@pytest.mark.expect_log("is damaged or cannot be read")
@pytest.mark.parametrize("damage", [b"", b"\0" * 36, b"\xff", DISK[:-1].encode()])
def test_overlay_with_a_damaged_mark_has_no_image_and_is_logged_once(tmp_path, caplog, damage):
    bases = recovered_disks.BackingImages("/mirror/")
    path = str(tmp_path / "disk")
    link = tmp_path / "link"
    link.symlink_to(f"/mirror/images/{IMAGE}.raw")
    subprocess.run([*CREATE, link, path, "1M"], check=True)
    mark = tmp_path / f"disk{recovery_marker.ENDING}"
    mark.write_bytes(damage)
    for _ in range(3):
        assert bases.image_of(path) is None
    assert caplog.text.count("is damaged or cannot be read") == 1
    recovery_marker.write(path, DISK)
    assert bases.image_of(path) is None
    recovery_marker.remove(path)
    assert bases.image_of(path) == IMAGE
    mark.mkdir()  # unreadable
    assert bases.image_of(path) is None
    assert caplog.text.count("is damaged or cannot be read") == 2


@pytest.mark.parametrize(
    ("has", "wanted", "is_copied_into"),
    [
        ([], [], True),
        ([(3, 1)], [], True),
        ([], [(3, 1)], False),
        ([(3, 1)], [(3, 1)], True),
        ([(1, 4), (9, 2)], [(2, 1), (4, 1), (9, 2)], True),
        ([(1, 2), (3, 2)], [(1, 4)], True),
        ([(1, 2), (4, 2)], [(1, 4)], False),
        ([(1, 2)], [(0, 2)], False),
        ([(1, 2)], [(1, 3)], False),
        ([(0, 2), (6, 3)], [(0, 1), (5, 2)], False),
        ([(0, 2)], [(0, 1), (5, 2)], False),
    ],
)
def test_overlay_contains_all_ranges_of_a_checkpoint_or_not(tmp_path, has, wanted, is_copied_into):
    base = tmp_path / "base"
    base.write_bytes(bytes(1 << 20))
    of = keep(tmp_path, backing=base)
    path = tmp_path / "disk"
    subprocess.run([*CREATE, base, path, "1M"], check=True)
    for file, runs in ((path, has), (of.checkpoint_path(DISK), wanted)):
        for at, length in runs:
            how = f"write {at * 65536} {length * 65536}"
            subprocess.run(["qemu-io", "-f", "qcow2", "-c", how, file], check=True)
    assert of.is_copied_into(str(path), DISK) is is_copied_into
