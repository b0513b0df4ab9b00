# SPDX-License-Identifier: Apache-2.0
"""Reads the kernel's counters of network interfaces, by netlink; blocks for milliseconds.

pyroute2 is imported at first use, because the import takes a fifth of an agent's start.
"""

import time
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from acstor_agent.core.cloud import interface_traffic
from acstor_common import errors

MBIT_BYTES = 125_000
UNKNOWN_MBIT = 1000  # assumed rate of an interface that reports none


InterfaceSample = interface_traffic.InterfaceSample


class TrafficMeter:
    """Reads the counters of named interfaces, or those of the default routes."""

    def __init__(self, names: Sequence[str], link_mbit: float) -> None:
        self._names = names
        self._link_mbit = link_mbit

    def read_counters(self) -> InterfaceSample:
        """See :meth:`interface_traffic.InterfaceCounters.read_counters`."""
        import pyroute2
        from pyroute2 import netlink

        try:
            with pyroute2.IPRoute() as netlink_socket:
                every = [_link(message) for message in netlink_socket.get_links()]
                wanted = self._wanted(every, netlink_socket)
        except (OSError, netlink.exceptions.NetlinkError) as e:
            raise errors.Unusable(
                "network interfaces", f"the kernel does not list them: {e}"
            ) from e
        at_s = time.monotonic()
        counted = interface_traffic.lowest_interfaces(every, wanted)
        if not counted:
            raise errors.Unusable(
                "[acstor_agent] traffic_interfaces",
                f"none of {list(self._names) or 'the default routes'} exists",
                "Name the interfaces whose traffic counts",
            )
        return InterfaceSample(at_s, counted, int(self._mbit(counted) * MBIT_BYTES))

    def _wanted(
        self, every: Iterable[interface_traffic.NetworkInterface], netlink_socket: Any
    ) -> set[int]:
        if self._names:
            return {link.index for link in every if link.name in self._names}
        routes = netlink_socket.get_default_routes()
        return {index for route in routes if (index := route.get_attr("RTA_OIF"))}

    def _mbit(self, counted: Iterable[interface_traffic.NetworkInterface]) -> float:
        if self._link_mbit:
            return self._link_mbit
        import pyroute2

        with pyroute2.Ethtool() as ethtool:
            return sum(_speed_mbit(ethtool, link.name) for link in counted)


def _link(message: Any) -> interface_traffic.NetworkInterface:
    info = message.get_attr("IFLA_LINKINFO")
    stats = message.get_attr("IFLA_STATS64") or {"rx_bytes": 0, "tx_bytes": 0}
    is_elsewhere = message.get_attr("IFLA_LINK_NETNSID") is not None
    return interface_traffic.NetworkInterface(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        kind=(info.get_attr("IFLA_INFO_KIND") if info else "") or "",
        lower=0 if is_elsewhere else message.get_attr("IFLA_LINK") or 0,
        master=message.get_attr("IFLA_MASTER") or 0,
        received=stats["rx_bytes"],
        sent=stats["tx_bytes"],
    )


def _speed_mbit(ethtool: Any, name: str) -> float:
    try:
        speed = ethtool.get_link_mode(name).speed
    except Exception:  # drivers fail in different ways
        speed = None
    return speed if speed and 0 < speed < 1 << 31 else UNKNOWN_MBIT
