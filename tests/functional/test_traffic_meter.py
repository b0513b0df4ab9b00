# SPDX-License-Identifier: Apache-2.0
"""The traffic meter on interfaces of a real kernel, in a namespace of the test's own."""

import json
import os
import sys
from collections.abc import Iterator

import pytest

from acstor_agent.cloud import traffic_meter
from acstor_common import errors
from tests.fakes import hosts
from tests.lab import network
from tests.lab import traffic

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

LOOK = """
import json, sys
from acstor_agent.cloud import traffic_meter
look = traffic_meter.TrafficMeter(json.loads(sys.argv[1]), float(sys.argv[2])).read_counters()
print(json.dumps([look.link_bytes_s, {one.name: [one.received, one.sent] for one in look.links}]))
"""


@pytest.fixture(scope="module")
def net() -> Iterator[network.Network]:
    with network.Network(2, 50) as made:
        yield made


def look(host: network.Host, *names: str, mbit: float = 0) -> tuple[int, dict[str, list[int]]]:
    command = [sys.executable, "-W", "ignore", "-c", LOOK, json.dumps(names), str(mbit)]
    rate, links = json.loads(host.run(command))
    return rate, links


def add(host: network.Host, *lines: str) -> None:
    """Make interfaces; skip if this kernel has no such kind."""
    for line in lines:
        try:
            host.run(["ip", *line.split()])
        except errors.Unusable as e:
            if "Unknown device type" in str(e) or "not supported" in str(e):
                pytest.skip(f"this kernel cannot: ip {line}")
            raise


def test_bytes_of_a_flow_are_counted_in_both_directions(net: network.Network) -> None:
    h1, h2 = net.hosts
    before = [look(host, "eth0")[1]["eth0"] for host in (h1, h2)]
    with traffic.flow(h1, h2, 20, seconds=30):
        hosts.wait_until(
            lambda: look(h2, "eth0")[1]["eth0"][0] >= before[1][0] + 500_000, "half a MB", 25
        )
    after = [look(host, "eth0")[1]["eth0"] for host in (h1, h2)]
    assert after[0][1] - before[0][1] >= 500_000
    assert after[1][1] - before[1][1] < 100_000


def test_interface_without_a_known_rate_gets_a_default(net: network.Network) -> None:
    known = {10_000 * traffic_meter.MBIT_BYTES, 1000 * traffic_meter.MBIT_BYTES}
    assert look(net.hosts[0], "eth0")[0] in known
    assert look(net.hosts[0], "eth0", mbit=50)[0] == 50 * traffic_meter.MBIT_BYTES


def test_missing_default_route_requires_named_interfaces(net: network.Network) -> None:
    with pytest.raises(errors.Unusable, match="none of the default routes exists"):
        look(net.hosts[0])
    with pytest.raises(errors.Unusable, match="eth9"):
        look(net.hosts[0], "eth9")


def test_interface_of_the_default_route_is_used(net: network.Network) -> None:
    h1 = net.hosts[0]
    h1.run(["ip", "route", "add", "default", "via", network.SOURCE_ADDRESS])
    try:
        assert list(look(h1)[1]) == ["eth0"]
    finally:
        h1.run(["ip", "route", "del", "default"])


def test_traffic_of_bridge_ports_is_counted_only_at_the_bridge(net: network.Network) -> None:
    h1 = net.hosts[0]
    add(h1, "link add br5 type bridge", "link add v5 type veth peer name w5")
    add(h1, "link set v5 master br5")
    assert list(look(h1, "br5")[1]) == ["br5"]
    assert sorted(look(h1, "br5", "eth0")[1]) == ["br5", "eth0"]


def test_vlan_is_counted_at_its_parent_interface(net: network.Network) -> None:
    h1 = net.hosts[0]
    add(h1, "link add link eth0 name eth0.5 type vlan id 5")
    assert list(look(h1, "eth0.5", "eth0")[1]) == ["eth0"]


def test_bond_is_counted_at_its_ports(net: network.Network) -> None:
    h1 = net.hosts[0]
    add(h1, "link add bond5 type bond", "link add d5 type dummy", "link add d6 type dummy")
    add(h1, "link set d5 master bond5", "link set d6 master bond5")
    assert sorted(look(h1, "bond5", "d5")[1]) == ["d5", "d6"]
