# SPDX-License-Identifier: Apache-2.0
"""A service manager with a file descriptor store (sd_notify(3)), for agents.

It holds the descriptors it receives, and passes them to the agent as systemd does:
from descriptor 3 on, with their names in the environment.
"""

import os
import pathlib
import select
import socket
import subprocess
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Self

FIRST_FD = 3
MESSAGE_BYTES = 4096
ROOM = 4
"""FileDescriptorStoreMax of the unit."""


class DescriptorKeeper:
    """Context manager: the notify socket and the stored descriptors."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.kept: dict[str, list[int]] = {}
        self.reported: list[str] = []

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.drop()

    def drop(self) -> None:
        """Close all descriptors, as systemd does when a unit has stopped."""
        for fd in self._all():
            os.close(fd)
        self.kept.clear()

    def _all(self) -> list[int]:
        return [fd for fds in self.kept.values() for fd in fds]

    def start(
        self,
        argv: Sequence[str | pathlib.Path],
        log: pathlib.Path,
        changes: Mapping[str, str] | None = None,
    ) -> subprocess.Popen:
        """Start an agent with all stored descriptors.

        :param changes: environment variables to set
        """
        names = [name for name, fds in self.kept.items() for _ in fds]
        # A shell moves the descriptors to their numbers and sets LISTEN_PID.
        moves = " ".join(f"{number}<&{fd}" for number, fd in enumerate(self._all(), FIRST_FD))
        script = f'export LISTEN_PID=$$; exec "$@" {moves}'
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(self._path),
            "FDSTORE": str(ROOM),
            "LISTEN_FDS": str(len(names)),
            "LISTEN_FDNAMES": ":".join(names),
            **(changes or {}),
        }
        with log.open("ab") as out:
            return subprocess.Popen(
                ["bash", "-c", script, "bash", *argv],
                env=environment,
                pass_fds=self._all(),
                start_new_session=True,  # a terminal's SIGINT must not reach the agent
                stdout=out,
                stderr=out,
            )

    def listen(self, until: str, deadline_s: float) -> None:
        """Handle messages up to one that contains ``until``.

        :raises TimeoutError: it did not arrive in time
        """
        ends_s = time.monotonic() + deadline_s
        while True:
            left_s = max(0.0, ends_s - time.monotonic())
            readable, _, _ = select.select([self._socket], [], [], left_s)
            if not readable:
                raise TimeoutError(f"{until} was not received; received: {self.reported}")
            data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 8)
            text = data.decode()
            self.reported.append(text)
            self._obey(dict(line.split("=", 1) for line in text.splitlines()), fds)
            if until in text:
                return

    def _obey(self, message: dict[str, str], fds: list[int]) -> None:
        name = message.get("FDNAME", "")
        if "FDSTOREREMOVE" in message and name in self.kept:
            for fd in self.kept.pop(name):
                os.close(fd)
        if fds and name in self.kept:
            raise ValueError(f"{name} is kept already")
        if fds:
            self.kept[name] = fds[::-1]  # systemd hands over the last one first
