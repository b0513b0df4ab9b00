# SPDX-License-Identifier: Apache-2.0
"""Snapshots of disks on a real mirror: the bytes are right, and no zero is read."""

import random
import shutil
import subprocess
import types

import pytest

from acstor_common.model import geometry
from acstor_nova import agent_client
from acstor_nova.snapshots import sparse_snapshot
from tests.fakes import hosts

KIB, MIB = geometry.KIB, geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img"),
]


def as_nova_does(disk_path, source_fmt, out_path, dest_fmt):
    command = ["qemu-img", "convert", "-t", "none", "-O", dest_fmt, "-f", source_fmt]
    subprocess.run([*command, disk_path, out_path], check=True)


def fail(image_id, reason, why):
    raise AssertionError(f"image {image_id}: {reason}: {why}")


def read_by_origin(agent, image_id):
    read = agent.status()["images"][image_id]["read"]
    return {origin: counted["bytes"] for origin, counted in read.items()}


@pytest.mark.parametrize("chunk_bytes", [16 * KIB, CHUNK, 4 * MIB])
@pytest.mark.parametrize("dest_fmt", ["raw", "qcow2"])
def test_snapshot_equals_the_disk_and_reads_no_zeros(
    tmp_path, images, start, chunk_bytes, dest_fmt
):
    """The image ends within a sector, and the disk is longer."""
    rng = random.Random(chunk_bytes)
    wanted = bytearray(8 * 4 * MIB + 4 * MIB)
    for at in range(0, 8 * 4 * MIB, 8 * MIB):
        wanted[at : at + 4 * MIB] = rng.randbytes(4 * MIB)
    end = 8 * 4 * MIB - 4 * MIB - 77
    image_id = images.add(bytes(wanted[:end]), chunk_bytes=chunk_bytes)
    wanted[end:] = bytes(len(wanted) - end)
    agent = start()
    link, disk = tmp_path / "base", tmp_path / "disk"
    link.symlink_to(agent.image_path(image_id))
    size = str(len(wanted))
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", link, disk, size], check=True
    )
    for offset, fill in ((3 * MIB + 512, 7), (6 * MIB, 8), (35 * MIB, 9)):  # data, zeros, past it
        write = f"write -P {fill} {offset} 100k"
        subprocess.run(["qemu-io", "-c", write, disk], check=True, stdout=subprocess.DEVNULL)
        wanted[offset : offset + 100 * KIB] = bytes([fill]) * (100 * KIB)
    before = read_by_origin(agent, image_id)
    client = agent_client.AgentClient(str(agent.control_socket), 20.0)
    host = types.SimpleNamespace(agent=client, record_fallback=fail)
    sparse_snapshot.extract_image(
        host, as_nova_does, str(disk), "qcow2", str(tmp_path / "out"), dest_fmt
    )
    read = read_by_origin(agent, image_id)
    assert read["zero"] == before["zero"]
    assert sum(read.values()) - sum(before.values()) <= 16 * MIB + chunk_bytes
    flat = tmp_path / "flat"
    as_nova_does(str(tmp_path / "out"), dest_fmt, str(flat), "raw")
    assert flat.read_bytes() == wanted
