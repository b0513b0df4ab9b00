# SPDX-License-Identifier: Apache-2.0
"""The NBD client: reads exports of qemu-nbd and refuses invalid servers."""

import contextlib
import os
import pathlib
import random
import shutil
import struct
import subprocess
import time

import pytest

from acstor_checkpoint.capture import nbd_client
from acstor_common import errors
from tests.fakes import nbd_server as fake

KIB = 1024
ZERO = 2
"""NBD_STATE_ZERO of ``base:allocation``."""
MIB = 1024 * KIB
ACCEPTING = "00010000"
"""The kernel's flag of a socket that listens (__SO_ACCEPTCON)."""
needs_qemu_nbd = pytest.mark.skipif(shutil.which("qemu-nbd") is None, reason="needs qemu-nbd")


def qemu_img(*words):
    subprocess.run(["qemu-img", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def shown(tmp_path, disk, size_bytes, *words):
    """Export a disk with qemu-nbd; yield the export."""
    path = tmp_path / "nbd.sock"
    argv = ["qemu-nbd", "-r", "-t", "-f", "qcow2", "-k", path, "-x", "vda", *words, disk]
    server = subprocess.Popen(argv)
    try:
        end = time.monotonic() + 20.0
        while not is_listened_at(path) and time.monotonic() < end:
            assert server.poll() is None
            time.sleep(0.01)
        yield nbd_client.Export(str(path), "vda", server.pid, size_bytes)
    finally:
        server.kill()  # on SIGTERM it may wait for refused clients
        server.wait(20.0)


def is_listened_at(path):
    """Return whether a process listens; the socket file exists earlier."""
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
    return any(line.endswith(f" {path}") and line.split()[3] == ACCEPTING for line in lines)


def read(disk, at, length):
    data = bytearray(length)
    disk.read_into(memoryview(data), at)
    return bytes(data)


@needs_qemu_nbd
def test_bytes_and_allocation_are_read_from_qemu_nbd(tmp_path):
    rng = random.Random(1)
    wanted = bytearray(8 * MIB)
    raw, disk = tmp_path / "raw", tmp_path / "disk"
    for at in (0, 3 * MIB, 8 * MIB - 64 * KIB):
        wanted[at : at + 64 * KIB] = rng.randbytes(64 * KIB)
    raw.write_bytes(wanted)
    qemu_img("convert", "-O", "qcow2", raw, disk)
    with (
        shown(tmp_path, disk, len(wanted)) as export,
        nbd_client.ExportedDisk(export, nbd_client.ALLOCATION, 20.0) as shown_disk,
    ):
        assert shown_disk.size_bytes == len(wanted)
        extents = list(shown_disk.iter_extents())
        for at in range(0, len(wanted), MIB):
            assert read(shown_disk, at, MIB) == wanted[at : at + MIB]
        assert read(shown_disk, 3 * MIB + 1, 7) == wanted[3 * MIB + 1 : 3 * MIB + 8]
    assert [(e.at, e.length) for e in extents if not e.flags & ZERO] == [
        (0, 64 * KIB),
        (3 * MIB, 64 * KIB),
        (8 * MIB - 64 * KIB, 64 * KIB),
    ]
    assert sum(extent.length for extent in extents) == len(wanted)


@needs_qemu_nbd
def test_bitmap_marks_written_ranges(tmp_path):
    disk = tmp_path / "disk"
    qemu_img("create", "-f", "qcow2", disk, "3G")
    qemu_img("bitmap", "--add", disk, "since")
    for write in ("write 64k 100", "write 2G 128k"):
        subprocess.run(["qemu-io", "-c", write, disk], check=True, stdout=subprocess.DEVNULL)
    with (
        shown(tmp_path, disk, 3 * KIB * MIB, "-B", "since") as export,
        nbd_client.ExportedDisk(export, "qemu:dirty-bitmap:since", 20.0) as shown_disk,
    ):
        dirty = [(e.at, e.length) for e in shown_disk.iter_extents() if e.flags & nbd_client.DIRTY]
    assert dirty == [(64 * KIB, 64 * KIB), (2048 * MIB, 128 * KIB)]


@needs_qemu_nbd
def test_missing_exports_bitmaps_and_sockets_are_named(tmp_path):
    disk = tmp_path / "disk"
    qemu_img("create", "-f", "qcow2", disk, "1M")
    with shown(tmp_path, disk, MIB) as export:
        with pytest.raises(errors.Unusable, match="vdb"):
            nbd_client.ExportedDisk(export._replace(name="vdb"), nbd_client.ALLOCATION, 20.0)
        with pytest.raises(errors.Unusable, match="does not support qemu:dirty-bitmap:since"):
            nbd_client.ExportedDisk(export, "qemu:dirty-bitmap:since", 20.0)
        with nbd_client.ExportedDisk(export, nbd_client.ALLOCATION, 20.0) as shown_disk:
            for at, length in ((MIB, 1), (-1, 1), (0, 2 * MIB)):
                with pytest.raises(ValueError, match="cannot be requested"):
                    read(shown_disk, at, length)
    with pytest.raises(errors.Unusable, match="No such file"):
        nbd_client.ExportedDisk(
            nbd_client.Export(str(tmp_path / "none"), "vda", 1, MIB), nbd_client.ALLOCATION, 20.0
        )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request", "not a server of the fixed newstyle"),
        (struct.pack(">8s8sH", b"NBDMAGIC", b"IHAVEOPT", 0), "not a server of the fixed newstyle"),
        (
            fake.GREETING + fake.option(1 << 31 | 1, b"no", 8),
            "STRUCTURED_REPLY was refused: no",
        ),
        (fake.GREETING + fake.option(1, number=9), "no reply to option"),
        (
            fake.GREETING + struct.pack(">QIII", 0x3E889045565A9, 8, 3, 1 << 30),
            "no reply to option",
        ),
        (fake.GREETING + fake.option(3, number=8) * 16, "too many replies"),
        (
            fake.GREETING + fake.option(1, number=8) + fake.option(1, number=10),
            "does not support base:allocation",
        ),
        (
            fake.AGREED[: -len(fake.option(1)) * 2 - 12] + fake.option(1, number=7),
            "the size of the export",
        ),
    ],
)
def test_invalid_negotiation_is_refused(tmp_path, said, why):
    with fake.saying(tmp_path, said) as export, pytest.raises(errors.Unusable, match=why):
        nbd_client.ExportedDisk(export, nbd_client.ALLOCATION, 1.0)


