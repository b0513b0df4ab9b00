# SPDX-License-Identifier: Apache-2.0
"""A guest of a chaos run as a reader: QEMU boots from a mirror and reads its disk.

Its printed checksums (``guest_disk``) show whether it reads right bytes.  QEMU pauses a guest whose
read fails, so its monitor is polled, too.

This module never waits for QEMU, which may hang in the kernel like any reader.
"""

import contextlib
import os
import pathlib
import re
import signal
import threading
import time
from collections.abc import Sequence

from acstor_common import errors
from tests.chaos import guest_disk
from tests.chaos import readers
from tests.lab import guest
from tests.lab import local

MEMORY_MIB = 128
ASK_EVERY_S = 2.0
BOOT_S = 60.0
"""Additional silence of a boot, compared with a read of others."""
READ_S = 30.0
"""Additional time of one part: it is many reads, each of which may have waited."""
LOOK_S = 1.0
BUSY_SHARE = 0.1
"""A guest that uses this share of a CPU over time does not wait for its disk."""
BUSY_S = 240.0
"""Limit of a busy guest without output and without disk reads.

A BIOS that waits for the disk computes all the time.
"""
FAULTS = re.compile(rf"{guest_disk.FAULT}|I/O error|Kernel panic|^error: ")
"""Patterns of console lines that a healthy guest never prints."""


class Console:
    """Judges a guest's output.

    :param truth: the checksum of each part of its disk
    """

    def __init__(self, truth: Sequence[str]) -> None:
        self.reads = 0
        self.found: list[str] = []
        self._truth = truth
        self._rest = ""

    def feed(self, data: bytes) -> None:
        """Process new output; judge each complete line."""
        text = self._rest + data.decode(errors="replace").replace("\r", "")
        lines, _, self._rest = text.rpartition("\n")
        for line in lines.splitlines():
            self._judge(line)

    def note(self, what: str) -> None:
        """Record a fault."""
        if len(self.found) < readers.FOUND_AT_MOST:
            self.found.append(what)

    @property
    def next_part(self) -> int:
        """The part that it reads now."""
        return self.reads % len(self._truth)

    def _judge(self, line: str) -> None:
        if FAULTS.search(line):
            self.note(f"the console says: {line.strip()}")
        if (read := guest_disk.READ.search(line)) is None:
            return
        number, part = int(read[1]), int(read[2])
        if (number, part) != divmod(self.reads, len(self._truth)):
            self.note(f"part {part} of round {number} came after {self.reads} reads")
        elif read[3] != self._truth[part]:
            at = part * guest_disk.PART_BYTES
            self.note(f"wrong bytes among {guest_disk.PART_BYTES} at {at}, in round {number}")
        self.reads += 1


class Business:
    """Whether a process computes, or would on a free processor.

    :param limit_s: longest time that counts as busy
    """

    def __init__(self, pid: int, limit_s: float = BUSY_S) -> None:
        self._limit_s = limit_s
        self._tasks = pathlib.Path(f"/proc/{pid}/task")
        self._last_s = self._spoke_s = time.monotonic()
        self._last_wanted_s = 0.0

    def look(self) -> bool:
        """Return whether it was busy since the last look, and not for too long."""
        now_s = time.monotonic()
        passed_s = now_s - self._last_s
        if passed_s < LOOK_S:
            return False
        wanted_s = 0.0
        with contextlib.suppress(OSError):  # it has just ended
            for path in self._tasks.glob("*/schedstat"):
                ran_ns, waited_ns, _ = map(int, path.read_text().split())
                wanted_s += (ran_ns + waited_ns) / 1e9
        more_s = wanted_s - self._last_wanted_s
        self._last_s, self._last_wanted_s = now_s, wanted_s
        return more_s > BUSY_SHARE * passed_s and now_s - self._spoke_s < self._limit_s

    def record_progress(self) -> None:
        """Record progress."""
        self._spoke_s = time.monotonic()


class _ThisHost(local.LocalHost):
    """This machine; no process started here outlives the run."""

    def _inside(self, argv: Sequence[str | pathlib.Path]) -> list[str]:
        return ["setpriv", "--pdeathsig", "KILL", *super()._inside(argv)]


class Guest:
    """One guest, with the interface of :class:`readers.Reader`."""

    way = "guest"

    def __init__(self, truth: Sequence[str], mirror: pathlib.Path, own: pathlib.Path) -> None:
        """Start it.

        :param truth: the checksum of each part of its disk
        :param mirror: its boot disk
        :param own: prefix of its files
        """
        self.name = f"guest {own.name} on {mirror}"
        self.console_path = own.with_suffix(".guest") / "console.log"
        size_bytes = len(truth) * guest_disk.PART_BYTES
        overlay = guest.make_overlay(own.with_suffix(".qcow2"), mirror, "raw", size_bytes)
        host = _ThisHost("guest", "", local.LOOPBACK, own.parent)
        self._guest = guest.Guest(host, overlay, memory_mib=MEMORY_MIB)
        self._guest.__enter__()
        self.pid = self._guest.pid
        self._console, self._business = Console(truth), Business(self.pid)
        self._heard_bytes, self._since_s = 0, time.monotonic()
        self._is_over = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    @property
    def extra_s(self) -> float:
        """Additional time of one of its reads, compared with a read of others."""
        return READ_S if self._console.reads else BOOT_S

    @property
    def state(self) -> readers.State:
        """Its present state; its read started when it last made progress, or was busy."""
        self._feed_console()
        length, console = guest_disk.PART_BYTES, self._console
        return readers.State(
            console.reads,
            console.reads * length,
            self._since_s,
            console.next_part * length,
            length,
        )

    def found(self) -> list[str]:
        """Return the faults, as text."""
        self._feed_console()
        return [f"{self.name}: {what}" for what in self._console.found]

    def status(self) -> int | None:
        """Return QEMU's exit status; None if it still runs."""
        return self._guest.ended()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped QEMU."""
        return readers.is_stopped(self.pid)

    def send(self, number: signal.Signals) -> None:
        """Send QEMU a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def ended_in(self, deadline_s: float) -> bool:
        """Wait for QEMU's end; return whether it came."""
        self._is_over.set()
        return self._guest.ended_in(deadline_s)

    # Its output

    def _feed_console(self) -> None:
        """Judge new output of the console."""
        data = b""
        with contextlib.suppress(FileNotFoundError), self.console_path.open("rb") as file:
            file.seek(self._heard_bytes)
            data = file.read()
        self._heard_bytes += len(data)
        self._console.feed(data)
        if self._business.look() or data:
            self._since_s = time.monotonic()
        if data:
            self._business.record_progress()

    def _ask(self) -> None:
        """Poll QEMU on whether the guest runs or was paused; it may hang."""
        reads = 0
        while not self._is_over.wait(ASK_EVERY_S) and self.status() is None:
            with contextlib.suppress(errors.Unusable, OSError, ValueError):
                before, reads = reads, self._guest.reads()
                if reads > before:
                    self._since_s = time.monotonic()
                    self._business.record_progress()
                if self._guest.monitor("query-status")["status"] == "io-error":
                    self._console.note("QEMU has paused it: a read of its disk failed")
                    return
