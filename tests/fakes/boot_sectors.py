# SPDX-License-Identifier: Apache-2.0
"""Hostile images: boot sectors in machine code for a 16-bit PC."""

import struct

SECTOR = 512
_AT = 0x7C00
_PACKET_AT = 0x7C80
_SECTORS_A_TURN = 64

HANG = bytes.fromhex("fa f4 eb fc")  # cli; again: hlt; jmp again
RESET = bytes.fromhex("b0 fe e6 64 eb fe")  # out 0x64, 0xfe: the keyboard controller's reset
FLOOD_CONSOLE = bytes.fromhex("ba f8 03 b0 78 ee eb fd")  # again: out 0x3f8, 'x'; jmp again


def _forever(command: bytes) -> bytes:
    """Return code that repeats a disk operation of 32 KiB at increasing offsets."""
    again = bytes.fromhex("be 80 7c") + command + bytes.fromhex("b2 80 cd 13")
    again += bytes.fromhex("83 06 88 7c 40 83 16 8a 7c 00")  # the packet's sector number += 64
    return bytes.fromhex("31 c0 8e d8") + again + b"\xeb" + struct.pack("b", -(len(again) + 2))


READ_FOREVER = _forever(bytes.fromhex("b4 42"))
WRITE_FOREVER = _forever(bytes.fromhex("b8 00 43"))
_PACKET = struct.pack("<BBHHHQ", 16, 0, _SECTORS_A_TURN, 0, 0x2000, 1)
# Glance refuses an image with a boot sector and no partition.
PARTITIONS = struct.pack("<8BII", 0x80, 0, 2, 0, 0x83, 0, 3, 0, 1, 7).ljust(64, b"\0")


def image(code: bytes, size_bytes: int) -> bytes:
    """Return an image that runs ``code``; all later sectors hold non-zero data."""
    sector = code.ljust(_PACKET_AT - _AT, b"\0") + _PACKET
    filler = b"".join(struct.pack("<I", n) * 128 for n in range(1, size_bytes // SECTOR))
    return sector.ljust(446, b"\0") + PARTITIONS + b"\x55\xaa" + filler
