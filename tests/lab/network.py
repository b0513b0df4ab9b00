# SPDX-License-Identifier: Apache-2.0
"""Hosts, an image server and a switch, as network namespaces of this machine.

The machine's own network stays unchanged: the bridge is in a namespace of its own too, both
ends of every link are made inside namespaces, and addresses exist only there.

A link of R Mbit/s is a veth pair with a token bucket (tc tbf) at both ends: the
host's end shapes its uplink, the switch's end its downlink.  R counts Ethernet frames, as on a
real link: with an MTU of 1500 a TCP stream gets at most 1448 of every 1514 bytes, 95.6 % of R.

Hosts have static neighbour entries.  The kernel has one neighbour table for all namespaces
(``gc_thresh3``, 1,024), which 32 hosts with full-mesh traffic would fill: it would then drop
packets, unlike a network of real hosts.

No network emulator (netem, ns-3, Mininet) is used: iproute2 suffices, and every host has it.  In
a link with delay, a process that copies frames replaces the veth pair (``delay_link``), since
many kernels have no netem.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any
from typing import Self

from acstor_common import errors
from tests.lab import delay_link
from tests.lab import runs

PREFIX = "10.0.0."
SOURCE_NUMBER = 254
SOURCE_ADDRESS = f"{PREFIX}{SOURCE_NUMBER}"
HOST_LIMIT = 200
DEFAULT_MTU = 1500
MIN_MTU, MAX_MTU = 576, 65535
MIN_MBIT, MAX_MBIT = 1, 100_000
BURST_BYTES = 128 * 1024
"""Bucket depth: two GSO packets (64 KiB and headers), each passing at once.

