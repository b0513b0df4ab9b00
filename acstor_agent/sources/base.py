# SPDX-License-Identifier: Apache-2.0
"""Interface of a source: random-access reads of blobs.

A blob is an image's bytes, its chunk map or its boot image. A driver reads one kind of place; a
wrapper surrounds another source. Each piece is reported by itself: its exact bytes, or an error.
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
AGENT = Requester(requests.Klass.BACKGROUND, "agent")  # for reads on behalf of no guest and no peer
DEFAULT_CONCURRENT_READS = 8
TAIL_BYTES = 32  # length of the hash at the end of an artefact


class BlobKind(enum.Enum):
    """Kind of a blob; the value is the extension of its file name."""

    __hash__ = object.__hash__  # enum's own hash is slow, and blobs are keys

    IMAGE = ".raw"  # what guests read
    QCOW2 = ".qcow2"  # the stored file of a qcow2 image
    CHUNK_MAP = ".acmap"
    BOOT_IMAGE = ".acboot"


ARTEFACTS = frozenset({BlobKind.CHUNK_MAP, BlobKind.BOOT_IMAGE})

AT_BOOT_IMAGE = 1 << 62
"""Offset at which hosts address the boot image of an image, beyond any image's end."""


class Blob(NamedTuple):
    """An object in a source."""

    image_id: ids.ImageId
    kind: BlobKind

    @property
    def file_name(self) -> str:
        """File name of the blob in sources made of files."""
        return f"{self.image_id}{self.kind.value}"

    def describe_range(self, offset: int, length: int) -> str:
        """Return a range of the blob in words, for errors.

        >>> blob = Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), BlobKind.IMAGE)
        >>> blob.describe_range(65536, 4096)
        '7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.raw bytes 65536-69631'
        """
        return f"{self.file_name} bytes {offset}-{offset + length - 1}"


_STORED_KINDS = {layout.DiskFormat.RAW: BlobKind.IMAGE, layout.DiskFormat.QCOW2: BlobKind.QCOW2}


def stored_blobs(blob: Blob) -> list[Blob]:
    """Return the blobs as which a blob may be stored: an image has one of two formats.

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
    >>> stored_blob(image_id, layout.DiskFormat.QCOW2).file_name
    '7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.qcow2'
    """
    return Blob(image_id, _STORED_KINDS[disk_format])


def blob_at(image_id: ids.ImageId, offset: int) -> tuple[Blob, int]:
    """Return the blob and the offset in it that hosts mean by an offset of an image.

    >>> image_id = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> blob_at(image_id, AT_BOOT_IMAGE + 5)[0].file_name, blob_at(image_id, AT_BOOT_IMAGE + 5)[1]
    ('7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.acboot', 5)
    """
    if offset >= AT_BOOT_IMAGE:
        return Blob(image_id, BlobKind.BOOT_IMAGE), offset - AT_BOOT_IMAGE
    return Blob(image_id, BlobKind.IMAGE), offset


class BlobPiece(NamedTuple):
    """A range of a blob to read, mostly a chunk; ``content`` None: not verified."""

    offset: int
    length: int
    content: ids.Content | None = None


Outcome = Buffer | Exception
"""Bytes of a piece in a buffer that is not reused, or an :class:`errors.ChunkUnavailable`; any
other exception is a bug."""
Outcomes = Sequence[tuple[int, Outcome]]  # outcomes of pieces, by their numbers in the request
ReportOutcomes = Callable[[Outcomes], None]  # called in the event loop's thread; does not wait


class PieceRequest(NamedTuple):
    """Pieces of a blob to read, and what to call with their outcomes."""

    blob: Blob
    pieces: Sequence[BlobPiece]  # of at least one byte each, in any order
    report: ReportOutcomes
    requester: Requester = AGENT  # for turns at decoding; reports to a fill come in batches


class BlobState(NamedTuple):
    """Size and version of a blob at a place."""

    size_bytes: int
    stamp: str  # of an artefact: changes when it is replaced


