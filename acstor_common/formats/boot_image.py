# SPDX-License-Identifier: Apache-2.0
"""Boot images: the chunks that an image reads while it boots, in that order.

The chunks of all boots come first, then what boots of each profile read beside them.
Header, table, frames: Nguyen 2019, "YOLO", section IV; ``doc/source/format/boot_image.rst``.
"""

import struct
import types
from collections.abc import Container
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import blake3
import zstandard

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import file_header
from acstor_common.model import geometry
from acstor_common.model import ids

MAGIC = b"\x89aboot\r\n"
VERSION = 3
COMPRESSION_ZSTD = 1
MAX_CHUNKS = 1 << 18  # limit of chunks: 16 GiB of 64 KiB chunks
MAX_FRAME_BYTES = geometry.MAX_CHUNK_BYTES
"""Limit of a decompressed frame, as of peer messages and cache slots."""
MAX_PROFILES = 8
FRAME_BYTES = 256 * geometry.KIB  # uncompressed size of new frames, unless a chunk is larger
LEVEL = 12
MAX_REVISION = (1 << 32) - 1

# Compression, chunk bytes, image bytes, chunks in the trace, chunks per frame,
# image ID, hash algorithm and value, length of the value, revision, profiles; the rest is reserved.
_FIELDS = "HIQIH2x16s16s64sH2xIB23x"
_HEADER = file_header.FileHeader(
    "a boot image", MAGIC, VERSION, _FIELDS, errors.BootImageFormatError
)
_FRAME = struct.Struct("<I32s")
_CHUNK_NO = struct.Struct("<I")
_PROFILE = struct.Struct("<16sI")
HEADER_BYTES = _HEADER.size_bytes

_AT_COMPRESSION, _AT_CHUNK_BYTES = 10, 12  # offsets, for errors
_AT_CHUNK_COUNT, _AT_FRAME_CHUNKS, _AT_IMAGE_ID, _AT_OS_HASH, _AT_PROFILES = 24, 28, 32, 48, 136

Buffer = bytes | bytearray | memoryview


class Binding(NamedTuple):
    """The image that a boot image belongs to."""

    image_id: ids.ImageId
    cut: geometry.Geometry
    os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH

    @classmethod
    def from_map(cls, image_map: chunk_map.ChunkMap) -> "Binding":
        """Return the binding to the image of a chunk map."""
        os_hash = chunk_map.OsHash(image_map.os_hash_algo, image_map.os_hash_value)
        return cls(image_map.image_id, image_map.geometry, os_hash)


class ProfiledTrace(NamedTuple):
    """Chunk numbers in order of first touch: those of all boots, and more of each profile."""

    common: tuple[int, ...]
    of_profiles: Mapping[ids.ProfileKey, tuple[int, ...]] = types.MappingProxyType({})

    def parts(self) -> dict[ids.ProfileKey, tuple[int, ...]]:
        """Return all parts; that of all boots is NO_PROFILE's, and comes first."""
        return {ids.NO_PROFILE: self.common, **self.of_profiles}


