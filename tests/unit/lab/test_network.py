# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.lab import delay_link
from tests.lab import network


@pytest.mark.parametrize("hosts", [0, -1, 201])
def test_network_with_an_invalid_number_of_hosts_is_refused(hosts: int) -> None:
    with pytest.raises(ValueError, match=f"not {hosts}"):
        network.Network(hosts)


@pytest.mark.parametrize("mbit", [0, -1, 1e9])
def test_invalid_link_rate_is_refused(mbit: float) -> None:
    with pytest.raises(ValueError, match="Mbit/s"):
        network.Network(1, link_mbit=mbit)


@pytest.mark.parametrize("mtu", [0, 100, 70000])
def test_invalid_mtu_is_refused(mtu: int) -> None:
    with pytest.raises(ValueError, match="MTU"):
        network.Network(1, mtu=mtu)


@pytest.mark.parametrize(
    ("edge_hosts", "mbit", "why"), [(0, 100, "not 0"), (4, 100, "not 4"), (1, 0, "Mbit/s")]
)
def test_edge_without_hosts_or_rate_is_refused(edge_hosts: int, mbit: float, why: str) -> None:
    wan = network.Wan(edge_hosts, mbit, delay_link.LinkDelay(1.0))
    with pytest.raises(ValueError, match=why):
        network.Network(3, wan=wan)


def test_each_host_has_its_own_name_address_and_namespace() -> None:
    net = network.Network(3)
    everyone = [net.source, *net.hosts]
    assert [host.name for host in net.hosts] == ["h1", "h2", "h3"]
    assert len({host.address for host in everyone}) == 4
    assert len({host.namespace for host in everyone}) == 4
