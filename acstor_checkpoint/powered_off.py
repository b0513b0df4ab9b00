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


def bitmaps(path: str) -> set[str]:
    """Return the bitmaps of an overlay that are whole.

    :raises errors.Unusable: it cannot be read
    """
    argv = ["qemu-img", "info", "-U", "--output=json", _image(path)]
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
def shown(disk: servers.Disk, bitmap: str, folder: pathlib.Path) -> Iterator[str]:
    """Show a disk until the block ends; yield the path of the socket.

    :param bitmap: is shown with it; "" for none
    :param folder: for the socket
    :raises Started: at the end: what was read is not to be used
    :raises errors.Unusable: it cannot be shown
    """
    before = overlay.stamp(disk.path)
    socket = folder / f"off-{before.inode}.sock"
    argv = ["qemu-nbd", "--read-only", "--persistent", "--shared=1", "--socket", str(socket)]
    argv += ["--export-name", EXPORT, *(["--bitmap", bitmap] if bitmap else []), _image(disk.path)]
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


def _image(path: str) -> str:
    """Return what QEMU's tools take for the overlay, without a lock and whatever its name is."""
    file = {"driver": "file", "filename": path}
    return "json:" + json.dumps({"driver": "qcow2", "force-share": True, "file": file})
