# SPDX-License-Identifier: Apache-2.0
"""The delta stream of a disk: base and delta give back the disk."""

import random
import subprocess

import pytest

from acstor_common import errors
from acstor_common.disks import disk_delta
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_nova import agent_client
from acstor_nova.snapshots import delta_stream

KIB, MIB = geometry.KIB, geometry.MIB
CHUNK = 64 * KIB
BASE_BYTES, DISK_BYTES = 4 * MIB - 77, 6 * MIB
BASE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OS_HASH = chunk_map.OsHash("sha512", bytes(range(64)))


class Disk:
    """A disk on an image that has zeros from 1 MiB to 3 MiB."""

    def __init__(self, folder):
        self.base, self.path = folder / "base", folder / "disk"
        content = bytearray(random.Random(1).randbytes(BASE_BYTES))
        content[MIB : 3 * MIB] = bytes(2 * MIB)
        self.base.write_bytes(content)
        size = ["-F", "raw", "-b", str(self.base), str(self.path), str(DISK_BYTES)]
        run("qemu-img", "create", "-q", "-f", "qcow2", *size)

    def write(self, *commands):
        words = [word for command in commands for word in ("-c", command)]
        run("qemu-io", "-f", "qcow2", *words, str(self.path))

    @property
    def zeros(self):
        cut = geometry.Geometry(BASE_BYTES, CHUNK)
        bits = bytearray(-(-cut.chunk_count // 8))
        for chunk_no in range(MIB // CHUNK, 3 * MIB // CHUNK):
            bits[chunk_no // 8] |= 1 << chunk_no % 8
        return agent_client.ZeroMap(cut, bytes(bits), OS_HASH)

    def sent(self):
        with self.path.open("rb") as file:
            opened = delta_stream.open_disk(file)
            body = delta_stream.DeltaBody(opened, BASE, self.zeros)
            raw = b"".join(body)
        assert len(raw) == len(body)
        return raw

    def flat(self):
        out = self.path.with_suffix(".raw")
        run("qemu-img", "convert", "-O", "raw", str(self.path), str(out))
        return out.read_bytes()


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)


def composed(base, raw):
    """Apply a delta like the gateway; return the table and the disk."""
    reader, at = disk_delta.Reader("test"), disk_delta.HEADER_BYTES
    head = reader.read_head(raw[:at])
    assert (head.base, head.os_hash) == (BASE, OS_HASH)
    table = reader.read_table(raw[at : at + head.table_bytes])
    at += head.table_bytes
    made = bytearray(base.ljust(head.virtual_size, b"\0"))
    for change in table:
        if change.kind is disk_delta.ExtentKind.DATA:
            made[change.at : change.stop] = raw[at : at + change.length]
            reader.hash_data(raw[at : at + change.length])
            at += change.length
        else:
            made[change.at : change.stop] = bytes(change.length)
    reader.verify_trailer(raw[at:])
    return list(table), bytes(made)


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def test_delta_and_base_give_the_disk(disk):
    disk.write(
        "write -P 1 512 100k",  # within clusters, so the rest of them is copied
        "write -P 2 1M 64k",  # into the image's zeros
        "write -P 0 2M 128k",
        f"write -z {5 * MIB // 2} 192k",
        "write -z 256k 64k",
        f"write -P 3 {BASE_BYTES // CHUNK * CHUNK} 64k",  # where the image ends
        f"write -P 4 {DISK_BYTES - 512} 512",
        "write -P 0 0 4k",
    )
    table, made = composed(disk.base.read_bytes(), disk.sent())
    assert made == disk.flat()
    data_bytes = sum(change.length for change in table if change.kind is disk_delta.ExtentKind.DATA)
    assert data_bytes == 5 * CHUNK, "what was written, in clusters; no zeros"


def test_zeros_of_the_image_are_sent_as_ranges_only(disk):
    raw = disk.sent()
    table, made = composed(disk.base.read_bytes(), raw)
    assert table == [disk_delta.Extent(MIB, 2 * MIB, disk_delta.ExtentKind.ZERO)]
    assert made == disk.flat() and len(raw) < 1000


def test_delta_of_random_writes_gives_the_disk(disk):
    rng = random.Random(2)
    for _ in range(12):
        at = rng.randrange(DISK_BYTES // 512) * 512
        length = min(rng.choice([512, 4 * KIB, 200 * KIB]), DISK_BYTES - at)
        disk.write(f"write {rng.choice(['-z', '-P 0', '-P 7', '-P 9'])} {at} {length}")
    table, made = composed(disk.base.read_bytes(), disk.sent())
    assert made == disk.flat()
    assert list(disk_delta.merge_adjacent(table)) == table


def test_disk_truncated_during_the_upload_is_an_error(disk):
    disk.write("write -P 1 0 3M")
    with disk.path.open("rb") as file:
        body = delta_stream.DeltaBody(delta_stream.open_disk(file), BASE, disk.zeros)
        pieces = iter(body)
        next(pieces)
        with disk.path.open("r+b") as other:
            other.truncate(MIB)
        with pytest.raises(errors.Unusable, match="its file is too short"):
            list(pieces)


def test_disk_with_an_external_data_file_is_refused(disk):
    outside = f"data_file={disk.path}.data,backing_file={disk.base},backing_fmt=raw"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-o", outside, str(disk.path), "6M")
    with pytest.raises(errors.Unusable, match="external data file"):
        disk.sent()


def test_progress_is_logged_at_intervals(caplog):
    caplog.set_level("INFO")
    moments = iter([0.0, 1.0, 31.0, 32.0])
    assert list(delta_stream._log_progress([b"1"] * 3, 3, lambda: next(moments))) == [b"1"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 3 bytes of the delta are sent"
    ]
