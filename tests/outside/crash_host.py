# SPDX-License-Identifier: Apache-2.0
"""A host whose worker, supervisor and QEMU are killed, and whose power fails, under programs.

The agent runs under a service manager, which keeps its mount.  Its files, and QEMU's, are on a
device with a volatile write cache.
"""

import collections
import contextlib
import enum
import pathlib
import shutil
import signal
import subprocess
import uuid
from typing import Self

from tests.fakes import descriptor_keeper
from tests.fakes import hosts
from tests.fakes import managed_agent
from tests.fakes import volatile_cache
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned
from tests.outside import apt
from tests.outside import bounded

DISK_BYTES = 64 << 20
CACHE_BYTES = 16 << 20  # less than the image: fetches are in flight when a fault comes
STORE_BYTES = 1 << 30
DEADLINE_S = 300.0


class Fault(enum.StrEnum):
    """What ends."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"
    QEMU = "QEMU"
    POWER = "host"


SURVIVED = (Fault.WORKER, Fault.SUPERVISOR)
"""Faults that no program may notice."""


class CrashHost:
    """Context manager: the host; ``kills`` counts its faults.

    :param file_system: of its device; "": its files are those of this machine, and have power
    """

    def __init__(self, folder: pathlib.Path, seed: int, file_system: str = "") -> None:
        self.folder, self.state = folder, folder
        self._seed, self._kind = seed, file_system
        self._stack = contextlib.ExitStack()
        self._device: volatile_cache.PowerFailingFileSystem | None = None
        self.overlay: OverlayDisk | None = None
        self.kills: collections.Counter[Fault] = collections.Counter()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            if self._kind:
                self._device = stack.enter_context(
                    volatile_cache.PowerFailingFileSystem(
                        self.folder / "device", STORE_BYTES, self._seed, self._kind
                    )
                )
                self.state = self._device.at
            keeper = descriptor_keeper.DescriptorKeeper(self.folder / "notify")
            options = {
                "state_dir": self.state / "state",
                "cache_dir": self.state / "cache",
                "cache_limit_bytes": CACHE_BYTES,
                "keep_images": "none",
            }
            self._agent = managed_agent.ManagedAgent(
                self.folder, stack.enter_context(keeper), {"acstor_agent": options}
            )
            data = local.random_bytes(DISK_BYTES, self._seed, zero_share=0.1)
            self.image_id = self._agent.images.add(data)
            stack.callback(self._agent.clean_up)
            self._agent.start(deadline_s=DEADLINE_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self.overlay is not None:
            self.overlay.stop()
        self._stack.close()

    @property
    def image(self) -> pathlib.Path:
        """The image's source."""
        return self._agent.images.path(self.image_id)

    @property
    def mirror(self) -> pathlib.Path:
        """The image on the mount."""
        return self._agent.mount_point / "images" / f"{self.image_id}.raw"

    def request(self, operation: str, **fields: object) -> dict[str, str]:
        """Send a request to the agent; return its answer."""
        made: dict[str, str] = agents.request(self._agent.control_socket, operation, **fields)
        return made

    def cause(self, fault: Fault) -> None:
        """Cause a fault, and wait until the host serves again; a power failure lasts."""
        causes = {
            Fault.WORKER: self._kill_worker,
            Fault.SUPERVISOR: self._kill_supervisor,
            Fault.QEMU: self._kill_qemu,
            Fault.POWER: self._cut_power,
        }
        causes[fault]()
        self.kills[fault] += 1

    def recover(self, fault: Fault) -> None:
        """Start what a fault has ended for good."""
        if fault is Fault.POWER:
            self._boot()
        if self.overlay is not None and fault not in SURVIVED:
            self.overlay.start()

    def end_all(self) -> None:
        """Kill the agent, so that no program waits for the mount."""
        self._agent.manager.drop()
        hosts.kill(self._agent.process.pid, *self._children())

    def _children(self) -> list[int]:
        return [] if self._agent.process.poll() is not None else self._agent.children()

    def _kill_worker(self) -> None:
        killed = self._agent.children()[-1]
        hosts.kill(killed)
        runs.wait_for(lambda: self._serves(killed), DEADLINE_S, "a worker", self._agent.log)

    def _serves(self, killed: int) -> bool:
        if killed in self._agent.children()[-1:]:
            return False
        with contextlib.suppress(agents.errors.Unusable, OSError):
            return bool(self.request("status"))
        return False

    def _kill_supervisor(self) -> None:
        self._agent.end(signal.SIGKILL)
        self._agent.start(deadline_s=DEADLINE_S)

    def _kill_qemu(self) -> None:
        assert self.overlay is not None
        self.overlay.stop()

    def _cut_power(self) -> None:
        assert self._device is not None
        self._device.fail()
        if self.overlay is not None:
            self.overlay.stop()
        children = self._children()
        self.end_all()
        self._agent.process.wait(DEADLINE_S)
        for point in hosts.mounts(self._agent.mount_point):
            runs.tool(["umount", "--lazy", point])
        runs.wait_for(lambda: not any(map(_runs, children)), DEADLINE_S, "the end", str)
        self._device.shut_down()

    def _boot(self) -> None:
        assert self._device is not None
        self._device.boot()
        boot_id = self.folder / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        self._agent.constants = {tuned.BOOT_ID_FILE: str(boot_id)}
        self._agent.start(deadline_s=DEADLINE_S)


