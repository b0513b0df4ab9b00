# SPDX-License-Identifier: Apache-2.0
"""A chaos run's hosts: real agents with a service manager and a disk of their own.

Other hosts reach each of them through a relay that can be impaired.

The process of the run itself never touches a mount: it could block there like the readers.
"""

import configparser
import contextlib
import os
import pathlib
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from tests.chaos import clocks
from tests.fakes import bad_network
from tests.fakes import descriptor_keeper
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned

MIB = 1 << 20
READY = "READY=1"
START_S = 120.0
END_S = 60.0
CONSTANTS = {tuned.BOOT_IDLE_S: 2.0, tuned.COPIES_LIMIT: 1, tuned.PEER_SILENCE_S: 0.5}
DISK_BYTES = 256 * MIB
FILE_LIMIT_BYTES = 1 * MIB
_EXTRA_FIELD = re.compile(r"^(VmRSS|Threads):\s+(\d+)", re.MULTILINE)

Options = Mapping[str, Mapping[str, Any]]


class Host:
    """One agent, its disk, its link and its clock.

    :param changes: to the configuration, by section
    """

    def __init__(
        self,
        name: str,
        folder: pathlib.Path,
        port: int,
        relay: bad_network.Relay,
        clock: clocks.WallClock,
        changes: Options,
    ) -> None:
        self.name, self.folder, self.port, self.relay = name, folder, port, relay
        self.disk = folder / "disk"
        self.cache_dir = self.disk / "cache"
        self.mount_point = folder / "mirror"
        self.control_socket = folder / "control.sock"
        self.log_path = folder / "agent.log"
        self.clock = clock
        self.tree: pathlib.Path | None = None
        """Folder of the agent's code from its next start on, if it is not this one."""
        self.starts_of_next = 0
        """Starts of the agent with other code."""
        self.ended_by_us = 0
        """Workers ended by the run."""
        self._changes = {name: dict(options) for name, options in changes.items()}
        self._config_file = hosts.configure(folder, changes)
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper = descriptor_keeper.DescriptorKeeper(folder / "notify")
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """Run the disk, the service manager and the agent until the block ends."""
        self.disk.mkdir()
        runs.tool(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", self.disk])
        try:
            with self._keeper:
                manager = threading.Thread(target=self._manage)
                manager.start()
                try:
                    self.configure({})
                    self.start()
                    yield
                finally:
                    self._end()
                    self._is_over.set()
                    manager.join()
        finally:
            runs.tool(["umount", "--lazy", self.disk])

    def _manage(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                self._keeper.listen("nothing that is ever told", 0.2)

    def _end(self) -> None:
        """Stop the agent, gracefully if possible; unmount all."""
        hosts.kill(self.worker_pid(), self._pid)
        if self._process is not None:
            self._process.wait(END_S)
        self._keeper.drop()
        for point in hosts.mounts(self.folder):
            if point != str(self.disk):
                runs.tool(["umount", "--lazy", point])

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Write the configuration; ``changes`` apply to the agent's later starts, too.

        It does not access the mount point, which may have no agent.
        """
        self._changes["acstor_agent"].update(changes)
        fixed = {
            "host": self.name,
            "cache_dir": self.cache_dir,
            "peer_listen": f"{local.LOOPBACK}:{self.port}",
        }
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(self._config_file)
        parser.read_dict(self._changes)
        parser.read_dict({"acstor_agent": fixed})
        with self._config_file.open("w") as file:
            parser.write(file)

    # Processes

    @property
    def _pid(self) -> int | None:
        is_there = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process and is_there else None

    @property
    def is_running(self) -> bool:
        """Whether the supervisor runs."""
        return self._pid is not None

    def worker_pid(self) -> int | None:
        """Return the pid of the present worker; None between two workers."""
        with contextlib.suppress(OSError):
            children = pathlib.Path(f"/proc/{self._pid}/task/{self._pid}/children")
            pids = children.read_text().split()
            return int(pids[-1]) if pids else None
        return None

    def start(self) -> None:
        """Start the agent, which takes over its mount; wait until it serves."""
        reported = len(self._keeper.reported)
        argv = ["setpriv", "--pdeathsig", "KILL", *tuned.argv("acstor_agent.cmd.agent", CONSTANTS)]
        self.starts_of_next += self.tree is not None
        changes = self.clock.environment | ({"PYTHONPATH": str(self.tree)} if self.tree else {})
        self._process = self._keeper.start(
            [*argv, "--config-file", self._config_file], self.log_path, changes
        )
        hosts.wait_until(
            lambda: any(READY in text for text in self._keeper.reported[reported:]),
            f"the agent of {self.name}",
            START_S,
        )
        del self._keeper.reported[:-1]

    def end_worker(self, number: signal.Signals) -> None:
        """End the worker; the supervisor starts another one."""
        if pid := self.worker_pid():
            self.ended_by_us += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end_supervisor(self, number: signal.Signals, with_worker: bool = False) -> None:
        """End the supervisor; its worker dies with it, the manager keeps the mount."""
        pids = [self._pid, self.worker_pid() if with_worker else None]
        for pid in pids:
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if self._process is not None:
            self._process.wait(END_S)

    # Requests

    def ask(self, op: str, **fields: object) -> Any:
        """Make a request on the control socket; see :func:`agents.request`."""
        return agents.request(self.control_socket, op, **fields)

    def image_path(self, image_id: str) -> pathlib.Path:
        """Return the path under which the agent shows an image."""
        return self.mount_point / "images" / f"{image_id}.raw"

    def log(self) -> str:
        """Return the agent's log."""
        return self.log_path.read_text(errors="replace")

    def is_serving(self) -> bool:
        """Return whether the agent responds."""
        try:
            self.ask("status")
        except Exception:  # no agent, or a truncated response
            return False
        return True

    # Faults

    def limit_files(self, limit_bytes: int = resource.RLIM_INFINITY) -> None:
        """Limit the size of the worker's files."""
        if pid := self.worker_pid():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))

    def fill_disk(self) -> None:
        """Fill the disk."""
        with contextlib.suppress(OSError), (self.disk / "others").open("wb") as file:
            while True:
                file.write(bytes(MIB))

    def clear_disk(self) -> None:
        """Free the space again."""
        with contextlib.suppress(OSError):
            (self.disk / "others").unlink(missing_ok=True)

    def remount(self, how: str) -> None:
        """Make the disk read-only (``ro``) or writable (``rw``)."""
        runs.tool(["mount", "-o", f"remount,{how}", self.disk])

    def slabs(self) -> list[pathlib.Path]:
        """Return the files of the cache."""
        return sorted(self.cache_dir.glob("slab-*.acslab"))

    def use(self) -> dict[str, int]:
        """Return the worker's resource use: memory (bytes), threads, descriptors."""
        pid = self.worker_pid()
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        found = {name: int(value) for name, value in _EXTRA_FIELD.findall(status)}
        fds = len(os.listdir(f"/proc/{pid}/fd"))
        return {"memory": found["VmRSS"] * 1024, "threads": found["Threads"], "descriptors": fds}


def wait_serving(host: Host, deadline_s: float) -> bool:
    """Wait until an agent responds; return whether it does."""
    ends_s = time.monotonic() + deadline_s
    while not host.is_serving():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.2)
    return True
