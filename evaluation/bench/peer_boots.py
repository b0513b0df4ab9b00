# SPDX-License-Identifier: Apache-2.0
"""One guest of PEERS: booted on a fresh host, and its host's figures."""

import contextlib
import dataclasses
import os
import pathlib
import re
import time
from typing import Self

from evaluation.bench import harness
from evaluation.bench import peer_plan
from evaluation.bench import peer_ways
from tests.lab import agents
from tests.lab import delay_link
from tests.lab import guest
from tests.lab import image_server
from tests.lab import network
from tests.lab import runs

MEMORY_MIB = 768
STAGE_S = 1200.0
SERVICE = "ACSTOR-LAB-SERVICE"
PROGRAM = (
    "cd /tmp && printf '#include <iostream>\\nint main(){std::cout<<6*7;}' > a.cc "
    "&& g++ a.cc -o a && test $(./a) = 42"
)
DROP_CACHES = "sync; echo 3 > /proc/sys/vm/drop_caches"


@dataclasses.dataclass
class Boot:
    """The measurements of one boot; seconds count from the request for the image.

    :param program_s: duration of the first command
    :param login_bytes: sent on the image server's link until the login prompt
    :param program_bytes: the same until the program has run
    :param source_bytes: without headers, of finished requests
    :param cpu_s: of all processes until the program has run; None: other guests ran
    :param memory_mib: of the host's processes then, without QEMU and the page cache
    :param later_s: duration of the same command later; ``later_bytes`` like ``login_bytes``
    :param cached_s: until the image was fully cached; ``cached_bytes`` like ``login_bytes``
    """

    login_s: float
    service_s: float
    program_s: float
    login_bytes: int
    program_bytes: int
    source_bytes: int
    cpu_s: float | None
    memory_mib: float
    later_s: float | None = None
    later_bytes: int | None = None
    cached_s: float | None = None
    cached_bytes: int | None = None

    @property
    def done_s(self) -> float:
        """When the program has run for the first time."""
        return self.service_s + self.program_s


class Cloud:
    """Context manager: fresh hosts and the image server of a cell, with a client on each host."""

    def __init__(self, made: peer_ways.Prepared, cell: peer_plan.Cell, way: str) -> None:
        self._made, self._cell, self._way = made, cell, way
        self._stack = contextlib.ExitStack()
        self.clients: list[peer_ways.Client] = []

    def __enter__(self) -> Self:
        """Start all."""
        with contextlib.ExitStack() as stack:
            delay = delay_link.LinkDelay(self._cell.rtt_ms / 2) if self._cell.rtt_ms else None
            mbit, hosts = self._cell.mbit, self._cell.hosts
            self.net = stack.enter_context(network.Network(hosts, mbit, mbit, source_delay=delay))
            self._server = stack.enter_context(
                image_server.ImageServer(self.net.source, self._made.folder)
            )
            for place in self._places():
                client = peer_ways.WAYS[self._way](place)
                self.clients.append(stack.enter_context(client))
            self._began = (self.net.link_bytes()["source"].sent, self._server.bytes_sent())
            self._began_cpu_s = own_cpu_s()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _places(self) -> list[peer_ways.Place]:
        hosts, ring = self.net.hosts, None
        if len(hosts) > 1:
            ring = agents.write_ring(hosts, self.net.run.folder / "ring.json")
        url = self._server.url
        return [peer_ways.Place(self._made, host, hosts[0], url, ring) for host in hosts]

    def link_bytes(self) -> int:
        """Return the bytes that the image server's link has sent."""
        return self.net.link_bytes()["source"].sent - self._began[0]

    def source_bytes(self) -> int:
        """Return the image server's body bytes, of finished requests."""
        return self._server.bytes_sent() - self._began[1]

    def cpu_s(self) -> float:
        """Return the processor seconds of all processes but this one."""
        return own_cpu_s() - self._began_cpu_s

    def memory_mib(self, but: int | None = None) -> float:
        """Return the memory of all hosts' processes but one."""
        spaces = [host.namespace for host in self.net.hosts]
        return sum(memory_mib(pid) for pid in runs.processes_inside(spaces) if pid != but)


