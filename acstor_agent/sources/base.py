# SPDX-License-Identifier: Apache-2.0
"""What every source is: random-access reads of blobs, nothing more.

A blob is an image's bytes, its chunk map or its boot image.  A driver (driver.py) reaches
one kind of place, which has the stored file of an image (:func:`stored_blob`); a wrapper
(deadline, layout) is a source around another one.  What is read are
pieces, most often chunks, many at a time: each is told of by itself, as soon as its bytes are here,
or with the error that it is.  A source never gives fewer or other bytes than it was asked for.
"""

import abc
import copy
import enum
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.core.disk_scheduling import request as requests
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import ids

Buffer = bytes | bytearray | memoryview

Requester = requests.Stream
AGENT = Requester(requests.Klass.BACKGROUND, "agent")
"""Reads that are for no guest and no peer."""
DEFAULT_IN_FLIGHT = 8
TAIL_BYTES = 32
"""At its end an artefact has the hash of all before it."""


class BlobKind(enum.Enum):
    """What a source is asked for; the value is the file name's ending."""

    __hash__ = object.__hash__  # enum's own, of the name, is slow, and blobs are keys

    IMAGE = ".raw"  # what guests read; as it is stored if the image is raw
    QCOW2 = ".qcow2"  # the stored file of an image that is qcow2
    CHUNK_MAP = ".acmap"
    BOOT_IMAGE = ".acboot"


ARTEFACTS = frozenset({BlobKind.CHUNK_MAP, BlobKind.BOOT_IMAGE})

AT_BOOT_IMAGE = 1 << 62
"""Where hosts that talk of an image place its boot image: no image is that long."""


class Blob(NamedTuple):
    """One thing that a source can hold."""

    image_id: ids.ImageId
    kind: BlobKind

    @property
    def name(self) -> str:
        """File name of the blob in sources that are made of files."""
        return f"{self.image_id}{self.kind.value}"

    def describe_range(self, offset: int, length: int) -> str:
        """Return a range of the blob in words, for errors.

        >>> blob = Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), BlobKind.IMAGE)
        >>> blob.part(65536, 4096)
        '7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.raw bytes 65536-69631'
        """
        return f"{self.name} bytes {offset}-{offset + length - 1}"


_STORED_KINDS = {
    layout.DiskFormat.RAW: BlobKind.IMAGE,
    layout.DiskFormat.QCOW2: BlobKind.QCOW2,
}


def stored_blobs(blob: Blob) -> list[Blob]:
    """Return what a blob may be stored as: an image is of one of the formats.

    >>> image_id = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> [stored.kind.value for stored in stored_blobs(Blob(image_id, BlobKind.IMAGE))]
    ['.raw', '.qcow2']
    """
    if blob.kind is BlobKind.IMAGE:
        return [Blob(blob.image_id, kind) for kind in _STORED_KINDS.values()]
    return [blob]


def stored_blob(image_id: ids.ImageId, disk_format: layout.DiskFormat) -> Blob:
    """Return the stored file of an image.

    >>> image_id = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> stored_blob(image_id, layout.DiskFormat.QCOW2).name
    '7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.qcow2'
    """
    return Blob(image_id, _STORED_KINDS[disk_format])


def blob_at(image_id: ids.ImageId, offset: int) -> tuple[Blob, int]:
    """Return the blob, and the offset in it, that hosts mean by an offset of an image.

    >>> image_id = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> blob_at(image_id, AT_BOOT_IMAGE + 5)[0].name, blob_at(image_id, AT_BOOT_IMAGE + 5)[1]
    ('7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.acboot', 5)
    """
    if offset >= AT_BOOT_IMAGE:
        return Blob(image_id, BlobKind.BOOT_IMAGE), offset - AT_BOOT_IMAGE
    return Blob(image_id, BlobKind.IMAGE), offset


class Piece(NamedTuple):
    """A part of a blob that is read, most often a chunk.

    :param content: what its bytes must be; None: whatever they are
    """

    offset: int
    length: int
    content: ids.Content | None = None


Outcome = Buffer | Exception
"""What became of a piece: its bytes, which nobody changes or uses for anything else any more; or an
:class:`errors.ChunkUnavailable`.  Any other exception is a bug."""
Answers = Sequence[tuple[int, Outcome]]
"""What became of some pieces, by their numbers in what was asked."""
ReportOutcomes = Callable[[Answers], None]
"""Is called in the event loop's thread, and does not wait."""


class BlobState(NamedTuple):
    """What a place has of a blob.

    :param stamp: of an artefact, is another one when another one has taken its place
    """

    size_bytes: int
    stamp: str


