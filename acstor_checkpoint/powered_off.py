# SPDX-License-Identifier: Apache-2.0
"""The disk of a server that is off, shown over NBD as QEMU shows that of one that runs.

``qemu-nbd`` reads the overlay without locking it, so that the server can be started at any
time.  The one rule: if anybody wrote to it meanwhile, nothing of what was read is used.
"""

import contextlib
import json
import pathlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from typing import Final

from acstor_checkpoint import overlay
from acstor_checkpoint import servers
from acstor_common import errors

EXPORT: Final = "disk"
_DEADLINE_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.02
_INFO_BYTES: Final = 1 << 20


class Started(errors.Unusable):
    """The server was started, or somebody else wrote to its disk: take it again."""


def bitmaps(disk: servers.Disk, base_of: servers.BaseOf) -> set[str]:
    """Return the bitmaps of an overlay that are whole.

    :raises errors.Unusable: it cannot be read, or does not lie on the mirror of its image
    """
    path = disk.path
    argv = ["qemu-img", "info", "-U", "--output=json", _image(disk, base_of)]
    try:
        said = subprocess.run(argv, capture_output=True, timeout=_DEADLINE_S, check=True).stdout
        info: Any = json.loads(said[:_INFO_BYTES])
        found = info.get("format-specific", {}).get("data", {}).get("bitmaps", [])
        return {bitmap["name"] for bitmap in found if "in-use" not in bitmap["flags"]}
    except subprocess.CalledProcessError as e:
        raise errors.Unusable(path, e.stderr.decode(errors="replace").strip()[:500]) from e
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
        raise errors.Unusable(path, f"its bitmaps are not known: {e}") from e


@contextlib.contextmanager
def shown(
    disk: servers.Disk, base_of: servers.BaseOf, bitmap: str, folder: pathlib.Path
) -> Iterator[str]:
    """Show a disk until the block ends; yield the path of the socket.

    :param bitmap: is shown with it; "" for none
    :param folder: for the socket
    :raises Started: at the end: what was read is not to be used
    :raises errors.Unusable: it cannot be shown, or does not lie on the mirror of its image
    """
    before = overlay.stamp(disk.path)
    socket = folder / f"off-{before.inode}.sock"
    argv = ["qemu-nbd", "--read-only", "--persistent", "--shared=1", "--socket", str(socket)]
    argv += ["--export-name", EXPORT, *(["--bitmap", bitmap] if bitmap else [])]
    argv.append(_image(disk, base_of, backing=_mirror(disk.path)))
    socket.unlink(missing_ok=True)
    try:
        server = subprocess.Popen(argv, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert server.stderr is not None
    except OSError as e:
        raise errors.Unusable("qemu-nbd", str(e)) from e
    try:
        _wait(server, socket)
        yield str(socket)
    finally:
        server.kill()
        server.wait(_DEADLINE_S)
        server.stderr.close()
        socket.unlink(missing_ok=True)
    if overlay.stamp(disk.path) != before:
        raise Started(disk.path, "somebody wrote to it while it was read")


def _wait(server: "subprocess.Popen[bytes]", socket: pathlib.Path) -> None:
    end_s = time.monotonic() + _DEADLINE_S
    while not socket.is_socket():
        if server.poll() is not None:
            why = server.stderr.read().decode(errors="replace") if server.stderr else ""
            raise errors.Unusable("qemu-nbd", why.strip()[:500])
        if time.monotonic() > end_s:
            raise errors.Unusable("qemu-nbd", f"it shows nothing after {_DEADLINE_S:g} s")
        time.sleep(_LOOK_EVERY_S)


def _image(disk: servers.Disk, base_of: servers.BaseOf, **more: object) -> str:
    """Return what QEMU's tools take for the overlay, without a lock and whatever its name is.

    :raises errors.Unusable: its header leads elsewhere than to the mirror of its image
    """
    overlay.check(disk.path, base_of, disk.base)
    image = {"driver": "qcow2", "force-share": True, "file": _file(disk.path), **more}
    return "json:" + json.dumps(image)


def _mirror(path: str) -> dict[str, object]:
    """Return what an overlay lies on: raw, whatever its header says of that."""
    return {"driver": "raw", "file": _file(overlay.beneath(path))}


def _file(path: str) -> dict[str, str]:
    return {"driver": "file", "filename": path}
