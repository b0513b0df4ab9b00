# SPDX-License-Identifier: Apache-2.0
"""What vaults call things: whose disk, chunks and manifests, and lists of such names.

The one rule: a list of names is ascending and has none twice.  So one of any length can be
checked as it comes, and looked into where it lies.
"""

import bisect
import enum
import re
import struct
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple
from typing import overload

from acstor_common.formats import checkpoint_encryption
from acstor_common.model import ids

NAME_BYTES: Final = ids.CID_BYTES
MAX_ASKED: Final = 1 << 16
"""Names in one request: of 4 GiB of a disk."""
ALL: Final = range(256)
"""The first bytes of all names."""
HEAD: Final = struct.Struct(f"<{NAME_BYTES}sI")
"""What stands before each chunk on its way to a vault: its name, and its length when sealed."""

_RANGE: Final = re.compile("([0-9a-f]{2})-([0-9a-f]{2})")
_NAME: Final = re.compile(f"[0-9a-f]{{{2 * NAME_BYTES}}}")


class Disk(NamedTuple):
    """A disk of which a vault keeps checkpoints.

    :param owner: the host that took them; it alone may add to them and drop them
    """

    owner: ids.HostId
    disk: ids.ImageId


class Kind(enum.StrEnum):
    """What is kept; the value is the word of the vaults' protocol."""

    CHUNK = "chunks"
    MANIFEST = "manifests"


class Sealed(NamedTuple):
    """A chunk as vaults keep it."""

    name: bytes
    data: bytes


class Stay(NamedTuple):
    """What of a disk stays: of the things whose first byte is in ``within``, those of ``names``."""

    within: range
    names: Collection[bytes]


class NameList(Sequence[bytes]):
    """Names, one behind the other, read where they lie.

    >>> names = NameList(pack_names([bytes([7] * 32), bytes(32)]))
    >>> len(names), bytes(32) in names, bytes([8] * 32) in names
    (2, True, False)

    :raises ValueError: they are not whole, or not in ascending order
    """

    def __init__(self, buffer: bytes | memoryview) -> None:
        if len(buffer) % NAME_BYTES:
            raise ValueError(f"{len(buffer)} bytes are no names of {NAME_BYTES}")
        self._view = memoryview(buffer)
        before = b""
        for name in self:
            if name <= before:
                raise ValueError("the names are not in ascending order")
            before = name

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self._view) // NAME_BYTES

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        """Return a name, or some of them."""
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        return bytes(self._view[at * NAME_BYTES : (at + 1) * NAME_BYTES])

    def __contains__(self, name: object) -> bool:
        """Say whether a name is there."""
        if not isinstance(name, bytes):
            return False
        at = bisect.bisect_left(self, name)
        return at < len(self) and self[at] == name

    def beginning_with(self, first: int) -> set[bytes]:
        """Return the names whose first byte is this."""
        start = bisect.bisect_left(self, bytes([first]))
        stop = bisect.bisect_left(self, bytes([first + 1])) if first < 255 else len(self)
        return set(self[start:stop])


def pack_names(names: Iterable[bytes]) -> bytes:
    """Return names as a list of them is written."""
    return b"".join(sorted(set(names)))


def split(stay: Stay) -> Iterator[Stay]:
    """Yield what stays in parts of MAX_ASKED names at most, whose ranges cover the whole one.

    >>> [(part.within, len(part.names)) for part in split(Stay(ALL, [bytes([7]) * 32, bytes(32)]))]
    [(range(0, 256), 2)]
    """
    by_first: list[list[bytes]] = [[] for _ in ALL]
    for name in sorted(set(stay.names)):
        by_first[name[0]].append(name)
    start, some = stay.within.start, list[bytes]()
    for first in stay.within:
        part = by_first[first]
        if some and len(some) + len(part) > MAX_ASKED:
            yield Stay(range(start, first), some)
            start, some = first, []
        some += part
    yield Stay(range(start, stay.within.stop), some)


def parse_range(text: str) -> range:
    """Return the first bytes that stand in a path.

    >>> parse_range("0a-ff")
    range(10, 256)

    :raises ValueError: they are none
    """
    if not (found := _RANGE.fullmatch(text)):
        raise ValueError(f"not a range of first bytes: {text[:80]!r}")
    return range(int(found[1], 16), int(found[2], 16) + 1)


def parse_name(text: str) -> bytes:
    """Return the name that stands in a path or is a file's.

    :raises ValueError: it is none
    """
    if not _NAME.fullmatch(text):
        raise ValueError(f"not a name: {text[:80]!r}")
    return bytes.fromhex(text)


def check_length(length: int) -> None:
    """Return if a sealed chunk can be so long.

    :raises ValueError: it cannot
    """
    if not checkpoint_encryption.SEAL_BYTES < length <= checkpoint_encryption.MAX_SEALED_BYTES:
        raise ValueError(f"a sealed chunk is not {length} bytes long")