DATA = struct.pack(">Q", 0) + bytes(512)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (fake.reply(1, DATA, cookie=2), "a reply to another request"),
        (fake.reply(1, DATA, magic=0x67446698), "a reply to another request"),
        (fake.reply(1, DATA + b"+"), "bytes that were not requested"),
        (fake.reply(1, struct.pack(">Q", 512) + b"+"), "bytes that were not requested"),
        (fake.reply(2, struct.pack(">QI", 0, 1 << 31)), "bytes that were not requested"),
        (fake.reply(2, b"+"), "type 2 and 1 bytes"),
        (fake.reply(1, DATA[:-1]), "511 bytes arrived of 512"),
        (fake.reply(0), "0 bytes arrived of 512"),
        (fake.reply(5, bytes(12)), "type 5"),
        (fake.reply(0, flags=0) * 2000, "an empty reply"),
        (fake.reply(0, b"+"), "an empty reply"),
        (fake.reply(2, struct.pack(">QI", 0, 0), flags=0) * 2000, "of no bytes"),
        (fake.reply(1, DATA, flags=0) * 2000, "or of more than were requested"),
        (fake.reply(0x8001, struct.pack(">IH", 5, 3) + b"bad"), "error 5 bad"),
        (fake.reply(0x8001, b""), "an error reply of 0 bytes"),
        (b"", "no reply in 0.5 s"),
    ],
)
def test_unrequested_or_incomplete_data_is_refused(tmp_path, said, why):
    with (
        fake.saying(tmp_path, fake.AGREED + said) as export,
        nbd_client.ExportedDisk(export, nbd_client.ALLOCATION, 0.5) as disk,
        pytest.raises(errors.Unusable, match=why),
    ):
        read(disk, 0, 512)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (fake.reply(5, struct.pack(">III", 8, 512, 0)), "a context that was not requested"),
        (fake.reply(5, struct.pack(">III", 7, 0, 0)), "no block status at 0"),
        (fake.reply(5, struct.pack(">I", 7)), "a block status of 4 bytes"),
        (fake.reply(1, DATA), "type 1"),
        (fake.reply(5, struct.pack(">III", 7, 1, 0), flags=0) * 2, "type 5"),
    ],
)
def test_invalid_block_status_is_refused(tmp_path, said, why):
    with (
        fake.saying(tmp_path, fake.AGREED + said) as export,
        nbd_client.ExportedDisk(export, nbd_client.ALLOCATION, 1.0) as disk,
        pytest.raises(errors.Unusable, match=why),
    ):
        list(disk.iter_extents())


def test_export_of_another_process_is_refused(tmp_path):
    with (
        fake.saying(tmp_path, fake.AGREED) as export,
        pytest.raises(errors.Unusable, match=f"process {os.getpid()} listens there, .* process 1$"),
    ):
        nbd_client.ExportedDisk(export._replace(pid=1), nbd_client.ALLOCATION, 1.0)


@pytest.mark.parametrize("size_bytes", [1 << 57, MIB - 1])
def test_export_with_another_size_than_libvirts_is_refused(tmp_path, size_bytes):
    with (
        fake.saying(tmp_path, fake.AGREED) as export,
        pytest.raises(errors.Unusable, match="it exports 1048576"),
    ):
        nbd_client.ExportedDisk(export._replace(size_bytes=size_bytes), nbd_client.ALLOCATION, 1.0)


def test_number_of_block_status_replies_is_bounded(tmp_path):
    """Replies of the largest length, each in time: their number is bounded by the disk's size."""
    body = struct.pack(">I", 7) + struct.pack(">II", 1, 1) * nbd_client._MAX_EXTENTS
    answers = []

    def status(cookie, _at, _length):
        answers.append(cookie)
        return fake.reply(5, body, cookie)

    with (
        fake.telling(tmp_path, 8 << 30, status) as export,
        nbd_client.ExportedDisk(export, nbd_client.ALLOCATION, 20.0) as disk,
        pytest.raises(errors.Unusable, match="no block status at"),
    ):
        for _ in disk.iter_extents():
            pass
    assert len(answers) == 2 * 8 + nbd_client._MORE_ANSWERS


def test_all_block_status_replies_share_a_deadline(tmp_path):
    def status(cookie, _at, length):
        time.sleep(0.3)
        return fake.reply(5, struct.pack(">III", 7, length, 0), cookie)

    began_s = time.monotonic()
    with (
        fake.telling(tmp_path, 16 << 30, status) as export,
        nbd_client.ExportedDisk(export, nbd_client.ALLOCATION, 1.0) as disk,
        pytest.raises(errors.Unusable, match="no reply in"),
    ):
        list(disk.iter_extents())
    assert time.monotonic() - began_s < 1.0 + 16 * nbd_client._ANSWER_S + 0.5
