# SPDX-License-Identifier: Apache-2.0
"""An image passes acstor's inspection only if it passes Glance's."""

import struct

import pytest

from acstor_glance.prepare import format_check
from tests.fakes import qcow2_files
from tests.outside import glance_inspection

LINUX = (0x80, 0, 2, 0, 0x83, 0, 3, 0, 1, 7)
GPT = (0, 0, 2, 0, 0xEE, 0, 0, 0, 1, 0)


def disk(*partitions: tuple[int, ...], behind: bytes = bytes(2048)) -> bytes:
    """Return a disk with an MBR."""
    table = b"".join(struct.pack("<8BII", *partition) for partition in partitions)
    return bytes(446) + table.ljust(64, b"\0") + b"\x55\xaa" + behind


ISO = bytes(32768) + b"\1CD001" + bytes(4096)
FINE = {
    "nothing": bytes(4096),
    "short": b"x",
    "MBR": disk(LINUX),
    "two partitions": disk(LINUX, LINUX),
    "GPT": disk(GPT),
    "ISO": ISO,
    "ISO that boots": disk(behind=ISO[512:]),
    "qcow2": qcow2_files.File().pack(),
}
UNSAFE = {
    "no partition": disk(),
    "boot flag": disk((0x81, *LINUX[1:])),
    "GPT's start": disk((*GPT[:1], 0, 3, 0, *GPT[4:])),
    "GPT's first sector": disk((*GPT[:8], 2, 0)),
    "GPT beside others": disk(GPT, LINUX),
    "other features": qcow2_files.File(incompatible=1 << 40).pack(),
    "backing file": qcow2_files.File(backing_offset=200, backing_length=5).pack(),
    "ISO in a qcow2": qcow2_files.File().pack()[:4096] + ISO[4096:],
}


@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
@pytest.mark.parametrize("name", [*FINE, *UNSAFE])
def test_image_that_glance_refuses_is_refused(name: str, disk_format: str) -> None:
    head = (FINE | UNSAFE)[name]
    check = {"raw": format_check.why_not_raw, "qcow2": format_check.why_not_qcow2}[disk_format]
    is_refused = glance_inspection.is_head_refused(head, disk_format)
    assert bool(check(head)) or not is_refused
    assert is_refused or name in FINE


@pytest.mark.parametrize("name", [name for name in FINE if name != "qcow2"])
def test_disk_that_glance_accepts_as_raw_is_accepted(name: str) -> None:
    assert format_check.why_not_raw(FINE[name]) == ""


def test_unsafe_partition_table_is_named() -> None:
    assert format_check.why_not_raw(disk()) == (
        "its partition table is unsafe: GPT MBR has no partitions defined"
    )