So the bucket does not run dry when a busy machine wakes up late.
"""
QUEUE_MS = 100
ENTER_DEADLINE_S = 10.0
TOOLS = ("ip", "tc", "nsenter")


@dataclasses.dataclass(frozen=True)
class Wan:
    """A link to a second site, the edge, with the last hosts; all others are central.

    :param edge_hosts: number of hosts at the edge
    :param delay: of the link; a round trip takes twice its one way
    """

    edge_hosts: int
    mbit: float
    delay: delay_link.LinkDelay


@dataclasses.dataclass(frozen=True)
class LinkBytes:
    """Bytes of a link since the network was made, by the kernel's counters.

    Headers count once per GSO packet, so this is payload plus 0.1 to 4 %.
    """

    sent: int
    received: int

    def __sub__(self, other: "LinkBytes") -> "LinkBytes":
        return LinkBytes(self.sent - other.sent, self.received - other.received)


@dataclasses.dataclass(frozen=True)
class Host:
    """A network namespace: a host of the cloud, or the image server."""

    name: str
    namespace: str
    address: str
    folder: pathlib.Path
    """Its own files, deleted with the network."""

    @property
    def namespaces(self) -> list[pathlib.Path] | None:
        """What its processes enter; None if they need more than that."""
        return [runs.NETNS_FOLDER / self.namespace]

    def _inside(self, argv: Sequence[str | pathlib.Path]) -> list[str]:
        # Not `ip netns exec`, which makes a mount namespace where mounts would be private.
        return ["nsenter", f"--net={runs.NETNS_FOLDER / self.namespace}", *map(str, argv)]

    def run(self, argv: Sequence[str | pathlib.Path], stdin: str | None = None) -> str:
        """Run a command on this host and return its output.

        :raises errors.Unusable: it failed; has its output
        """
        return runs.tool(self._inside(argv), stdin)

    def popen(self, argv: Sequence[str | pathlib.Path], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on this host; its pid is the command's own.

        It leads a new session, so Ctrl-C on the terminal does not reach it.  When this returns, it
        has entered the namespace (or ended), so that the run finds and ends it.

        :raises errors.Unusable: it did not enter the namespace
        """
        process = subprocess.Popen(self._inside(argv), start_new_session=True, **options)
        end = time.monotonic() + ENTER_DEADLINE_S
        while self.namespace and not self._has_inside(process.pid) and process.poll() is None:
            if time.monotonic() > end:
                process.kill()
                process.wait()
                raise errors.Unusable(" ".join(map(str, argv)), f"it does not enter {self.name}")
            time.sleep(0.001)
        return process

    def mounts_beneath(self, folder: pathlib.Path) -> list[str]:
        """Return the host's mount points at or below ``folder``, the deepest first."""
        return runs.mounts_beneath(folder)

    def _has_inside(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it has just ended
            own = (runs.NETNS_FOLDER / self.namespace).stat().st_ino
            return os.stat(f"/proc/{pid}/ns/net").st_ino == own
        return False


class Network:
    """Context manager: ``hosts`` (h1, h2 …), ``source``, links, and a run's folder.

    :param hosts: number of hosts, 1 to 200
    :param link_mbit: rate of each host's link, both ways; None: unlimited
    :param source_mbit: the same for the image server
    :param prefix: the first three numbers of all addresses
    :param delay: of each host's link; two hosts have a round trip of four times its one way
    :param source_delay: the same for the image server
    :param wan: moves the last hosts to a second site, behind one link
    """

    def __init__(
        self,
        hosts: int,
        link_mbit: float | None = None,
        source_mbit: float | None = None,
        mtu: int = DEFAULT_MTU,
        prefix: str = PREFIX,
        *,
        delay: delay_link.LinkDelay | None = None,
        source_delay: delay_link.LinkDelay | None = None,
        wan: Wan | None = None,
    ) -> None:
        if not 1 <= hosts <= HOST_LIMIT:
            raise ValueError(f"a lab has 1 to {HOST_LIMIT} hosts, not {hosts}")
        for mbit in (link_mbit, source_mbit, wan.mbit if wan else None):
            if mbit is not None and not MIN_MBIT <= mbit <= MAX_MBIT:
                raise ValueError(f"a link has {MIN_MBIT} to {MAX_MBIT} Mbit/s, not {mbit}")
        if not MIN_MTU <= mtu <= MAX_MTU:
            raise ValueError(f"an MTU is {MIN_MTU} to {MAX_MTU} bytes, not {mtu}")
        if wan and not 1 <= wan.edge_hosts <= hosts:
            raise ValueError(f"an edge has 1 to {hosts} of the hosts, not {wan.edge_hosts}")
        self.link_mbit, self.source_mbit, self.mtu = link_mbit, source_mbit, mtu
        self._delay, self._source_delay = delay, source_delay
        self._wan, self._links = wan, contextlib.ExitStack()
        self.run = runs.Run()
        self._switch = Host("switch", self.run.namespace("switch"), "", self.run.folder)
        self._edge = Host("edge", self.run.namespace("edge"), "", self.run.folder)
        self.source = self._host("source", f"{prefix}{SOURCE_NUMBER}")
        self.hosts = [self._host(f"h{n}", f"{prefix}{n}") for n in range(1, hosts + 1)]
        self._at_edge = self.hosts[hosts - wan.edge_hosts :] if wan else []

    def _host(self, name: str, address: str) -> Host:
        return Host(name, self.run.namespace(name), address, self.run.folder / name)

    def __enter__(self) -> Self:
        """Make the network; remove all of it on failure.

        :raises errors.Unusable: not root, or a command or a kernel feature is missing
        """
        check_machine()
        self.run.__enter__()
        with runs.on_failure(self.__exit__):
            self._make()
        return self

    def __exit__(self, *_: object) -> None:
        self._links.close()
        self.run.__exit__()

    def _make(self) -> None:
        _make_switch(self._switch)
        if self._wan:
            _make_switch(self._edge)
            self._connect_sites(self._wan)
        for host in self._all:
            host.folder.mkdir()
            self._connect(self._switch_of(host), host)
        for host in self._all:
            self._set_neighbours(host)

    def _switch_of(self, host: Host) -> Host:
        return self._edge if host in self._at_edge else self._switch

    def _connect_sites(self, wan: Wan) -> None:
        ends = ((self._switch, "wan"), (self._edge, "wan"))
        self._link_with_delay(ends, wan.delay)
        for switch, device in ends:
            port = f"link set {device} mtu {self.mtu} master br0\nlink set {device} up\n"
            switch.run(["ip", "-batch", "-"], port)
            _shape(switch, device, wan.mbit)

    def _connect(self, switch: Host, host: Host) -> None:
        """Make ``host`` and its link to ``switch``."""
        runs.tool(["ip", "netns", "add", host.namespace])
        _without_ipv6(host)
        delay = self._source_delay if host is self.source else self._delay
        if delay is None:
            ends = f"name {host.name} type veth peer name eth0 netns {host.namespace}"
            switch.run(["ip", "link", "add", *ends.split()])
        else:
            self._link_with_delay(((host, "eth0"), (switch, host.name)), delay)
        port = [
            f"link set {host.name} mtu {self.mtu} master br0",
            f"link set {host.name} up",
        ]
        switch.run(["ip", "-batch", "-"], "\n".join(port))
        address = [
            "link set lo up",
            f"link set eth0 mtu {self.mtu} address {_hardware_address(host)} up",
            f"addr add {host.address}/24 dev eth0",
        ]
        host.run(["ip", "-batch", "-"], "\n".join(address))
        self.shape(host, self.source_mbit if host is self.source else self.link_mbit)

    def _link_with_delay(
        self, ends: tuple[tuple[Host, str], tuple[Host, str]], delay: delay_link.LinkDelay
    ) -> None:
        program = self.run.folder / "delay_link"
        if not program.exists():
            delay_link.build(self.run.folder)
        (first, device), (other, other_device) = ends
        spaces = [runs.NETNS_FOLDER / end.namespace for end in (first, other)]
        devices = ((spaces[0], device), (spaces[1], other_device))
        self._links.enter_context(delay_link.DelayLink(program, devices, delay))

    def _set_neighbours(self, host: Host) -> None:
        """Add neighbour entries of all others to ``host``."""
        entries = [
            f"neigh replace {other.address} lladdr {_hardware_address(other)} dev eth0"
            for other in self._all
            if other is not host
        ]
        host.run(["ip", "-batch", "-"], "\n".join(entries))

    def shape(self, host: Host, mbit: float | None) -> None:
        """Change the rate of a host's link, both ways; None: unlimited."""
        for end, device in ((host, "eth0"), (self._switch_of(host), host.name)):
            _shape(end, device, mbit)

    @property
    def _all(self) -> tuple[Host, ...]:
        return (self.source, *self.hosts)

    def link_bytes(self) -> dict[str, LinkBytes]:
        """Return the bytes each host, and "source", has sent and received."""
        found = _device_bytes(self._switch) | (_device_bytes(self._edge) if self._wan else {})
        return {host.name: found[host.name] for host in self._all}

    def wan_bytes(self) -> LinkBytes:
        """Return the bytes the edge has sent and received over the link to the centre."""
        return _device_bytes(self._switch)["wan"]


def _make_switch(switch: Host) -> None:
    runs.tool(["ip", "netns", "add", switch.namespace])
    _without_ipv6(switch)
    switch.run(["ip", "-batch", "-"], "link add br0 type bridge\nlink set br0 up\n")


def _shape(end: Host, device: str, mbit: float | None) -> None:
    if mbit is not None:
        bucket = f"rate {mbit}mbit burst {BURST_BYTES} latency {QUEUE_MS}ms"
        end.run(["tc", "qdisc", "replace", "dev", device, "root", "tbf", *bucket.split()])
    elif "tbf" in end.run(["tc", "qdisc", "show", "dev", device]):
        end.run(["tc", "qdisc", "delete", "dev", device, "root"])


def _device_bytes(switch: Host) -> dict[str, LinkBytes]:
    """Return the bytes from and to the other end of each of a switch's devices."""
    found = {}
    for line in switch.run(["cat", "/proc/net/dev"]).splitlines()[2:]:
        name, _, numbers = line.strip().partition(":")
        fields = [int(number) for number in numbers.split()]
        # The switch's end receives what the host sends.
        found[name] = LinkBytes(sent=fields[0], received=fields[8])
    return found


def _hardware_address(host: Host) -> str:
    """Return a locally administered address that ends like the host's IPv4 address.

    >>> _hardware_address(Host("source", "", SOURCE_ADDRESS, pathlib.Path()))
    '02:00:00:00:00:fe'
    """
    return f"02:00:00:00:00:{int(host.address.rpartition('.')[2]):02x}"


def _without_ipv6(host: Host) -> None:
    """Disable IPv6: its router and neighbour discovery would add to the byte counters."""
    script = "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e $f ] || echo 1 > $f; done"
    host.run(["sh", "-c", script])


def check_machine() -> None:
    """Check that a network can be made on this machine.

    :raises errors.Unusable: has the missing requirement
    """
    if os.geteuid():
        raise errors.Unusable("the lab", "only root can make network namespaces")
    for name in TOOLS:
        if shutil.which(name) is None:
            raise errors.Unusable(name, "this command is not installed", "Install iproute2")
