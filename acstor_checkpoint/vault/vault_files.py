# SPDX-License-Identifier: Apache-2.0
"""Files of a vault; others are ignored, except for leftovers of killed writers."""

import contextlib
import fcntl
import logging
import os
import pathlib
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import IO
from typing import Final
from typing import TypeVar

import blake3

from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

CHECKSUM_BYTES: Final = 32
PIECE_BYTES: Final = 1 << 20
_LOCK: Final = ".lock"
_SHARD: Final = re.compile("[0-9a-f]{2}")

Pieces = Iterable[bytes]
_T = TypeVar("_T")


@contextlib.contextmanager
def locked(folder: pathlib.Path, why: str = "another process uses this vault") -> Iterator[None]:
    """Create a private folder if needed, and lock it, or raise OSError.

    :raises errors.Unusable: locked by another process (error text ``why``), or accessible to others
    """
    atomic_file.make_private(folder)
    with (folder / _LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise errors.Unusable(str(folder), why, "Set a different folder for each") from e
        yield


def path_of(folder: pathlib.Path, kind: object_names.ObjectKind, name: bytes) -> pathlib.Path:
    """Return an object's path in the folder of its disk."""
    text = name.hex()
    return folder / (kind.value if kind is object_names.ObjectKind.MANIFEST else text[:2]) / text


def chunk_path(folder: str, name: bytes) -> str:
    """Return the path of a chunk, optimized."""
    text = name.hex()
    return f"{folder}/{text[:2]}/{text}"


def owners_in(folder: pathlib.Path) -> Iterator[ids.HostId]:
    """Yield the hosts with data."""
    return _parsed(folder, ids.parse_host_id)


def disks_in(folder: pathlib.Path) -> Iterator[ids.ImageId]:
    """Yield the disks in the folder of a host."""
    return _parsed(folder, ids.parse_image_id)


def parts_of(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the folders of a disk that hold files."""
    for name in _folders(folder):
        if name == object_names.ObjectKind.MANIFEST or _SHARD.fullmatch(name):
            yield folder / name


def names_in(part: pathlib.Path) -> Iterator[bytes]:
    """Yield a disk's object names one at a time: an owner may put all in one folder."""
    with contextlib.suppress(FileNotFoundError), os.scandir(part) as found:
        for entry in found:
            try:
                name = object_names.parse_name(entry.name)
            except ValueError:
                _warn_ignored(part / entry.name)
            else:
                yield name


def sizes_in(folder: pathlib.Path) -> Iterator[int]:
    """Yield the size of each file and folder of a disk; remove leftovers."""
    atomic_file.remove_leftovers(folder)
    yield quota.BLOCK_BYTES
    for part in parts_of(folder):
        yield quota.BLOCK_BYTES
        with os.scandir(part) as found:
            for entry in found:
                yield entry.stat(follow_symlinks=False).st_size


def write(path: pathlib.Path, length: int, pieces: Pieces, checksum: bytes | None = None) -> None:
    """Write a file and its checksum, without sync; ValueError: other length or checksum."""
    found = blake3.blake3(max_threads=1)
    with path.open("xb", buffering=0) as file:
        for piece in _exactly(pieces, length):
            found.update(piece)
            _write_all(file.fileno(), piece)
        digest = found.digest()
        if checksum not in (None, digest):
            raise ValueError("its name is not the hash of its bytes")
        _write_all(file.fileno(), digest)


def discard(pieces: Pieces, length: int) -> None:
    """Consume data of ``length`` bytes; ValueError for a wrong length."""
    for _ in _exactly(pieces, length):
        pass


def checked_length(file: IO[bytes]) -> int | None:
    """Return the length of a file's data; None if it is corrupt."""
    length = os.fstat(file.fileno()).st_size - CHECKSUM_BYTES
    found = blake3.blake3(max_threads=1)
    for piece in pieces_of(file, length):
        found.update(piece)
    return length if file.read(CHECKSUM_BYTES) == found.digest() else None


def pieces_of(file: IO[bytes], length: int) -> Iterator[bytes]:
    """Yield the next ``length`` bytes of a file, or fewer at its end."""
    while length > 0 and (piece := file.read(min(length, PIECE_BYTES))):
        length -= len(piece)
        yield piece


def _exactly(pieces: Pieces, length: int) -> Iterator[bytes]:
    left = length
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise ValueError(f"not the {length} bytes that were announced")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _folders(folder: pathlib.Path) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _parsed(folder: pathlib.Path, parse: Callable[[str], _T]) -> Iterator[_T]:
    for name in _folders(folder):
        try:
            parsed = parse(name)
        except ValueError:
            _warn_ignored(folder / name)
        else:
            yield parsed


def _warn_ignored(path: pathlib.Path) -> None:
    LOG.warning("%s: not a file of a vault; ignored", path)