class Health(NamedTuple):
    """State of a source beyond its errors."""

    hanging_calls: int = 0  # calls that hang in the kernel, with a thread each
    hanging_for_s: float = 0.0  # age of the oldest one
    missed_attempts: int = 0  # timeouts since the start


class Source(abc.ABC):
    """Random access to blobs; usable by many tasks, and each call can be cancelled.

    Every method may raise :class:`errors.ChunkMissing` (there is no such blob, or it is too short)
    and :class:`errors.SourceUnreachable` (a transient fault).
    """

    @property
    def max_concurrent_reads(self) -> int:
        """Limit of concurrent reads for the exchange."""
        return DEFAULT_CONCURRENT_READS

    @abc.abstractmethod
    async def size_bytes(self, blob: Blob) -> int:
        """Return the length of a blob that is to be attached, so it must be usable now."""

    async def find_blob(self, blob: Blob) -> BlobState:
        """Ask the place for the state of a blob in use; later reads are of this state."""
        size_bytes = await self.size_bytes(blob)
        length = min(size_bytes, TAIL_BYTES) if blob.kind in ARTEFACTS else 0
        tail = await self.read(blob, size_bytes - length, length)
        return BlobState(size_bytes, tail.hex())

    @abc.abstractmethod
    async def read_pieces(self, request: PieceRequest) -> None:
        """Read pieces, and report each once, as soon as it is read or has failed.

        A background fill gets batches, at most 0.1 s later. Adjacent pieces are one read of the
        place. All are reported when this returns; a cancelled call reports nothing more. Only
        LocalProtocolError (a range is invalid) is raised.
        """

    async def read(
        self, blob: Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Return a copy of ``length`` bytes (0: without a read) of ``blob`` from ``offset`` on.

        :raises errors.ChunkMissing: the blob ends before ``offset + length``
        :raises errors.ChunkInvalid: the bytes do not match ``content``
        :raises errors.LocalProtocolError: ``offset`` or ``length`` is negative
        """
        if length == 0 and offset >= 0:
            return b""
        answers: list[tuple[int, Outcome]] = []
        pieces = (BlobPiece(offset, length, content),)
        await self.read_pieces(PieceRequest(blob, pieces, answers.extend))
        [(_, outcome)] = answers
        if isinstance(outcome, Exception):
            # A copy: others may get the same error, and each raise adds to its traceback.
            raise copy.copy(outcome) from outcome
        return bytes(outcome)

    def os_hash(self, blob: Blob) -> chunk_map.OsHash:
        """Return the hash of the whole blob in Glance's database, or UNKNOWN_OS_HASH."""
        return chunk_map.UNKNOWN_OS_HASH

    def source_health(self) -> Health:
        """Return the health; may be called from any thread."""
        return Health()

    @property
    def rtt_s(self) -> float:
        """Least round-trip time to the place; 0 if it is local, or unknown."""
        return 0.0

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close connections and files; the source is not used afterwards."""

    @property
    @abc.abstractmethod
    def location(self) -> str:
        """The place in words, without credentials, for errors and logs."""


class Wrapper(Source):
    """A source around another one; the base class changes nothing."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner

    @property
    def max_concurrent_reads(self) -> int:
        """The inner source's limit."""
        return self._inner.max_concurrent_reads

    async def size_bytes(self, blob: Blob) -> int:
        """Ask the inner source."""
        return await self._inner.size_bytes(blob)

    async def find_blob(self, blob: Blob) -> BlobState:
        """Ask the inner source."""
        return await self._inner.find_blob(blob)

    async def read_pieces(self, request: PieceRequest) -> None:
        """Ask the inner source."""
        await self._inner.read_pieces(request)

    def os_hash(self, blob: Blob) -> chunk_map.OsHash:
        """Ask the inner source."""
        return self._inner.os_hash(blob)

    def source_health(self) -> Health:
        """Ask the inner source."""
        return self._inner.source_health()

    @property
    def rtt_s(self) -> float:
        """The inner source's."""
        return self._inner.rtt_s

    async def aclose(self) -> None:
        """Close the inner source."""
        await self._inner.aclose()

    @property
    def location(self) -> str:
        """The inner source's place."""
        return self._inner.location
