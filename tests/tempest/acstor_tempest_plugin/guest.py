# SPDX-License-Identifier: Apache-2.0
"""A guest of 127 bytes that counts its boots on its disk and prints what it reads.

A boot sector in the machine code of a 16-bit PC replaces an operating system, so that a server is
up within a second of processor time, without network and login.  It adds one to a counter on the
disk, reads it back, reads one sector of each MiB, and writes lines of a letter and four hexadecimal
digits on the first serial port: ``B`` the number of boots of this disk, ``S`` the sum of a sector's
words, ``R`` at the end.  It stops at a disk error.

All output derives from the disk, so it is right only if the bytes were right.
"""

import random
import re
import struct
import uuid

SECTOR_BYTES = 512
MIB = 1 << 20
DONE = re.compile(r"^R[0-9A-F]{4}\s*$", re.MULTILINE)
_COUNTER_SECTOR = 1
_SECTORS_READ = 15  # one of each MiB after the first
_CODE = bytes.fromhex(
    "31c0 8ed8 8ed0 bc007c fc"  # data and stack segment 0, stack below the code
    "e84200 ff060080 b80043 e83a00 e83500"  # read the counter, add one, write it, read it again
    "b042 e83c00 b90f00"  # line B; 15 times:
    "8106887d0008 51 e82300 59 51"  # the packet's sector += 2048; read it
    "31db b90001 be0080 ad 01c3 e2fb 891e0080"  # add its 256 words
    "b053 e81700 59 e2db"  # line S
    "b052 e80f00 f4 ebfd"  # line R; halt for ever
    "b442 be807d b280 cd13 72f2 c3"  # a sector of the first disk by the packet; halt on an error
    "e81c00 8b1e0080 b104"  # write a letter, then four digits of the word that was read
    "c1c304 88d8 240f 0490 27 1440 27 e80600 fec9 75ec"
    "b00a baf803 ee c3"  # end the line; write a character on COM1
)
_PARTITION_AT = 446
_OTHER_DATA = 0xDA  # type of the only partition; without one Glance refuses a boot sector
_PACKET_AT = 0x180
_PACKET = struct.pack("<BBHHHQ", 16, 0, 1, 0x8000, 0, _COUNTER_SECTOR)


def image(size_bytes: int, seed: int) -> bytes:
    """Return a bootable raw image; all bytes outside of the guest are noise from ``seed``.

    :param size_bytes: at least 16 MiB
    """
    sector = (_CODE.ljust(_PACKET_AT, b"\0") + _PACKET).ljust(_PARTITION_AT, b"\0")
    sectors = size_bytes // SECTOR_BYTES
    sector += struct.pack("<B3xB3xII", 0x80, _OTHER_DATA, 1, sectors - 1)
    boot = sector.ljust(SECTOR_BYTES - 2, b"\0") + b"\x55\xaa" + bytes(SECTOR_BYTES)
    return boot + random.Random(seed).randbytes(size_bytes - len(boot))


def boots(disk: bytes) -> int:
    """Return how often a disk was booted."""
    at = _COUNTER_SECTOR * SECTOR_BYTES
    return int.from_bytes(disk[at : at + 2], "little")


def booted(disk: bytes, times: int) -> bytes:
    """Return the disk after ``times`` more boots."""
    at = _COUNTER_SECTOR * SECTOR_BYTES
    return disk[:at] + struct.pack("<H", boots(disk) + times) + disk[at + 2 :]


def says(disk: bytes) -> list[str]:
    """Return the console lines of a boot that leaves the disk like this."""
    lines = [f"B{boots(disk):04X}"]
    for mib in range(1, _SECTORS_READ + 1):
        at = mib * MIB + _COUNTER_SECTOR * SECTOR_BYTES
        words = struct.unpack("<256H", disk[at : at + SECTOR_BYTES])
        lines.append(f"S{sum(words) & 0xFFFF:04X}")
    return lines


def qcow2(disk: bytes) -> bytes:
    """Return a disk as an image of qcow2, version 2, without holes.

    :param disk: whole clusters of 64 KiB, at most 8192 of them
    """
    cluster, number = 1 << 16, len(disk) >> 16
    header = struct.pack(
        ">4sIQIIQIIQQIIQ",
        *(b"QFI\xfb", 2, 0, 0, 16, len(disk), 0, 1, 3 * cluster, cluster, 1, 0, 0),
    )
    is_only_use = 1 << 63
    tables = (
        header,
        struct.pack(">Q", 2 * cluster),  # offset of the reference counts
        struct.pack(">H", 1) * (5 + number),  # each cluster is used once
        struct.pack(">Q", 4 * cluster | is_only_use),  # offset of the table of clusters
        struct.pack(f">{number}Q", *((5 + n) * cluster | is_only_use for n in range(number))),
    )
    return b"".join(table.ljust(cluster, b"\0") for table in tables) + disk


def vdi(disk: bytes) -> bytes:
    """Return a disk as an image of VDI, version 1.1, without holes.

    :param disk: whole blocks of 1 MiB
    """
    number, header_bytes = len(disk) // MIB, 512
    map_bytes = -(-4 * number // SECTOR_BYTES) * SECTOR_BYTES
    header = struct.pack(
        "<64sIIIII256sIIIIIIIQIIII",
        *(b"<<< a disk >>>\n", 0xBEDA107F, 0x10001, 0x180, 2, 0, b""),
        *(header_bytes, header_bytes + map_bytes, 0, 0, 0, SECTOR_BYTES, 0),
        *(len(disk), MIB, 0, number, number),
    )
    header += uuid.uuid4().bytes + uuid.uuid4().bytes  # of the image, and of its last snapshot
    blocks = struct.pack(f"<{number}I", *range(number))
    return header.ljust(header_bytes, b"\0") + blocks.ljust(map_bytes, b"\0") + disk
