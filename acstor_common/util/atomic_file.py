# SPDX-License-Identifier: Apache-2.0
"""Atomic replacement of files: a reader sees the old file or the new one."""

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

INCOMING = ".incoming-"  # of files that are being written, and those that killed writers left


@contextlib.contextmanager
def atomic_write(
    path: pathlib.Path, mode: int = 0o644, *, is_durable: bool = True
) -> Iterator[IO[bytes]]:
    """Yield a new file; rename it to ``path`` on success, delete it on failure.

    :param is_durable: sync to disk; otherwise a power failure may leave a file of zeros
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
    """Sync a folder, so that its entries survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: pathlib.Path, name: str = "") -> None:
    """Delete what killed writers of ``name``, or of all files, left; no writer may be active."""
    with contextlib.suppress(OSError):
        for left in folder.glob(f"{INCOMING}{glob.escape(name)}*"):
            left.unlink(missing_ok=True)


def make_private(folder: pathlib.Path) -> None:
    """Create a folder of mode 0700; Unusable if it exists and others have access."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            raise errors.Unusable(
                str(folder),
                f"the folder exists, and other users may access it (mode {mode:03o})",
                "Use one that does not exist yet, or remove their access (chmod 700)",
            ) from None


def write_secrets(folder: pathlib.Path, files: Mapping[str, bytes]) -> None:
    """Write files of mode 0600 into a folder; see :func:`make_private`."""
    make_private(folder)
    for name, data in files.items():
        with atomic_write(folder / name, 0o600) as file:
            file.write(data)
