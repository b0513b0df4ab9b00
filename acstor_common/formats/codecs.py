# SPDX-License-Identifier: Apache-2.0
"""Undoes the codecs of a layout: from the stored bytes of an extent to what the guest reads.

Never more than ``length`` bytes come out, whatever the stored bytes say of themselves, and what is
held meanwhile is bounded as well.  The time is not: a stream may be long and make little, so
:func:`decode_steps` lets others have their turn.  :func:`decode` is for threads that have a budget:
steps cost it some per cent.

Both libraries let go of the interpreter's lock, so threads decode side by side.
"""

import threading
import zlib
from collections.abc import Generator

import zstandard

from acstor_common.formats import layout
from acstor_common.model import geometry

MAX_WINDOW_BYTES = 8 * geometry.MIB
"""What a zstd frame may ask to be held: what RFC 8878 advises, four times the largest cluster."""

STEP_STORED_BYTES = 32 * geometry.KIB
STEP_BYTES = 256 * geometry.KIB
"""What a step takes in and makes at most, in a few milliseconds of the slowest stream."""
ZSTD_BLOCK_BYTES = 128 * geometry.KIB
"""What a block of a zstd frame makes at most."""
_ZSTD_STEP_BYTES = geometry.MIB
"""What a step may make at the least: blocks may be short. What is too much is dropped."""
_ZSTD_FEW_BLOCKS = 16
_ZSTD_RUN, _ZSTD_COMPRESSED = 1, 2
_FAULTS = (zlib.error, zstandard.ZstdError)
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
    try:
        if codec is layout.Codec.STORED or not length:  # to zlib 0 means without a limit
            decoded: Buffer = stored[:length]
        elif codec is layout.Codec.DEFLATE:
            decoded = _inflated(stored, length)
        else:
            decoded = _unzstd(stored, length)
    except _FAULTS as exc:
        raise CodecError(str(exc)) from exc
    return _checked(decoded, length)


def decode_steps(codec: layout.Codec, stored: Buffer, length: int) -> Generator[int, None, Buffer]:
    """Do the same in steps of some milliseconds at most, whatever the bytes are.

    It may go on in another thread after each step.

    :return: the bytes; what is yielded is how many each step made
    :raises CodecError: as :func:`decode`
    """
    try:
        if _is_one_step(codec, stored, length):
            decoded = decode(codec, stored, length)
            yield len(decoded)
        elif codec is layout.Codec.DEFLATE:
            decoded = yield from _inflate_steps(memoryview(stored), length)
        else:
            decoded = yield from _unzstd_steps(memoryview(stored), length)
    except _FAULTS as exc:
        raise CodecError(str(exc)) from exc
    return _checked(decoded, length)


def _checked(decoded: Buffer, length: int) -> Buffer:
    if len(decoded) != length:
        raise CodecError(f"{len(decoded)} bytes instead of {length}")
    return decoded


def _is_one_step(codec: layout.Codec, stored: Buffer, length: int) -> bool:
    """Say whether all of it takes no longer than a step."""
    if codec is layout.Codec.STORED:
        return True
    is_short = len(stored) <= STEP_STORED_BYTES or (
        codec is layout.Codec.ZSTD and _is_short(stored)
    )
    return is_short and length <= STEP_BYTES


def _inflated(stored: Buffer, length: int) -> bytes:
    return zlib.decompressobj(_WIDEST_WINDOW).decompress(stored, length)


def _inflate_steps(stored: memoryview, length: int) -> Generator[int, None, bytes]:
    inflater = zlib.decompressobj(_WIDEST_WINDOW)
    parts: list[bytes] = []
    at, left, is_full = 0, length, False
    while left and not inflater.eof:
        piece: Buffer = inflater.unconsumed_tail
        if not piece:
            piece = stored[at : at + STEP_STORED_BYTES]
            at += len(piece)
            if not piece and not is_full:
                break
        limit = min(left, STEP_BYTES)
        part = inflater.decompress(piece, limit)
        parts.append(part)
        left -= len(part)
        is_full = len(part) == limit  # there may be more of what it has taken in
        yield len(part)
    return b"".join(parts)


def _unzstd(stored: Buffer, length: int) -> Buffer:
    if zstandard.frame_content_size(stored) == length:
        return _of_thread.zstd.decompress(stored)
    decoded = bytearray(length)
    with _of_thread.zstd.stream_reader(stored) as reader:
        count = reader.readinto(decoded)
    return memoryview(decoded)[:count]


def _is_short(stored: Buffer) -> bool:
    """Say whether a frame has few blocks, as any has that was not made to be slow."""
    at = zstandard.frame_header_size(stored)
    for _ in range(_ZSTD_FEW_BLOCKS):
        is_last, stored_bytes, _ = _block(stored, at)
        if is_last:
            return True
        at += stored_bytes
    return False


def _block(stored: Buffer, at: int) -> tuple[bool, int, int]:
    """Return whether a block of a frame is the last, its length, and how much it makes at most."""
    header = int.from_bytes(stored[at : at + 3], "little")
    kind, size = header >> 1 & 3, header >> 3
    stored_bytes = 3 + (1 if kind == _ZSTD_RUN else size)
    most_bytes = ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
    return header & 1 != 0, stored_bytes, most_bytes


def _unzstd_steps(stored: memoryview, length: int) -> Generator[int, None, Buffer]:
    """Decode a frame, at a time as many of its blocks as may make what is left."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
    parts: list[bytes] = []
    start, left = 0, length
    stop, is_last = zstandard.frame_header_size(stored), False
    while left > 0 and not is_last and start < len(stored):
        room = max(left, _ZSTD_STEP_BYTES)
        while room > 0 and not is_last and stop - start < STEP_STORED_BYTES:
            is_last, stored_bytes, most_bytes = _block(stored, stop)
            stop += stored_bytes
            room -= most_bytes
            if stop >= len(stored):
                break
        if is_last:
            stop += 4  # a checksum, if there is one
        part = decompressor.decompress(stored[start:stop])
        start = stop
        parts.append(part)
        left -= len(part)
        yield len(part)
    return b"".join(parts)[:length]
