# SPDX-License-Identifier: Apache-2.0
"""An agent under a service manager with a descriptor store, and reading guests."""

import contextlib
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_agent.mount import open_files
from tests.fakes import descriptor_keeper
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.fakes import older_kernel
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned

READY = "READY=1"
DEADLINE_S = 60.0
IMAGE_BYTES = 8 << 20
NEWER_KERNEL: tuple[str, ...] = ()
OLDER_KERNEL = (sys.executable, str(pathlib.Path(older_kernel.__file__)))
"""Runs the agent as on a kernel before 6.9."""


@contextlib.contextmanager
def reading(
    truth: pathlib.Path, mirror: pathlib.Path, end_all: Callable[[], None]
) -> Iterator[guest_readers.Readers]:
    """Read a mirror for the block.

    :param end_all: ends the agent if the block fails; readers would wait for it forever
    """
    with guest_readers.Readers(truth, [mirror], seed=1) as readers:
        try:
            # Other processes read: a fork of this one would close the file, and block on FLUSH.
            path = str(mirror)
            hosts.wait_until(lambda: open_files.pids_with_open(path), "readers", DEADLINE_S)
            yield readers
        except BaseException:
            end_all()
            raise


class ManagedAgent:
    """An agent under a service manager.

    :param manager: starts the agent and keeps its mount
    :param changes: of its configuration, by section
    :param kernel: command prefix that emulates another kernel
    """

    def __init__(
        self,
        folder: pathlib.Path,
        manager: descriptor_keeper.DescriptorKeeper,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        kernel: Sequence[str] = NEWER_KERNEL,
    ) -> None:
        self.folder = folder
        self._kernel = kernel
        self.manager = manager
        self.images = local.ImageFolder(folder / "source")
        self.image_id = self.images.add(local.random_bytes(IMAGE_BYTES))
        self.mount_point = folder / "mirror"
        self.control_socket = folder / "control.sock"
        self.constants: tuned.Constants = {}
        """That differ from the product's at the next start."""
        sections = {"source_file": {"folder": self.images.folder}, **(changes or {})}
        self.config_file = hosts.configure(folder, sections)

    @property
    def mirror(self) -> pathlib.Path:
        """The image's mirror."""
        return self.mount_point / "images" / f"{self.image_id}.raw"

    @property
    def truth(self) -> pathlib.Path:
        """The image's source file."""
        return self.images.path(self.image_id)

    def start(self, tree: pathlib.Path | None = None, deadline_s: float = DEADLINE_S) -> None:
        """Start it and wait until it serves.

        :param tree: its code; None: this tree
        :raises TimeoutError: it does not serve in time
        """
        self._begin(tree)
        self.manager.listen(READY, deadline_s)

    def refuse(self) -> None:
        """Start it and check that it refuses to serve this mount."""
        self._begin(None)
        if self.process.wait(DEADLINE_S) != 1:
            raise AssertionError(f"it ended with {self.process.returncode}")

    def _begin(self, tree: pathlib.Path | None) -> None:
        command = agents.command(self.constants)
        argv = [*self._kernel, *command, "--config-file", self.config_file]
        changes = {"PYTHONPATH": str(tree)} if tree else {}
        self.process: subprocess.Popen[bytes] = self.manager.start(
            argv, self.folder / "log", changes
        )

    def children(self) -> list[int]:
        """Return the PIDs of its child processes; the worker is the last one."""
        pid = self.process.pid
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]

    def end(self, number: int) -> int:
        """Send a signal and wait for its end; return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def log(self) -> str:
        """Return its log."""
        return (self.folder / "log").read_text()

    @contextlib.contextmanager
    def reading(self) -> Iterator[guest_readers.Readers]:
        """Read the image for the block; if the block fails, kill the agent to end readers."""

        def end_all() -> None:
            self.manager.drop()
            self.process.kill()

        with reading(self.truth, self.mirror, end_all) as readers:
            yield readers

    def clean_up(self) -> None:
        """Stop it and unmount its mirrors."""
        self.manager.drop()
        if self.process.poll() is None:
            self.end(signal.SIGTERM)
        for point in hosts.mounts(self.folder):
            runs.tool(["umount", "--lazy", point])


@contextlib.contextmanager
def started(folder: pathlib.Path) -> Iterator[ManagedAgent]:
    """Start an agent and its manager in a folder for the block."""
    with contextlib.ExitStack() as stack:
        keeper = descriptor_keeper.DescriptorKeeper(folder / "notify")
        made = ManagedAgent(folder, stack.enter_context(keeper))
        made.start()
        stack.callback(made.clean_up)
        yield made
