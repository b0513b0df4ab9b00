# SPDX-License-Identifier: Apache-2.0
"""A guest: QEMU on one disk in a host's namespace, observed by its serial console.

Results about a guest come from its console or from QEMU's monitor, never from the existence of a
process.

KVM is used only if the processor itself virtualizes.  A ``/dev/kvm`` is no proof: stock kernels
do not boot under a paravirtual one.
"""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Self

from acstor_common import errors
from tests.lab import console
from tests.lab import guest_files
from tests.lab import network
from tests.lab import runs

MEMORY_MIB = 384
BOOT_DEADLINE_S = 300.0
STOP_DEADLINE_S = 10.0
ASK_EVERY_S = 2.0
_FIRST_LINE = re.compile(rb"Linux version")
_LOGIN = re.compile(rb"\S login: ")
_MARKER = re.compile(rb"%s ([^\r\n]*)[\r\n]" % guest_files.MARKER.encode())


def accelerator() -> str:
    """Return "kvm" if the processor virtualizes, else "tcg" (software emulation)."""
    has_kvm = any(pathlib.Path(f"/sys/module/kvm_{maker}").exists() for maker in ("intel", "amd"))
    return "kvm" if has_kvm and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg"


def make_overlay(
    overlay: pathlib.Path, backing: str | pathlib.Path, backing_format: str, size_bytes: int
) -> pathlib.Path:
    """Make the guest's disk: an empty qcow2 over ``backing``, a file or a URL.

    It does not open the backing file, so it causes no traffic.
    """
    layers = ["-f", "qcow2", "-F", backing_format, "-b", backing]
    runs.tool(["qemu-img", "create", "-q", "-u", *layers, overlay, str(size_bytes)])
    return overlay


@dataclasses.dataclass
class Milestones:
    """Times of a guest's boot, in seconds after the start of QEMU; None: not yet.

    ``read_requests`` and ``read_bytes`` are the guest's own counters of its disk.
    """

    first_line_s: float | None = None
    login_s: float | None = None
    marker_s: float | None = None
    read_requests: int | None = None
    read_bytes: int | None = None

    @property
    def is_booted(self) -> bool:
        """Whether login prompt and marker were seen."""
        return self.login_s is not None and self.marker_s is not None

    @property
    def stage(self) -> str:
        """The current stage of the boot, in words."""
        if self.first_line_s is None:
            return "boot loader"
        return "kernel" if self.login_s is None else "login"

    def read(self, text: bytes, now_s: float) -> None:
        """Update the times by ``text``, the whole console, read at ``now_s``."""
        if self.first_line_s is None and _FIRST_LINE.search(text):
            self.first_line_s = now_s
        if self.login_s is None and _LOGIN.search(text):
            self.login_s = now_s
        marker = _MARKER.search(text)
        if self.marker_s is None and marker:
            facts = dict(word.split("=", 1) for word in marker[1].decode().split())
            self.marker_s = now_s
            self.read_requests = int(facts["reads"])
            self.read_bytes = int(facts["read_sectors"]) * 512