class Booted:
    """Context manager: a guest on a cloud of one host, booted until it has run the program."""

    def __init__(self, made: peer_ways.Prepared, cell: peer_plan.Cell, way: str) -> None:
        self._cloud = Cloud(made, cell, way)
        self._stack = contextlib.ExitStack()
        self._cached: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        """Boot, and measure."""
        with contextlib.ExitStack() as stack:
            cloud = stack.enter_context(self._cloud)
            self._began_s = time.monotonic()
            backing = cloud.clients[0].request()
            self.note_cached()
            disk = make_disk(cloud.net.hosts[0], backing)
            self._guest = stack.enter_context(
                guest.Guest(cloud.net.hosts[0], disk, cache="writeback", memory_mib=MEMORY_MIB)
            )
            self.boot = self._measure(time.monotonic() - self._began_s)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _measure(self, asked_s: float) -> Boot:
        login_s = asked_s + wait_login(self._guest)
        login_bytes = self._cloud.link_bytes()
        wait_service(self._guest)
        service_s = time.monotonic() - self._began_s
        program_s = run_program(self._guest)
        return Boot(
            login_s,
            service_s,
            program_s,
            login_bytes,
            self._cloud.link_bytes(),
            self._cloud.source_bytes(),
            self._cloud.cpu_s(),
            self._cloud.memory_mib(but=self._guest.pid),
        )

    def note_cached(self) -> None:
        """Note whether the image is fully cached by now, once."""
        is_cached = self._cloud.clients[0].is_fully_cached
        if self._cached is None and is_cached and is_cached():
            self._cached = (time.monotonic() - self._began_s, self._cloud.link_bytes())

    def is_due(self, later_s: float) -> bool:
        """Return whether that time has passed since the login prompt."""
        return time.monotonic() - self._began_s >= self.boot.login_s + later_s

    def run_again(self) -> None:
        """Run the program again, without the guest's page cache."""
        self._guest.shell(DROP_CACHES, STAGE_S)
        self.boot.later_s = run_program(self._guest)
        self.boot.later_bytes = self._cloud.link_bytes()
        if self._cached is not None:
            self.boot.cached_s, self.boot.cached_bytes = self._cached


def make_disk(host: network.Host, backing: peer_ways.Backing) -> pathlib.Path:
    """Make a guest's disk over a backing file."""
    disk = host.folder / "disk.qcow2"
    return guest.make_overlay(disk, backing.where, backing.disk_format, peer_ways.DISK_BYTES)


def wait_login(booted: guest.Guest) -> float:
    """Wait for the login prompt; return the seconds from QEMU's start."""
    login_s = booted.wait_booted(STAGE_S).login_s
    if login_s is None:
        raise harness.CannotRun("no login prompt")
    return login_s


def wait_service(booted: guest.Guest) -> None:
    """Wait until PostgreSQL and nginx answer."""
    runs.wait_for(lambda: SERVICE in booted.console_text(), STAGE_S, "the services", str)


def run_program(booted: guest.Guest) -> float:
    """Compile, link and run a program in the guest; return the seconds."""
    began_s = time.monotonic()
    booted.shell(PROGRAM, STAGE_S)
    return time.monotonic() - began_s


def own_cpu_s() -> float:
    """Return the processor seconds of all children of this process."""
    return harness.cpu_seconds(os.getpid()) - time.process_time()


def memory_mib(pid: int) -> float:
    """Return a process's memory without files; 0 if it has ended."""
    with contextlib.suppress(OSError):
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(re.findall(r"Pss_Anon:\s+(\d+) kB", rollup)[0]) / 1024
    return 0.0
