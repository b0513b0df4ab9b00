# SPDX-License-Identifier: Apache-2.0
"""Undoes the codecs of a layout: from the stored bytes of an extent to what the guest reads.

The one rule: never more than ``length`` bytes come out, whatever the stored bytes say of
themselves, and what is held meanwhile is bounded as well.

Both libraries let go of the interpreter's lock, so threads decode side by side.
"""

import threading
import zlib

import zstandard

from acstor_common import geometry
from acstor_common import layout

MAX_WINDOW_BYTES = 8 * geometry.MIB
"""What a zstd frame may ask to be held: what RFC 8878 advises, four times the largest cluster."""

_WIDEST_WINDOW = -15  # raw; wider than QEMU writes, since QEMU reads such streams too

Buffer = bytes | bytearray | memoryview


class CodecError(Exception):
    """The stored bytes are not the codec's, or stand for fewer guest bytes than are wanted."""


class _OfThread(threading.local):
    """A decompressor for each thread: making one takes as long as a small cluster."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)


_of_thread = _OfThread()


def decode(codec: layout.Codec, stored: Buffer, length: int) -> Buffer:
    """Return the first ``length`` bytes that ``stored`` stands for; what follows is not looked at.

    :raises CodecError: there are not so many, or the bytes are not the codec's
    """
    if codec is layout.Codec.STORED:
        decoded: Buffer = stored[:length]
    elif codec is layout.Codec.DEFLATE:
        decoded = _inflated(stored, length)
    else:
        decoded = _unzstd(stored, length)
    if len(decoded) != length:
        raise CodecError(f"{len(decoded)} bytes instead of {length}")
    return decoded


def _inflated(stored: Buffer, length: int) -> bytes:
    if not length:
        return b""  # to zlib 0 means without a limit
    try:
        return zlib.decompressobj(_WIDEST_WINDOW).decompress(stored, length)
    except zlib.error as exc:
        raise CodecError(str(exc)) from exc


def _unzstd(stored: Buffer, length: int) -> Buffer:
    try:
        if zstandard.frame_content_size(stored) == length:
            return _of_thread.zstd.decompress(stored)
        decoded = bytearray(length)
        with _of_thread.zstd.stream_reader(stored) as reader:
            count = reader.readinto(decoded)
    except zstandard.ZstdError as exc:
        raise CodecError(str(exc)) from exc
    return memoryview(decoded)[:count]
