# SPDX-License-Identifier: Apache-2.0
"""What an agent has written down of disks of checkpoints, read by the checkpoint daemon."""

import subprocess
import uuid

import pytest

from acstor_agent.core.disks import disk_header
from acstor_agent.core.disks import recovery
from acstor_checkpoint import recovered
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids

CHUNK = geometry.DEFAULT_CHUNK_BYTES
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
DISK = disk_header.parse_disk_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")


def keep(folder, key=b"", marks=(2, 3, 9)):
    """Write down what an agent does of a disk."""
    disks = folder / "disks"
    disks.mkdir(exist_ok=True)
    of = recovery.made(
        checkpoint_id=DISK,
        instance_id=str(uuid.UUID(int=5)),
        image_id=IMAGE,
        owner="h1",
        vault_disk=str(uuid.UUID(int=6)),
        manifest_name="ab" * 32,
        holders=[],
        key=key.hex(),
    )
    (disks / f"{DISK}.acrecovery").write_bytes(recovery.pack(of))
    header = disk_header.DiskHeader(DISK, IMAGE, geometry.Geometry(10 * CHUNK, CHUNK), CHUNK)
    raw = bytearray(disk_header.pack(header, bytes(16)) + bytes(10))
    for chunk_no in marks:
        raw[disk_header.AT_MARKS + chunk_no] = disk_header.WRITTEN
    (disks / f"{DISK}.acdisk").write_bytes(raw)
    return recovered.Recovered(folder)


def test_disk_has_what_is_marked(tmp_path):
    of = keep(tmp_path)
    assert of.image_of(DISK) == IMAGE
    assert list(of.ranges(DISK)) == [(n * CHUNK, CHUNK) for n in (2, 3, 9)]


def test_disk_that_lacks_chunks_gives_no_checkpoint(tmp_path):
    of = keep(tmp_path, key=b"k" * 32)
    assert of.image_of(DISK) == IMAGE
    with pytest.raises(errors.Unusable, match="not all of that checkpoint"):
        list(of.ranges(DISK))


@pytest.mark.parametrize("ending", ["acdisk", "acrecovery"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 5000, b"{}"])
def test_damaged_files_are_refused(tmp_path, ending, damage):
    of = keep(tmp_path)
    (tmp_path / f"disks/{DISK}.{ending}").write_bytes(damage)
    with pytest.raises(errors.Unusable):
        list(of.ranges(DISK))


def test_disk_that_is_not_there_is_of_no_image(tmp_path):
    of = recovered.Recovered(tmp_path)
    assert of.image_of(DISK) is None
    with pytest.raises(errors.Unusable):
        list(of.ranges(DISK))


def test_overlay_of_a_recovered_server_is_one_of_its_image(tmp_path):
    keep(tmp_path)
    bases = recovered.Bases("/mirror", tmp_path)
    path = str(tmp_path / "disk")
    create = ["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b"]
    for backing, image, ranges in (
        (f"/mirror/disks/{DISK}.raw", IMAGE, 3),
        (f"/mirror/disks/{IMAGE}.raw", None, None),
        (f"/elsewhere/disks/{DISK}.raw", None, 0),
    ):
        subprocess.run([*create, backing, path, "1M"], check=True)
        assert bases.base_of(path) == image
        if ranges is not None:
            assert len(list(bases.beneath(path))) == ranges
