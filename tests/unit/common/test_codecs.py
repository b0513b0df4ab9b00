# SPDX-License-Identifier: Apache-2.0
"""Codecs decode completely, and no step of stepwise decoding takes long."""

import os
import random
import time
import zlib
from collections.abc import Callable

import pytest
import zstandard

from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import geometry
from tests.fakes import qcow2_bombs

KIB, MIB = geometry.KIB, geometry.MIB
DEFLATE, ZSTD = layout.Codec.DEFLATE, layout.Codec.ZSTD
STEP_S = 0.03
"""Ten times the slowest step on an idle machine."""


def deflated(data: bytes) -> bytes:
    maker = zlib.compressobj(wbits=-12)
    return maker.compress(data) + maker.flush()


def some(length: int) -> bytes:
    rng = random.Random(length)
    return b"".join(
        rng.choice([os.urandom(700), b"again " * 200, bytes(3000)])
        for _ in range(length // 700 + 1)
    )[:length]


def checked(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def sizeless(data: bytes) -> bytes:
    maker = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    parts = [maker.compress(data[at : at + 5000]) for at in range(0, len(data), 5000)]
    parts.append(maker.flush())
    return b"".join(parts)


@pytest.mark.parametrize("length", [1, 512, 64 * KIB, 300 * KIB, 2 * MIB])
@pytest.mark.parametrize(
    ("codec", "made"),
    [
        (DEFLATE, deflated),
        (ZSTD, zstandard.ZstdCompressor().compress),
        (ZSTD, checked),
        (ZSTD, sizeless),
    ],
)
def test_decoding_returns_exactly_the_requested_length(
    length: int, codec: layout.Codec, made: Callable[[bytes], bytes]
) -> None:
    for data in (some(length), bytes(length), os.urandom(length)):
        stored = made(data)
        for slack in (b"", os.urandom(1000)):
            assert codecs.decode(codec, memoryview(stored + slack), length) == data
        assert codecs.decode(codec, stored, length // 2) == data[: length // 2]
        with pytest.raises(codecs.CodecError):
            codecs.decode(codec, stored, length + 1)
        with pytest.raises(codecs.CodecError):
            codecs.decode(codec, stored[: len(stored) // 2 - 4], length)


def zstd_frame(block: bytes, count: int, end: bytes) -> bytes:
    """Return a frame with a 2 MiB window: a repeated block followed by ``end``."""
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * count + end


EMPTY_RAW = b"\0\0\0"
EMPTY_COMPRESSED = (2 << 1 | 2 << 3).to_bytes(3, "little") + b"\0\0"
LAST_RUN = (1 | 1 << 1 | 128 * KIB << 3).to_bytes(3, "little") + b"x"
SLOW = {
    "deflate": (DEFLATE, qcow2_bombs.slow_stream(4 * MIB, b"x" * 128 * KIB)),
    "raw": (ZSTD, zstd_frame(EMPTY_RAW, 4 * MIB // 3, LAST_RUN)),
    "compressed": (ZSTD, zstd_frame(EMPTY_COMPRESSED, 4 * MIB // 5, LAST_RUN)),
    "run": (ZSTD, zstd_frame((1 << 1 | 128 * KIB << 3).to_bytes(3, "little") + b"x", 9, LAST_RUN)),
}


@pytest.mark.parametrize("kind", SLOW)
def test_decoding_steps_of_a_slow_stream_are_short(kind: str) -> None:
    codec, stored = SLOW[kind]
    began_s = time.thread_time()
    steps, took = codecs.decode_steps(codec, stored, 128 * KIB), []
    while True:
        step_s = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            assert end.value == b"x" * 128 * KIB
            break
        finally:
            took.append(time.thread_time() - step_s)
    print(f"{kind}: {len(took)} steps, {time.thread_time() - began_s:.3f} s, {max(took):.4f} s")
    assert max(took) < STEP_S
