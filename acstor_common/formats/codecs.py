# SPDX-License-Identifier: Apache-2.0
"""Decompression of extents, with bounded output and memory; both libraries release the GIL.

Time has no bound: a long stream may produce little.  So :func:`decode_steps` yields between steps;
:func:`decode`, for threads with a time budget, is a few per cent faster.
"""

import threading
import zlib
from collections.abc import Generator

import zstandard

from acstor_common.formats import layout
from acstor_common.model import geometry

MAX_WINDOW_BYTES = 8 * geometry.MIB
"""Window limit of a zstd frame: RFC 8878's advice, four times the largest cluster."""

STEP_STORED_BYTES = 32 * geometry.KIB
STEP_BYTES = 256 * geometry.KIB
"""Limits of a step's input and output: a few milliseconds in the worst case."""
ZSTD_BLOCK_BYTES = 128 * geometry.KIB  # largest output of a block of a zstd frame
_ZSTD_STEP_BYTES = geometry.MIB
"""Least output budget of a step, because blocks may be short; surplus is dropped."""
_ZSTD_FEW_BLOCKS = 16
_ZSTD_RUN, _ZSTD_COMPRESSED = 1, 2
_FAULTS = (zlib.error, zstandard.ZstdError)
_WIDEST_WINDOW = -15  # raw; wider than QEMU writes, as QEMU reads such streams

Buffer = bytes | bytearray | memoryview


class CodecError(Exception):
    """The stored bytes are malformed, or decompress to too few bytes."""


class _ThreadState(threading.local):
    """A decompressor per thread: creating one takes as long as a small cluster."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)


_thread_state = _ThreadState()


def decode(codec: layout.Codec, stored: Buffer, length: int) -> Buffer:
    """Return the first ``length`` decompressed bytes, or raise CodecError."""
    try:
        if codec is layout.Codec.STORED or not length:  # for zlib 0 means no limit
            decoded: Buffer = stored[:length]
        elif codec is layout.Codec.DEFLATE:
            decoded = _inflated(stored, length)
        else:
            decoded = _unzstd(stored, length)
    except _FAULTS as exc:
        raise CodecError(str(exc)) from exc
    return _checked(decoded, length)


def decode_whole(codec: layout.Codec, stored: Buffer, length: int) -> Buffer:
    """Return the ``length`` bytes that QEMU reads in a compressed cluster, or raise CodecError.

    As for QEMU, a zstd frame must end with the cluster; a deflate stream may be longer.
    """
    if codec is not layout.Codec.ZSTD:
        return decode(codec, stored, length)
    try:
        if zstandard.frame_content_size(stored) not in (-1, length):
            raise CodecError(f"a frame of other than {length} bytes")
        decoded = _thread_state.zstd.decompress(stored, max_output_size=length)
    except _FAULTS as exc:
        raise CodecError(str(exc)) from exc
    return _checked(decoded, length)


def decode_steps(codec: layout.Codec, stored: Buffer, length: int) -> Generator[int, None, Buffer]:
    """Decompress in steps of some ms, yielding the bytes of each; return as :func:`decode`."""
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
        is_full = len(part) == limit  # zlib may hold more output
        yield len(part)
    return b"".join(parts)


def _unzstd(stored: Buffer, length: int) -> Buffer:
    if zstandard.frame_content_size(stored) == length:
        return _thread_state.zstd.decompress(stored)
    decoded = bytearray(length)
    with _thread_state.zstd.stream_reader(stored) as reader:
        count = reader.readinto(decoded)
    return memoryview(decoded)[:count]


def _is_short(stored: Buffer) -> bool:
    """Return whether a frame has few blocks, as ordinary frames have."""
    at = zstandard.frame_header_size(stored)
    for _ in range(_ZSTD_FEW_BLOCKS):
        is_last, stored_bytes, _ = _block(stored, at)
        if is_last:
            return True
        at += stored_bytes
    return False


def _block(stored: Buffer, at: int) -> tuple[bool, int, int]:
    """Return whether a block is the last, its stored length, its largest output."""
    header = int.from_bytes(stored[at : at + 3], "little")
    kind, size = header >> 1 & 3, header >> 3
    stored_bytes = 3 + (1 if kind == _ZSTD_RUN else size)
    most_bytes = ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
    return header & 1 != 0, stored_bytes, most_bytes


def _unzstd_steps(stored: memoryview, length: int) -> Generator[int, None, Buffer]:
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
            stop += 4  # optional checksum
        part = decompressor.decompress(stored[start:stop])
        start = stop
        parts.append(part)
        left -= len(part)
        yield len(part)
    return b"".join(parts)[:length]
