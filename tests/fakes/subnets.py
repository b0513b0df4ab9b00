# SPDX-License-Identifier: Apache-2.0
"""Hosts in subnets of their own behind one router, IPv6 only."""

import contextlib
from collections.abc import Iterator

from tests.lab import network
from tests.lab import runs

PREFIX = "fd00:ac:{number}::"
WAIT_S = 10.0


@contextlib.contextmanager
def ipv6_hosts(*names: str) -> Iterator[list[network.Host]]:
    """Make a network namespace per host, and the router, for the block.

    Addresses are in brackets, as in front of a port.
    """
    network.check_machine()
    with runs.Run() as run:
        router = network.Host("router", run.namespace("router"), "", run.folder)
        runs.tool(["ip", "netns", "add", router.namespace])
        router.run(["sysctl", "-qw", "net.ipv6.conf.all.forwarding=1"])
        hosts = []
        for number, name in enumerate(names, start=1):
            address = f"[{PREFIX.format(number=number)}2]"
            host = network.Host(name, run.namespace(name), address, run.folder / name)
            host.folder.mkdir()
            _connect(router, host, PREFIX.format(number=number))
            hosts.append(host)
        for host in hosts:
            _wait_usable(host)
        yield hosts


def _connect(router: network.Host, host: network.Host, prefix: str) -> None:
    """Make a host and its link to the router, its default gateway."""
    runs.tool(["ip", "netns", "add", host.namespace])
    peer = f"type veth peer name eth0 netns {host.namespace}"
    _batch(router, f"link add {host.name} {peer}", f"addr add {prefix}1/64 dev {host.name} nodad")
    _batch(router, f"link set {host.name} up")
    _batch(host, "link set lo up", "link set eth0 up", f"addr add {prefix}2/64 dev eth0 nodad")
    _batch(host, f"-6 route add default via {prefix}1")


def _batch(host: network.Host, *commands: str) -> None:
    for command in commands:
        host.run(["ip", *command.split()])


def _wait_usable(host: network.Host) -> None:
    """Wait until no address of a host is tentative."""
    tentative = lambda: host.run(["ip", "-6", "addr", "show", "tentative"])  # noqa: E731
    runs.wait_for(lambda: not tentative(), WAIT_S, host.name, tentative)
