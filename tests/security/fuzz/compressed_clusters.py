# SPDX-License-Identifier: Apache-2.0
"""Target of compressed clusters: an image's owner writes the stream, guests and Glance decode it.

An input is a codec, the length stated by a layout, and a stream.

"""

import random
import struct
import zlib
from typing import NamedTuple

import zstandard

from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import geometry
from tests.fakes import qcow2_bombs
from tests.security.fuzz.target import Target

_HEAD = struct.Struct("<BxxxI")
CODECS = (layout.Codec.STORED, layout.Codec.DEFLATE, layout.Codec.ZSTD)


class Decoded(NamedTuple):
    """The output; None: refused.

    :param steps: bytes of each step's output
    """

    length: int
    at_once: bytes | None
    stepped: bytes | None
    steps: list[int]


def _decoded(data: bytes) -> Decoded:
    if len(data) < _HEAD.size:
        raise codecs.CodecError("no stream")
    number, length = _HEAD.unpack_from(data)
    codec, stored = CODECS[number % len(CODECS)], memoryview(data)[_HEAD.size :]
    length %= layout.MAX_CLUSTER_BYTES + 1
    try:
        at_once: bytes | None = bytes(codecs.decode(codec, stored, length))
    except codecs.CodecError:
        at_once = None
    steps: list[int] = []
    stepping = codecs.decode_steps(codec, stored, length)
    while True:
        try:
            steps.append(next(stepping))
        except codecs.CodecError:
            if at_once is None:
                raise
            return Decoded(length, at_once, None, steps)
        except StopIteration as end:
            return Decoded(length, at_once, bytes(end.value), steps)


def _check(taken: Decoded, _data: bytes) -> None:
    """Check that both decoders give the same bytes, and that no step's output is large."""
    assert taken.at_once == taken.stepped
    assert taken.at_once is not None and len(taken.at_once) == taken.length
    assert max(taken.steps, default=0) <= max(taken.length, geometry.MIB) + codecs.ZSTD_BLOCK_BYTES


def _seeds() -> list[bytes]:
    rng = random.Random(1)
    text = b"".join(b"line %d of text that compresses\n" % number for number in range(200))
    long = text + bytes(300 * geometry.KIB)  # long enough for several steps
    noise = rng.randbytes(codecs.STEP_STORED_BYTES + 1000)
    sizeless = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    checked = zstandard.ZstdCompressor(write_checksum=True)
    streams = [
        (layout.Codec.STORED, text, text),
        *((layout.Codec.DEFLATE, _deflated(data), data) for data in (text, long, noise)),
        (layout.Codec.DEFLATE, qcow2_bombs.slow_stream(3000, text), text),
        *((layout.Codec.ZSTD, checked.compress(data), data) for data in (text, long, noise)),
        (layout.Codec.ZSTD, sizeless.compress(long) + sizeless.flush(), long),
    ]
    seeds = []
    for codec, stream, data in streams:
        slack = rng.randbytes(100)  # of the last sector, where the next cluster may start
        for length in (len(data), len(data) - 1000, len(data) // 2):
            seeds.append(_HEAD.pack(CODECS.index(codec), length) + stream + slack)
    return seeds


def _deflated(data: bytes) -> bytes:
    maker = zlib.compressobj(wbits=-12)
    return maker.compress(data) + maker.flush()


CLUSTER = Target(
    "compressed_cluster", _decoded, (codecs.CodecError,), _seeds, _check, max_bytes=40_000
)

ALL = (CLUSTER,)
