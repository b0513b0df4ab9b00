# SPDX-License-Identifier: Apache-2.0
"""NBD export of a powered-off server's disk; no lock, so that the server can start."""

import contextlib
import json
import pathlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from typing import Final

from acstor_checkpoint.capture import nbd_client
from acstor_checkpoint.capture import overlay
from acstor_checkpoint.capture.domains import domain_xml
from acstor_common import errors
from acstor_common.disks import local_file

EXPORT: Final = "disk"
_DEADLINE_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.02
_INFO_BYTES: Final = 1 << 20


class DiskChanged(errors.Unusable):
    """The server was started, or its disk was written: retry."""


def list_bitmaps(disk: domain_xml.RootDisk, base_of: domain_xml.FindBase) -> set[str]:
    """Return the consistent bitmaps of an overlay, or raise Unusable."""
    path = disk.path
    try:
        with _opened(disk, base_of) as fd:
            argv = ["qemu-img", "info", "-U", "--output=json", _image(fd)]
            output = subprocess.run(
                argv, capture_output=True, timeout=_DEADLINE_S, check=True, pass_fds=[fd]
            ).stdout
        info: Any = json.loads(output[:_INFO_BYTES])
        found = info.get("format-specific", {}).get("data", {}).get("bitmaps", [])
        return {bitmap["name"] for bitmap in found if "in-use" not in bitmap["flags"]}
    except subprocess.CalledProcessError as e:
        raise errors.Unusable(path, e.stderr.decode(errors="replace").strip()[:500]) from e
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
        raise errors.Unusable(path, f"its bitmaps are unknown: {e}") from e


@contextlib.contextmanager
def export_disk(
    disk: domain_xml.RootDisk,
    base_of: domain_xml.FindBase,
    bitmap: str,
    folder: pathlib.Path,
    mirrors: str,
) -> Iterator[nbd_client.Export]:
    """Export a disk until the block ends.

    :param bitmap: exported as well; "": none
    :raises DiskChanged: at the end: discard the data
    :raises errors.Unusable: it cannot be exported, or is not on the mirror of its image
    """
    before = overlay.stamp(disk.path)
    socket = folder / f"off-{before.inode}.sock"
    socket.unlink(missing_ok=True)
    with _opened(disk, base_of) as fd:
        size_bytes = overlay.virtual_size(fd, disk.path)
        # Raw, whatever the header declares, and without Nova's link.
        mirror = {"driver": "raw", "file": _file(f"{mirrors}/{disk.base}.raw")}
        server = _start_server(fd, _image(fd, backing=mirror), bitmap, socket)
    try:
        _wait(server, socket)
        yield nbd_client.Export(str(socket), EXPORT, server.pid, size_bytes)
    finally:
        server.kill()
        server.wait(_DEADLINE_S)
        if server.stderr is not None:
            server.stderr.close()
        socket.unlink(missing_ok=True)
    if overlay.stamp(disk.path) != before:
        raise DiskChanged(disk.path, "it was modified while it was read")


def _start_server(
    fd: int, image: str, bitmap: str, socket: pathlib.Path
) -> "subprocess.Popen[bytes]":
    argv = ["qemu-nbd", "--read-only", "--persistent", "--shared=1", "--socket", str(socket)]
    argv += ["--export-name", EXPORT, *(["--bitmap", bitmap] if bitmap else []), image]
    try:
        return subprocess.Popen(
            argv, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, pass_fds=[fd]
        )
    except OSError as e:
        raise errors.Unusable("qemu-nbd", str(e)) from e


def _wait(server: "subprocess.Popen[bytes]", socket: pathlib.Path) -> None:
    end_s = time.monotonic() + _DEADLINE_S
    while not socket.is_socket():
        if server.poll() is not None:
            why = server.stderr.read().decode(errors="replace") if server.stderr else ""
            raise errors.Unusable("qemu-nbd", why.strip()[:500])
        if time.monotonic() > end_s:
            raise errors.Unusable("qemu-nbd", f"it exports nothing after {_DEADLINE_S:g} s")
        time.sleep(_LOOK_EVERY_S)


@contextlib.contextmanager
def _opened(disk: domain_xml.RootDisk, base_of: domain_xml.FindBase) -> Iterator[int]:
    """Open an overlay for the block; Unusable unless its header names the mirror."""
    with overlay.open_file(disk.path) as fd:
        for path in (disk.path, local_file.path_of(fd)):  # a recovery marker is beside the former
            overlay.check_backing(fd, disk.path, base_of(path), disk.base)
        yield fd


def _image(fd: int, **more: object) -> str:
    path = local_file.path_of(fd)
    return "json:" + json.dumps(
        {"driver": "qcow2", "force-share": True, "file": _file(path), **more}
    )


def _file(path: str) -> dict[str, str]:
    return {"driver": "file", "filename": path}
