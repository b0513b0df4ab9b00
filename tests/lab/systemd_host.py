# SPDX-License-Identifier: Apache-2.0
"""A host with systemd: this machine's system, or another root, in a container.

Its changes are in memory, over the root file system, and are lost at its end.  All mounts are in
namespaces that end with the container's process.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from typing import Self

from acstor_common import errors
from tests.lab import runs

NEEDED = ("systemd-nspawn", "unshare", "nsenter")
BOOT_S = 60.0
END_S = 60.0
BOOTED = "basic.target"
SYSTEM_CALLS = "pidfd_getfd process_mrelease"
"""System calls allowed to units on a host, and usually not in containers."""

# Arguments: an empty folder, the lower root, then systemd-nspawn's.
_SCRIPT = """
folder=$1 lower=$2; shift 2
mount -t tmpfs -o mode=755 tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
layers=lowerdir=$lower,upperdir=$folder/upper,workdir=$folder/work
mount -t overlay -o "$layers" overlay "$folder/root"
mount -t tmpfs -o mode=755 tmpfs /run
exec systemd-nspawn --directory="$folder/root" "$@"
"""


class SystemdHost:
    """Context manager: the booted host.

    :param folder: for its log
    :param shown: folders outside the root file system to show at the same path
    :param shown_at: read-only folders of this machine, by their path in the host
    :param root: its root file system, which stays unchanged
    :param has_network: it shares this machine's network; otherwise it has none
    """

    def __init__(
        self,
        folder: pathlib.Path,
        shown: Sequence[pathlib.Path],
        shown_at: dict[str, pathlib.Path],
        root: pathlib.Path = pathlib.Path("/"),
        has_network: bool = False,
    ) -> None:
        self._log = folder / "console.log"
        self._folder = folder / "host"
        binds = [f"--bind={path}" for path in ("/dev/fuse", *shown)]
        binds += [f"--bind-ro={path}:{place}" for place, path in shown_at.items()]
        self._argv = [
            *("unshare", "--mount", "--propagation=private", "sh", "-euc", _SCRIPT, "sh"),
            *(self._folder, root, "--quiet", "--register=no", "--keep-unit"),
            *(() if has_network else ("--private-network",)),
            f"--system-call-filter={SYSTEM_CALLS}",
            *(f"--machine=acstor-{uuid.uuid4().hex[:8]}", *binds, "--boot"),
            *("--", f"--unit={BOOTED}"),
        ]

    def __enter__(self) -> Self:
        """Boot it.

        :raises errors.Unusable: this machine cannot; has its output
        """
        for command in NEEDED:
            if shutil.which(command) is None:
                raise errors.Unusable(command, "this command is not installed")
        self._folder.mkdir()
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        with runs.on_failure(self.__exit__):
            runs.wait_for(self._is_booted, BOOT_S, "a container with systemd", self.log)
        return self

    def __exit__(self, *_: object) -> None:
        inside = None
        with contextlib.suppress(errors.Unusable, OSError):
            inside = os.pidfd_open(self._first_pid())
        self._process.send_signal(signal.SIGTERM)  # it shuts down
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            if inside is not None:  # a kill of systemd-nspawn alone would leave it running
                signal.pidfd_send_signal(inside, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        finally:
            if inside is not None:
                os.close(inside)

    def log(self) -> str:
        """Return its console log."""
        return self._log.read_text(errors="replace")

    def _is_booted(self) -> bool:
        if self._process.poll() is not None:
            raise errors.Unusable("a container with systemd", self.log()[-2000:])
        with contextlib.suppress(errors.Unusable):
            return self.run("systemctl", "is-active", BOOTED).strip() == "active"
        return False

    def _first_pid(self) -> int:
        """Return systemd's pid on this machine.

        :raises errors.Unusable: it has none yet
        """
        pid = self._process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            raise errors.Unusable("a container with systemd", "it has not begun to boot")
        return int(children[0])

    def path(self, inside: str | pathlib.Path) -> pathlib.Path:
        """Return this machine's path of one of its files."""
        return pathlib.Path(f"/proc/{self._first_pid()}/root{inside}")

    def run(self, *argv: str | pathlib.Path) -> str:
        """Run a command there and return its output.

        :raises errors.Unusable: it failed; has its output
        """
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
        return runs.tool(["nsenter", f"--target={self._first_pid()}", *spaces, "--", *argv])
