# SPDX-License-Identifier: Apache-2.0
"""What every source is: random-access reads of blobs, nothing more.

A blob is either an image's bytes or its chunk map.  Wrappers (coalesce, retry,
verify, failover) are sources too, so they stack.
"""

import abc
import enum
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import ids


class BlobKind(enum.Enum):
    """What a source is asked for; the value is the file name's ending."""

    IMAGE = ".raw"
    CHUNK_MAP = ".acmap"


class Blob(NamedTuple):
    """One thing that a source can hold."""

    image_id: ids.ImageId
    kind: BlobKind

    @property
    def name(self) -> str:
        """File name of the blob in sources that are made of files."""
        return f"{self.image_id}{self.kind.value}"


class Source(abc.ABC):
    """Random access to blobs.

    Every method may raise :class:`errors.ChunkMissing` (there is no such blob,
    or it is shorter than asked) and :class:`errors.SourceUnreachable` (a passing
    fault).  All methods may be called by many tasks at once.
    """

    @abc.abstractmethod
    async def size_bytes(self, blob: Blob) -> int:
        """Return the length of ``blob``."""

    @abc.abstractmethod
    async def read(
        self, blob: Blob, offset: int, length: int, cid: ids.Cid | None = None
    ) -> bytes:
        """Return exactly ``length`` bytes of ``blob`` from ``offset`` on.

        :param cid: what the bytes must hash to, where the range is one chunk; only the verify
            wrapper looks at it, every other source passes it on or ignores it
        :raises errors.ChunkMissing: the blob ends before ``offset + length``
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Let go of connections and files; the source is not used afterwards."""

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """The place in words, for errors and logs (a URL without credentials, a folder)."""

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Options of the source; they are registered in a group ``source_<name>``."""
        return []

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, group: cfg.GroupAttr) -> "Source":
        """Make the source from its option group."""
