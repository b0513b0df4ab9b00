# SPDX-License-Identifier: Apache-2.0
"""A file that is written whole: it has its name only when all of it is on disk.

The one rule: whoever looks under the name finds the old file or the new one, also
after a kill, and after a power failure if it is durable.  What a kill leaves behind is called
:data:`INCOMING` and the name that it would have got, and may be deleted by whoever owns that.
"""

import contextlib
import glob
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator
from collections.abc import Mapping
from typing import IO

from acstor_common import errors

INCOMING = ".incoming-"
"""What a file is called before it is whole."""


@contextlib.contextmanager
def atomic_write(
    path: pathlib.Path, mode: int = 0o644, *, is_durable: bool = True
) -> Iterator[IO[bytes]]:
    """Yield a new file that takes the name ``path`` if the block succeeds, and goes if it fails.

    :param is_durable: wait for the disk; without it a power failure may leave a file of zeros,
        which is enough for what is checked when it is read and can be had again
    :raises OSError: it cannot be made, written or renamed
    """
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f"{INCOMING}{path.name}-", delete=False
    ) as file:
        try:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            if is_durable:
                os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    if is_durable:
        sync_folder(path.parent)


def sync_folder(folder: pathlib.Path) -> None:
    """Make names that were given or taken in ``folder`` outlive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: pathlib.Path, name: str = "") -> None:
    """Delete what killed processes left in ``folder``; nobody may be writing there.

    What cannot be deleted stays: it does no harm but for its room.

    :param name: of the one file that is meant; by default all are
    """
    with contextlib.suppress(OSError):
        for left in folder.glob(f"{INCOMING}{glob.escape(name)}*"):
            left.unlink(missing_ok=True)


def make_private(folder: pathlib.Path) -> None:
    """Make a folder that only its owner may enter; one that is there keeps its mode.

    :raises errors.Unusable: it is there, and others may enter or read it
    :raises OSError: it cannot be made
    """
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            raise errors.Unusable(
                str(folder),
                f"the folder is there, and others than its owner may use it (mode {mode:03o})",
                "Name one that is not there yet, or take their rights away (chmod 700)",
            ) from None


def write_secrets(folder: pathlib.Path, files: Mapping[str, bytes]) -> None:
    """Write files that only their owner may read, into a folder that only he may enter.

    :raises errors.Unusable: see :func:`make_private`
    :raises OSError: they cannot be written, or the folder cannot be made
    """
    make_private(folder)
    for name, data in files.items():
        with atomic_write(folder / name, 0o600) as file:
            file.write(data)