def _runs(pid: int) -> bool:
    return pathlib.Path("/proc", str(pid)).exists()


class AgentDisk:
    """A writable disk of the mirror."""

    def __init__(self, host: CrashHost) -> None:
        self._host, self._id = host, str(uuid.uuid4())
        fields = {"disk_id": self._id, "image_id": host.image_id}
        self.path = pathlib.Path(host.request("make-disk", **fields)["path"])

    def drop(self) -> None:
        """Delete the disk."""
        self._host.request("drop-disk", disk_id=self._id)


class OverlayDisk:
    """A qcow2 overlay over a mirror, as Nova makes it; QEMU exports it, nbdfuse shows it as a file.

    QEMU 7.2's own export by FUSE mixes up concurrent writes.
    """

    def __init__(self, host: CrashHost) -> None:
        self._host = host
        self._file = host.state / "instance.qcow2"
        self._socket = host.folder / "nbd"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._mount_point = host.folder / "export"
        self._mount_point.mkdir(exist_ok=True)
        self.path = self._mount_point / "disk"  # absent while QEMU is dead: nothing else is written
        if not shutil.which("nbdfuse"):
            apt.install("libnbd-bin")
        backing = ["-b", host.mirror, "-F", "raw"]
        runs.tool(["qemu-img", "create", "-q", "-f", "qcow2", *backing, self._file])
        self.start()
        host.overlay = self

    def start(self) -> None:
        """Check the overlay and export it.

        :raises RuntimeError: QEMU finds damage
        :raises TimeoutError: QEMU does not complete the check
        """
        status, said = bounded.check(self._file, DEADLINE_S)
        if status == bounded.DAMAGED:
            raise RuntimeError(f"qemu-img check finds damage in the overlay: {said}")
        if status not in bounded.SOUND:
            raise TimeoutError(f"qemu-img check of the overlay was not completed: {said}")
        direct = "cache.direct=on"
        blocks = f"driver=file,filename={self._file},node-name=file,{direct}"
        disk = f"driver=qcow2,file=file,node-name=disk,{direct}"
        server = f"addr.type=unix,addr.path={self._socket}"
        export = "type=nbd,id=export,node-name=disk,name=,writable=on"
        words = ["--blockdev", blocks, "--blockdev", disk, "--nbd-server", server]
        self._run("qemu-storage-daemon", *words, "--export", export)
        runs.wait_for(self._socket.exists, DEADLINE_S, "QEMU's export", str)
        self._run("nbdfuse", self.path, f"nbd+unix:///?socket={self._socket}")
        runs.wait_for(lambda: bool(hosts.mounts(self._mount_point)), DEADLINE_S, "nbdfuse", str)

    def _run(self, *words: str | pathlib.Path) -> None:
        self._processes.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))

    def stop(self) -> None:
        """Kill QEMU."""
        for process in self._processes:
            process.kill()
            process.wait(DEADLINE_S)
        self._processes.clear()
        for point in hosts.mounts(self._mount_point):
            runs.tool(["umount", "--lazy", point])
        self._socket.unlink(missing_ok=True)

    def drop(self) -> None:
        """Delete the disk."""
        self.stop()
        self._host.overlay = None
        self._file.unlink()