class Header(NamedTuple):
    """The header."""

    binding: Binding
    revision: int  # increases when a better boot image replaces it
    chunk_count: int  # chunks in the boot trace
    frame_chunks: int  # chunks per frame; the last one may have fewer
    profile_count: int

    @property
    def frame_count(self) -> int:
        """Number of frames."""
        return -(-self.chunk_count // self.frame_chunks)

    @property
    def head_bytes(self) -> int:
        """Length of header and table."""
        table = self.chunk_count * _CHUNK_NO.size + self.frame_count * _FRAME.size
        profiles = self.profile_count * _PROFILE.size
        return HEADER_BYTES + table + profiles + file_header.DIGEST_BYTES


class Frame(NamedTuple):
    """Table entry of a frame."""

    number: int
    chunk_nos: tuple[int, ...]
    offset: int
    stored_bytes: int
    raw_bytes: int  # uncompressed size; equal to ``stored_bytes`` if not compressed
    cid: ids.Cid  # CID of the stored bytes


class Head(NamedTuple):
    """Validated header and tables."""

    header: Header
    frames: tuple[Frame, ...]
    parts: Mapping[ids.ProfileKey, range]
    """Places in ``trace`` of the chunks of all boots (NO_PROFILE), and of those of profiles."""

    @property
    def trace(self) -> Iterator[int]:
        """All chunk numbers in their order."""
        return (chunk_no for frame in self.frames for chunk_no in frame.chunk_nos)

    @property
    def profiled_trace(self) -> ProfiledTrace:
        """The chunk numbers by profile."""
        chunk_nos = tuple(self.trace)
        found = {key: chunk_nos[part.start : part.stop] for key, part in self.parts.items()}
        return ProfiledTrace(found.pop(ids.NO_PROFILE), found)

    def frames_of(self, profiles: Container[ids.ProfileKey] = ()) -> Iterator[Frame]:
        """Yield the frames that boots of these profiles, or of none, need."""
        size = self.header.frame_chunks
        needed = {
            number
            for key, part in self.parts.items()
            if part and (key == ids.NO_PROFILE or key in profiles)
            for number in range(part.start // size, -(-part.stop // size))
        }
        return (frame for frame in self.frames if frame.number in needed)

    @property
    def size_bytes(self) -> int:
        """Length of the boot image."""
        return self.header.head_bytes + sum(frame.stored_bytes for frame in self.frames)

    @property
    def raw_bytes(self) -> int:
        """Uncompressed size of all frames."""
        return sum(frame.raw_bytes for frame in self.frames)


class Writer:
    """Creates a boot image from chunks in order of first touch, without zeros and duplicates.

    First add the chunks of all boots, then those of one profile after the other. A profile repeats
    no chunk of all boots, but maybe one of another profile.

    :param key: of the image's scope, if its chunk map has one: frames' CIDs are keyed with it

    >>> cut = geometry.Geometry(size_bytes=65536, chunk_bytes=65536)
    >>> of = Binding(ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), cut)
    >>> writer = Writer(of, revision=1)
    >>> writer.add(0, bytes(range(256)) * 256)
    >>> raw = b"".join(writer.iter_parts())
    >>> list(parse_head(raw, "example").trace)
    [0]
    """

    def __init__(
        self,
        of: Binding,
        revision: int,
        frame_bytes: int = FRAME_BYTES,
        level: int = LEVEL,
        key: ids.ScopeKey | None = None,
    ) -> None:
        self._of = of
        self._key = key
        self._revision = revision
        self._frame_chunks = max(1, frame_bytes // of.cut.chunk_bytes)
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=False)
        self._common: set[ids.Cid] = set()
        self._of_profile: set[ids.Cid] = set()  # chunks of the current profile
        self._chunk_nos: list[int] = []
        self._counts: dict[ids.ProfileKey, int] = {ids.NO_PROFILE: 0}
        self._waiting: list[Buffer] = []
        self._frames: list[bytes] = []

    @property
    def chunk_count(self) -> int:
        """Chunks in the boot image so far."""
        return len(self._chunk_nos)

    def add(self, chunk_no: int, data: Buffer, profile: ids.ProfileKey = ids.NO_PROFILE) -> None:
        """Add the next chunk; ValueError for one of another image, and beyond a limit."""
        cut = self._of.cut
        if not 0 <= chunk_no < cut.chunk_count or len(data) != cut.chunk_length(chunk_no):
            raise ValueError(f"chunk {chunk_no} with {len(data)} bytes is not of this image")
        cid = ids.cid_of(data)
        if cid in self._common or not any(data):
            return
        if len(self._chunk_nos) == MAX_CHUNKS:
            raise ValueError(f"a boot image holds at most {MAX_CHUNKS} chunks")
        if profile != next(reversed(self._counts)):
            if profile in self._counts or len(self._counts) > MAX_PROFILES:
                raise ValueError(f"profile {profile.hex()} has ended, or is one too many")
            self._counts[profile] = 0
            self._of_profile.clear()
        elif cid in self._of_profile:
            return
        self._counts[profile] += 1
        (self._common if profile == ids.NO_PROFILE else self._of_profile).add(cid)
        self._chunk_nos.append(chunk_no)
        self._waiting.append(data)
        if len(self._waiting) == self._frame_chunks:
            self._end_frame()

    def _end_frame(self) -> None:
        raw = b"".join(self._waiting)
        self._waiting.clear()
        stored = self._compressor.compress(raw)
        self._frames.append(stored if len(stored) < len(raw) else raw)

    def iter_parts(self) -> Iterator[bytes]:
        """Finish the boot image; yield its bytes in parts."""
        if self._waiting:
            self._end_frame()
        yield self._head()
        yield from self._frames

    def _head(self) -> bytes:
        of = self._of
        head = _HEADER.pack(
            COMPRESSION_ZSTD,
            of.cut.chunk_bytes,
            of.cut.size_bytes,
            self.chunk_count,
            self._frame_chunks,
            ids.image_id_bytes(of.image_id),
            of.os_hash.algo.encode("ascii"),
            of.os_hash.value,
            len(of.os_hash.value),
            self._revision,
            len(self._counts) - 1,
        )
        head += b"".join(map(_CHUNK_NO.pack, self._chunk_nos))
        named = ((len(stored), ids.cid_of(stored, self._key)) for stored in self._frames)
        head += b"".join(_FRAME.pack(*frame) for frame in named)
        head += b"".join(_PROFILE.pack(*profile) for profile in list(self._counts.items())[1:])
        return head + blake3.blake3(head).digest()


def parse_header(buffer: Buffer, what: str) -> Header:
    """Parse the header at the beginning of ``buffer``, or raise BootImageFormatError."""
    with memoryview(buffer) as view:
        return _parse_header(view, what)


def _parse_header(view: memoryview, what: str) -> Header:
    fields = _HEADER.unpack(view, what)
    compression, chunk_bytes, size_bytes, chunk_count, frame_chunks, image_id = fields[:6]
    if compression != COMPRESSION_ZSTD:
        raise _fault(what, _AT_COMPRESSION, f"compression {compression} is not known")
    if not geometry.is_chunk_size(chunk_bytes):
        raise _fault(what, _AT_CHUNK_BYTES, f"chunks of {chunk_bytes} bytes are not allowed")
    cut = geometry.Geometry(size_bytes, chunk_bytes)
    if not 0 < frame_chunks * chunk_bytes <= MAX_FRAME_BYTES:
        raise _fault(what, _AT_FRAME_CHUNKS, f"{frame_chunks} chunks a frame are not allowed")
    of = Binding(ids.image_id_from_bytes(image_id), cut, _parse_os_hash(fields[6:9], what))
    revision, profile_count = fields[9:]
    if profile_count > MAX_PROFILES:
        raise _fault(what, _AT_PROFILES, f"{profile_count} profiles are too many")
    if chunk_count > min(cut.chunk_count * (1 + profile_count), MAX_CHUNKS):
        raise _fault(what, _AT_CHUNK_COUNT, f"{chunk_count} chunks are too many")
    return Header(of, revision, chunk_count, frame_chunks, profile_count)


def _parse_os_hash(fields: Sequence[Any], what: str) -> chunk_map.OsHash:
    try:
        return chunk_map.OsHash.unpack(*fields)
    except ValueError as e:
        raise _fault(what, _AT_OS_HASH, str(e)) from None


def check_binding(header: Header, expected: Binding, what: str) -> None:
    """Raise BootImageFormatError unless the binding is ``expected``; an unknown hash fits any."""
    of = header.binding
    if of.image_id != expected.image_id:
        raise _fault(what, _AT_IMAGE_ID, f"of image {of.image_id}, not of {expected.image_id}")
    if of.cut != expected.cut:
        raise _fault(what, _AT_CHUNK_BYTES, f"of an image cut like {of.cut}, not {expected.cut}")
    if chunk_map.UNKNOWN_OS_HASH not in (of.os_hash, expected.os_hash):
        if of.os_hash != expected.os_hash:
            raise _fault(what, _AT_OS_HASH, "made for other bytes")


def parse_head(buffer: Buffer, what: str) -> Head:
    """Parse header and tables at the beginning of ``buffer``, or raise BootImageFormatError."""
    with memoryview(buffer) as view:
        header = _parse_header(view, what)
        if view.nbytes < header.head_bytes:
            raise _fault(what, view.nbytes, "truncated in the table")
        body_bytes = header.head_bytes - file_header.DIGEST_BYTES
        if blake3.blake3(view[:body_bytes]).digest() != view[body_bytes : header.head_bytes]:
            raise _fault(what, body_bytes, "the table's checksum does not match")
        parts = _parse_parts(view[:body_bytes], header, what)
        chunk_nos = _parse_trace(view, header, parts, what)
        return Head(header, tuple(_parse_frames(view, header, chunk_nos, what)), parts)


def _parse_trace(
    view: memoryview, header: Header, parts: Mapping[ids.ProfileKey, range], what: str
) -> list[int]:
    stop = HEADER_BYTES + header.chunk_count * _CHUNK_NO.size
    chunk_nos = [chunk_no for (chunk_no,) in _CHUNK_NO.iter_unpack(view[HEADER_BYTES:stop])]
    if chunk_nos and max(chunk_nos) >= header.binding.cut.chunk_count:
        raise _fault(what, HEADER_BYTES, f"the image has no chunk {max(chunk_nos)}")
    for part in parts.values():
        if len(set(chunk_nos[part.start : part.stop])) != len(part):
            raise _fault(what, HEADER_BYTES, "a chunk is in the boot trace twice")
    return chunk_nos


def _parse_frames(
    view: memoryview, header: Header, chunk_nos: Sequence[int], what: str
) -> Iterator[Frame]:
    begin = HEADER_BYTES + header.chunk_count * _CHUNK_NO.size
    offset = header.head_bytes
    for number in range(header.frame_count):
        at = begin + number * _FRAME.size
        stored_bytes, cid = _FRAME.unpack_from(view, at)
        first = number * header.frame_chunks
        held = tuple(chunk_nos[first : first + header.frame_chunks])
        raw_bytes = sum(map(header.binding.cut.chunk_length, held))
        if not 0 < stored_bytes <= raw_bytes:
            why = f"a frame of {raw_bytes} bytes cannot be stored in {stored_bytes}"
            raise _fault(what, at, why)
        yield Frame(number, held, offset, stored_bytes, raw_bytes, ids.Cid(cid))
        offset += stored_bytes


def _parse_parts(view: memoryview, header: Header, what: str) -> Mapping[ids.ProfileKey, range]:
    begin = view.nbytes - header.profile_count * _PROFILE.size
    counts = {ids.ProfileKey(key): n for key, n in _PROFILE.iter_unpack(view[begin:])}
    if len(counts) != header.profile_count:
        raise _fault(what, begin, "a profile is in it twice")
    place = header.chunk_count - sum(counts.values())
    if place < 0:
        raise _fault(what, begin, "its profiles have more chunks than the boot trace")
    parts = {ids.NO_PROFILE: range(place)}
    for key, count in counts.items():
        parts[key] = range(place, place + count)
        place += count
    return types.MappingProxyType(parts)


def _fault(what: str, offset: int, why: str) -> errors.BootImageFormatError:
    return errors.BootImageFormatError(what, offset, why)