class Health(NamedTuple):
    """How a source does, beyond what its errors say.

    :param hanging_calls: calls that hang in the kernel, each with a thread
    :param hanging_for_s: for how long the oldest does
    :param missed_attempts: attempts that had no answer in their time, since the start
    """

    hanging_calls: int = 0
    hanging_for_s: float = 0.0
    missed_attempts: int = 0


class Source(abc.ABC):
    """Random access to blobs.

    Every method may raise :class:`errors.ChunkMissing` (there is no such blob,
    or it is shorter than asked) and :class:`errors.SourceUnreachable` (a passing
    fault).  All methods may be called by many tasks at once, and each call may
    be cancelled without harm to the others.
    """

    @property
    def in_flight(self) -> int:
        """How many reads the place should be sent at a time; the engine keeps to it."""
        return DEFAULT_IN_FLIGHT

    @abc.abstractmethod
    async def size_bytes(self, blob: Blob) -> int:
        """Return the length of ``blob``; for who attaches, so it must be one that he may use."""

    async def find_blob(self, blob: Blob) -> BlobState:
        """Return what the place has now, for guests that read it already, on whatever host.

        The place is asked, whatever is remembered of it; reads that follow are of what is there.
        An artefact ends with its hash, which tells it from others; the end of an image tells
        nothing, and is not read.
        """
        size_bytes = await self.size_bytes(blob)
        length = min(size_bytes, TAIL_BYTES) if blob.kind in ARTEFACTS else 0
        tail = await self.read(blob, size_bytes - length, length)
        return BlobState(size_bytes, tail.hex())

    @abc.abstractmethod
    async def read_pieces(
        self,
        blob: Blob,
        pieces: Sequence[Piece],
        told: ReportOutcomes,
        requester: Requester = AGENT,
    ) -> None:
        """Read pieces, and tell of each once, as soon as its bytes are here or cannot be had.

        Pieces that follow each other cost least: they are one read of the place.  When this
        returns all have been told of; who is cancelled is told no more.  What cannot be had is
        told, not raised.

        :param pieces: of one byte or more each, in any order
        :param told: may get several at a time, in any order
        :param requester: takes turns with others where an image has to be decoded
        :raises errors.LocalProtocolError: a piece is none
        """

    async def read(
        self, blob: Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Return exactly ``length`` bytes of ``blob`` from ``offset`` on, in a copy.

        A read of 0 bytes returns ``b""`` and asks nobody, not even whether the blob exists.

        :param content: what the bytes must be
        :raises errors.ChunkMissing: the blob ends before ``offset + length``
        :raises errors.ChunkInvalid: they are not ``content``
        :raises errors.LocalProtocolError: ``offset`` or ``length`` is negative
        """
        if length == 0 and offset >= 0:
            return b""
        answers: list[tuple[int, Outcome]] = []
        await self.read_pieces(blob, (Piece(offset, length, content),), answers.extend)
        [(_, outcome)] = answers
        if isinstance(outcome, Exception):
            # A copy, because others may be told the same error: a traceback grows with every raise.
            raise copy.copy(outcome) from outcome
        return bytes(outcome)

    def os_hash(self, blob: Blob) -> chunk_map.OsHash:
        """Return the hash of the whole blob that was learnt with its size.

        It comes from another place than the bytes (Glance's database, and not its store), so who
        can write where the bytes are cannot change both.  UNKNOWN_OS_HASH where there is none.
        """
        return chunk_map.UNKNOWN_OS_HASH

    def source_health(self) -> Health:
        """Return how it does; may be called from any thread."""
        return Health()

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Let go of connections and files; the source is not used afterwards."""

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """The place in words, for errors and logs (a URL without credentials, a folder)."""


class Wrapper(Source):
    """A source around another one; as it stands it changes nothing."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner

    @property
    def in_flight(self) -> int:
        """What the inner source says."""
        return self._inner.in_flight

    async def size_bytes(self, blob: Blob) -> int:
        """Ask the inner source."""
        return await self._inner.size_bytes(blob)

    async def find_blob(self, blob: Blob) -> BlobState:
        """Ask the inner source."""
        return await self._inner.find_blob(blob)

    async def read_pieces(
        self,
        blob: Blob,
        pieces: Sequence[Piece],
        told: ReportOutcomes,
        requester: Requester = AGENT,
    ) -> None:
        """Ask the inner source."""
        await self._inner.read_pieces(blob, pieces, told, requester)

    def os_hash(self, blob: Blob) -> chunk_map.OsHash:
        """Return what the inner source knows."""
        return self._inner.os_hash(blob)

    def source_health(self) -> Health:
        """Return what the inner source says."""
        return self._inner.source_health()

    async def aclose(self) -> None:
        """Close the inner source."""
        await self._inner.aclose()

    @property
    def where(self) -> str:
        """The inner source's place."""
        return self._inner.where
