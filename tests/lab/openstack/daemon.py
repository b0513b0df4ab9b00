# SPDX-License-Identifier: Apache-2.0
"""A process of the lab's OpenStack: start, readiness, stop by its pid, log.

A start records the pid and its start time beneath the state folder at once, so any later command,
or the next run after a killed one, stops exactly this process.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO

from acstor_common import errors
from tests.lab import forked_commands
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import installed

LOOPBACK = "127.0.0.1"
READY_DEADLINE_S = 120.0
STOP_DEADLINE_S = 30.0


def port_of(folder: pathlib.Path, name: str) -> int:
    """Return the port of ``name`` in this state folder, chosen at first use."""
    record = folder / "run" / f"{name}.port"
    if not record.exists():
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(str(local.unused_port()))
    return int(record.read_text())


def is_listening(port: int, address: str = LOOPBACK) -> bool:
    """Return whether a port accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), 5.0):
        return True
    return False


class Daemon:
    """A process that runs until it is stopped.

    A subclass defines the command (:meth:`argv`), its environment, and its readiness.

    :param folder: the state folder that all daemons of one cloud share
    """

    stop_signal = signal.SIGTERM

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        self.name, self.folder = name, folder
        self.log_path = folder / "log" / f"{name}.log"
        # protects it from garbage collection
        self._process: subprocess.Popen[bytes] | forked_commands.ForkedCommand | None = None
        self._record = folder / "run" / f"{name}{runs.RECORD_SUFFIX}"

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the command to run."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return environment variables besides the common ones."""
        return {}

    def is_ready(self) -> bool:
        """Return whether the running process is ready."""
        return True

    def configure(self) -> None:
        """Write the files that the process reads at its start."""

    @property
    def mark(self) -> str:
        """The name of a file system that only this process and its children see."""
        return runs.mark_of(self._record)

    @property
    def pid(self) -> int | None:
        """The pid, also if started by another run; None if it is not running."""
        return runs.recorded_pid(self._record)

    def log(self) -> str:
        """Return its output so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> None:
        """Start it, if it is not running, without waiting."""
        if self.pid is not None:
            return
        for path in (self.log_path, self._record):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.configure()
        with self.log_path.open("ab") as out:
            self._process = self.launch(out)
        runs.record(self._process.pid, self._record)

    def launch(self, out: IO[bytes]) -> subprocess.Popen[bytes] | forked_commands.ForkedCommand:
        """Start the process in a session of its own."""
        return subprocess.Popen(
            self.argv(),
            cwd=self.log_path.parent,  # for core dumps
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PATH": f"{installed.BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(runs.CHECKOUT),
            **self.environment(),
        }

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Wait until it is ready.

        :raises errors.Unusable: it ended or took too long; has the end of its log
        """
        runs.wait_for(self._is_alive_and_ready, deadline_s, self.name, self.log)

    def _is_alive_and_ready(self) -> bool:
        if self.pid is None:
            raise errors.Unusable(self.name, f"it has ended: {self.log()[-2000:]}")
        return self.is_ready()

    def signal(self, number: int) -> None:
        """Signal it and its children; after SIGSTOP, return when all are stopped."""
        if (pid := self.pid) is None:
            return
        os.killpg(pid, number)
        if number == signal.SIGSTOP:  # threads may answer until the kernel stops each of them
            runs.wait_for(lambda: _is_stopped(pid), 10.0, f"{self.name} to stop", str)

    def request_stop(self) -> None:
        """Send it the stop signal, without waiting."""
        if (pid := self.pid) is not None:
            os.kill(pid, self.stop_signal)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Stop it and its children; kill them after ``deadline_s``."""
        self.request_stop()
        end = time.monotonic() + deadline_s
        while self.pid is not None and time.monotonic() < end:
            time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """Kill it and its children."""
        runs.kill_recorded(self._record)

    def restart(self) -> None:
        """Restart it with its current configuration, and wait until it is ready."""
        self.stop()
        self.start()
        self.wait_ready()


def _is_stopped(pid: int) -> bool:
    stats = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    try:
        return all(stat.read_text().rpartition(") ")[2][0] == "T" for stat in stats)
    except (FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile
        return False
