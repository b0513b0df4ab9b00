# SPDX-License-Identifier: Apache-2.0
"""Names of disks, chunks and manifests in vaults, and strictly ascending lists of names."""

import bisect
import enum
import re
import struct
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple
from typing import overload

from acstor_common.formats import checkpoint_encryption
from acstor_common.model import ids

NAME_BYTES: Final = ids.CID_BYTES
MAX_NAMES: Final = 1 << 16  # names per request: those of 4 GiB of a disk
ALL_FIRST_BYTES: Final = range(256)  # first bytes of all names
CHUNK_HEADER: Final = struct.Struct(f"<{NAME_BYTES}sI")
"""Header of a chunk in a request: name, sealed length."""

_RANGE: Final = re.compile("([0-9a-f]{2})-([0-9a-f]{2})")
_NAME: Final = re.compile(f"[0-9a-f]{{{2 * NAME_BYTES}}}")


class VaultDisk(NamedTuple):
    """A disk with checkpoints in a vault."""

    owner: ids.HostId  # the host that took them; only it may add or delete data
    disk: ids.ImageId


class ObjectKind(enum.StrEnum):
    """Kind of an object; the value is used in paths of the protocol."""

    CHUNK = "chunks"
    MANIFEST = "manifests"


class SealedChunk(NamedTuple):
    """A sealed chunk."""

    name: bytes
    data: bytes


class RetainedNames(NamedTuple):
    """Objects of a disk to retain: ``names``, among those with first byte ``within``."""

    within: range
    names: Collection[bytes]


class NameList(Sequence[bytes]):
    """A list of names, read in place.

    >>> names = NameList(bytes(32) + bytes([7] * 32))
    >>> len(names), bytes(32) in names, bytes([8] * 32) in names
    (2, True, False)

    :raises ValueError: truncated, or not ascending
    """

    def __init__(self, buffer: bytes | memoryview) -> None:
        if len(buffer) % NAME_BYTES:
            raise ValueError(f"{len(buffer)} bytes are not a list of names of {NAME_BYTES}")
        self._view = memoryview(buffer)
        before = b""
        for name in self:
            if name <= before:
                raise ValueError("the names are not in ascending order")
            before = name

    def __len__(self) -> int:
        return len(self._view) // NAME_BYTES

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        return bytes(self._view[at * NAME_BYTES : (at + 1) * NAME_BYTES])

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, bytes):
            return False
        at = bisect.bisect_left(self, name)
        return at < len(self) and self[at] == name

    def names_with_first_byte(self, first: int) -> set[bytes]:
        """Return the names with this first byte."""
        start = bisect.bisect_left(self, bytes([first]))
        stop = bisect.bisect_left(self, bytes([first + 1])) if first < 255 else len(self)
        return set(self[start:stop])


def split(retained: RetainedNames, limit: int = MAX_NAMES) -> Iterator[RetainedNames]:
    """Split into parts of at most ``limit`` names, whose ranges cover the whole range.

    >>> retained = RetainedNames(ALL_FIRST_BYTES, [bytes([7]) * 32, bytes(32)])
    >>> [(part.within, len(part.names)) for part in split(retained)]
    [(range(0, 256), 2)]
    """
    by_first: list[list[bytes]] = [[] for _ in ALL_FIRST_BYTES]
    for name in sorted(set(retained.names)):
        by_first[name[0]].append(name)
    start, some = retained.within.start, list[bytes]()
    for first in retained.within:
        part = by_first[first]
        if some and len(some) + len(part) > limit:
            yield RetainedNames(range(start, first), some)
            start, some = first, []
        some += part
    yield RetainedNames(range(start, retained.within.stop), some)


def parse_range(text: str) -> range:
    """Return the range of first bytes in a path, or raise ValueError.

    >>> parse_range("0a-ff")
    range(10, 256)
    """
    if not (found := _RANGE.fullmatch(text)):
        raise ValueError(f"not a range of first bytes: {text[:80]!r}")
    return range(int(found[1], 16), int(found[2], 16) + 1)


def parse_name(text: str) -> bytes:
    """Return the name in a path or file name, or raise ValueError."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"not a name: {text[:80]!r}")
    return bytes.fromhex(text)


def check_length(length: int) -> None:
    """Raise ValueError if a sealed chunk cannot have this length."""
    if not checkpoint_encryption.SEAL_BYTES < length <= checkpoint_encryption.MAX_SEALED_BYTES:
        raise ValueError(f"a sealed chunk is not {length} bytes long")
