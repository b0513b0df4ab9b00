# SPDX-License-Identifier: Apache-2.0
"""File systems in image files, on machines that can mount them."""

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
    """Return why this machine cannot mount one, "" if it can."""
    tool = MAKE[kind][0]
    if os.geteuid():
        return "only root mounts file systems"
    if shutil.which(tool) is None:
        return f"{tool} is not installed: run tools/install.sh"
    return "" if pathlib.Path("/dev/loop-control").exists() else "there are no loop devices"


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, size_bytes: int, mode: str = "1777") -> Iterator[pathlib.Path]:
    """Mount a tmpfs on a new folder for the block.

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
    """Yield the mount point of a new file system, removed after the block.

    :param folder: parent of its image file and mount point
    :param direct: the loop device bypasses the page cache of the image file
    """
    device, at = folder / f"{kind}.img", folder / kind
    at.mkdir()
    with device.open("wb") as file:
        file.truncate(size_bytes)
    run(*MAKE[kind], device)
    with loop_device(device, *(["--direct-io=on"] if direct else [])) as loop:
        device.unlink()
        run("mount", loop, at)
        try:
            yield at
        finally:
            run("umount", at)


@contextlib.contextmanager
def loop_device(file: pathlib.Path, *options: str) -> Iterator[str]:
    """Yield the path of a loop device over a file; it is detached after the block."""
    loop = run("losetup", "--find", "--show", *options, file).strip()
    try:
        yield loop
    finally:
        run("losetup", "--detach", loop)


def run(*words: str | os.PathLike[str]) -> str:
    """Run a command; return its output.

    :raises subprocess.CalledProcessError: it fails
    """
    done = subprocess.run(words, check=True, timeout=DEADLINE_S, capture_output=True, text=True)
    return done.stdout


@contextlib.contextmanager
def shown_at(folder: pathlib.Path, at: pathlib.Path) -> Iterator[None]:
    """Bind-mount a folder over another one for the block."""
    run("mount", "--bind", folder, at)
    try:
        yield
    finally:
        run("umount", "--lazy", at)


def used_bytes(at: pathlib.Path) -> int:
    """Return the used bytes of a file system after a sync.

    XFS frees deleted blocks later, so two consecutive readings must agree.
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
