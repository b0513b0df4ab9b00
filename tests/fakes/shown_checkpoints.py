# SPDX-License-Identifier: Apache-2.0
"""The content of a disk that an agent restored, read by the library alone."""

from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2
from tests.fakes import qcow2_files


def over(raw: bytes, image: bytes) -> bytes:
    """Return the disk of a qcow2 file over its backing image."""
    file = qcow2.Qcow2(qcow2_files.Bytes(raw), may_have_backing=True)
    disk = bytearray(image.ljust(file.virtual_size, b"\0"))
    for at, length, kind in file.iter_changes():
        part = bytearray(length)
        if kind is disk_delta.ExtentKind.DATA:
            file.read_into(memoryview(part), at)
        disk[at : at + length] = part
    return bytes(disk)
