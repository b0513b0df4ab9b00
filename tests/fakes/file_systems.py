# SPDX-License-Identifier: Apache-2.0
"""File systems of a test's own, in a file, where this machine lets them be mounted."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator

MAKE = {
    "xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"],
    "plain-xfs": ["mkfs.xfs", "-q", "-m", "reflink=0"],
    "ext4": ["mkfs.ext4", "-q"],
}
DEADLINE_S = 120
_READINGS = 50


def why_not(kind: str = "xfs") -> str:
    """Say why there can be none here; empty if there can."""
    tool = MAKE[kind][0]
    if os.geteuid():
        return "only root mounts file systems"
    if shutil.which(tool) is None:
        return f"{tool} is not installed: run tools/install.sh"
    return "" if pathlib.Path("/dev/loop-control").exists() else "there are no loop devices"


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, size_bytes: int, mode: str = "1777") -> Iterator[pathlib.Path]:
    """Mount a file system in memory on a new folder until the block ends.

    :param mode: of its root
    """
    folder.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode={mode}", "tmpfs", folder)
    try:
        yield folder
    finally:
        run("umount", "--lazy", folder)


@contextlib.contextmanager
def mounted(
    folder: pathlib.Path, size_bytes: int, kind: str = "xfs", *, direct: bool = False
) -> Iterator[pathlib.Path]:
    """Yield the folder of a new file system, which is gone after the block.

    :param folder: where its file and its mount point are made
    :param direct: its blocks are in no page cache but that of its files
    """
    device, at = folder / f"{kind}.img", folder / kind
    at.mkdir()
    with device.open("wb") as file:
        file.truncate(size_bytes)
    run(*MAKE[kind], device)
    flags = ["--direct-io=on"] if direct else []
    loop = run("losetup", "--find", "--show", *flags, device).strip()
    try:
        run("mount", loop, at)
        try:
            yield at
        finally:
            run("umount", at)
    finally:
        run("losetup", "--detach", loop)
        device.unlink()


def run(*words: str | os.PathLike[str]) -> str:
    """Run a command that works; return what it says.

    :raises subprocess.CalledProcessError: it does not
    """
    done = subprocess.run(words, check=True, timeout=DEADLINE_S, capture_output=True, text=True)
    return done.stdout


@contextlib.contextmanager
def shown_at(folder: pathlib.Path, at: pathlib.Path) -> Iterator[None]:
    """Show a folder in the place of another one until the block ends."""
    run("mount", "--bind", folder, at)
    try:
        yield
    finally:
        run("umount", "--lazy", at)


def used_bytes(at: pathlib.Path) -> int:
    """Return how much of a file system is used, when all is on its disk.

    XFS frees what was deleted a little later, so two readings have to agree.
    """
    used = _used_bytes(at)
    for _ in range(_READINGS):
        time.sleep(0.1)
        before, used = used, _used_bytes(at)
        if used == before:
            break
    return used


def _used_bytes(at: pathlib.Path) -> int:
    descriptor = os.open(at, os.O_RDONLY)
    try:
        os.sync()
        found = os.fstatvfs(descriptor)
    finally:
        os.close(descriptor)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