class Guest:
    """Context manager: QEMU with ``disk``, running for the block.

    :param disk: a qcow2 file, usually from :func:`make_overlay`, or one of another ``disk_format``
    :param cache: QEMU's cache mode of the disk; Nova uses "none" if the file system supports
        O_DIRECT, else "writeback"
    :param aio: "threads", "native" (needs cache "none") or "io_uring"
    """

    def __init__(
        self,
        host: network.Host,
        disk: pathlib.Path,
        cache: str = "none",
        aio: str = "threads",
        memory_mib: int = MEMORY_MIB,
        disk_format: str = "qcow2",
    ) -> None:
        self.host, self.disk = host, disk
        self.milestones = Milestones()
        self._format = disk_format
        self._options = (cache, aio, memory_mib)
        self._folder = disk.with_suffix(".guest")
        self._started_s = 0.0
        self._asked_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def _argv(self) -> list[str]:
        cache, aio, memory_mib = self._options
        drive = f"file={self.disk},if=none,id=disk,format={self._format},cache={cache},aio={aio}"
        accel = accelerator()
        serial = f"socket,id=console,path=console.sock,server=on,wait=off,logfile={self._log}"
        return [
            *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"),
            *("-machine", "pc", "-accel", accel, "-smp", "1", "-m", str(memory_mib)),
            *(("-cpu", "host") if accel == "kvm" else ()),
            *("-drive", drive),
            *("-device", "virtio-blk-pci,drive=disk,rerror=stop,werror=stop"),
            *("-chardev", serial, "-serial", "chardev:console"),
            *("-qmp", "unix:monitor.sock,server=on,wait=off"),
        ]

    @property
    def _log(self) -> pathlib.Path:
        return self._folder / "console.log"

    def __enter__(self) -> Self:
        """Start QEMU, without waiting."""
        self._folder.mkdir()
        self._started_s = time.monotonic()
        with (self._folder / "qemu.log").open("wb") as out:
            # Sockets have names relative to the folder: a socket address holds no long path.
            self._process = self.host.popen(
                self._argv(), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(STOP_DEADLINE_S)

    @property
    def pid(self) -> int:
        """QEMU's pid.

        :raises errors.Unusable: it was not started
        """
        if self._process is None:
            raise errors.Unusable(f"guest on {self.host.name}", "it was not started")
        return self._process.pid

    def ended(self) -> int | None:
        """Return QEMU's exit status, None while it runs."""
        return None if self._process is None else self._process.poll()

    def ended_in(self, deadline_s: float) -> bool:
        """Wait for QEMU's end; return whether it ended."""
        try:
            if self._process is not None:
                self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def console_text(self) -> str:
        """Return all output of the guest on its serial console."""
        text = self._log.read_bytes() if self._log.exists() else b""
        return text.decode(errors="replace").replace("\r", "")

    def poll(self) -> Milestones:
        """Read the console; return the times so far.

        :raises errors.Unusable: QEMU has ended, or has paused the guest because a read or a
            write of its disk failed
        """
        now_s = time.monotonic() - self._started_s
        if self._process is None or self._process.poll() is not None:
            raise self.failure("QEMU has ended")
        if not self.milestones.is_booted and self._log.exists():
            self.milestones.read(self._log.read_bytes(), now_s)
            if now_s - self._asked_s > ASK_EVERY_S:
                self._asked_s = now_s
                self._check_not_paused()
        return self.milestones

    def _check_not_paused(self) -> None:
        if self.monitor("query-status")["status"] == "io-error":
            raise self.failure("QEMU has paused the guest: a read or write of its disk failed")

    def wait_booted(self, deadline_s: float = BOOT_DEADLINE_S) -> Milestones:
        """Wait for the login prompt and the marker.

        :raises errors.Unusable: QEMU ended, or it took too long; has the console's end
        """
        end = time.monotonic() + deadline_s
        while not self.poll().is_booted:
            if time.monotonic() > end:
                raise self.failure(f"no login prompt after {deadline_s:g} s")
            time.sleep(0.05)
        return self.milestones

    def failure(self, why: str) -> errors.Unusable:
        """Return an error with ``why``, QEMU's output and the end of the console."""
        log = self._folder / "qemu.log"
        words = log.read_text(errors="replace").strip() if log.exists() else ""
        tail = "\n".join(self.console_text().splitlines()[-25:])
        return errors.Unusable(
            f"guest on {self.host.name}", f"{why}\nQEMU: {words}\nend of the console:\n{tail}"
        )

    def monitor(self, command: str) -> Any:
        """Send a command without arguments to QEMU's monitor and return its answer.

        ``monitor("query-status")["status"]`` is "running", or "io-error" if a failed read
        or write has paused the guest; ``monitor("cont")`` resumes it.
        """
        return console.monitor(self._folder / "monitor.sock", command)

    def shell(self, command: str, deadline_s: float = 60.0) -> str:
        """Run one shell line in the guest as root and return its output.

        :raises errors.Unusable: it failed, or took too long
        """
        with console.connected(self._folder / "console.sock") as link:
            line = console.Console(link, deadline_s)
            line.log_in()
            return line.run(command)

    def check_progress(self, deadline_s: float = 60.0) -> None:
        """Check that QEMU reports "running" and that the guest reads its disk.

        :raises errors.Unusable: has the actual state, with the console's end
        """
        status = self.monitor("query-status")["status"]
        if status != "running":
            raise self.failure(f"QEMU says {status!r}")
        before = self.reads()
        self.shell("sync; echo 3 > /proc/sys/vm/drop_caches; cat /bin/* > /dev/null", deadline_s)
        if self.reads() <= before:
            raise self.failure("it answers but has read nothing of its disk")

    def reads(self) -> int:
        """Return the number of QEMU's reads for the guest's disk."""
        devices: Sequence[dict[str, Any]] = self.monitor("query-blockstats")
        return sum(int(device["stats"]["rd_operations"]) for device in devices)


def boot_all(
    guests: Sequence[Guest],
    deadline_s: float = BOOT_DEADLINE_S,
    watch: Callable[[Sequence[Milestones]], None] | None = None,
) -> list[Milestones]:
    """Wait until all ``guests`` (started) have booted; call ``watch`` repeatedly.

    :raises errors.Unusable: one of them ended or took too long
    """
    end = time.monotonic() + deadline_s
    while not all([guest.poll().is_booted for guest in guests]):  # a list: poll all
        if time.monotonic() > end:
            late = next(guest for guest in guests if not guest.milestones.is_booted)
            late.wait_booted(0)
        if watch is not None:
            watch([guest.milestones for guest in guests])
        time.sleep(0.05)
    return [guest.milestones for guest in guests]
