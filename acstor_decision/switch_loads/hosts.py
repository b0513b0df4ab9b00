# SPDX-License-Identifier: Apache-2.0
"""Estimates switch loads from hosts' samples and locations.

The model assumes one switch above each location and equal traffic between all pairs of hosts.
Chunks do not count, because the thresholds determine their way.
"""

import collections
from collections.abc import Mapping

from oslo_config import cfg
from oslo_config import types

from acstor_common.model import ids
from acstor_common.ring import location
from acstor_decision.core import threshold
from acstor_decision.switch_loads import base


class HostsLoads(base.SwitchLoads):
    """Sums up the traffic of the hosts below each switch."""

    @staticmethod
    def options() -> list[cfg.Opt]:
        """Return the option of capacities."""
        return [
            cfg.ListOpt(
                "capacity_bytes_s",
                default=[],
                item_type=types.Float(min=1.0),
                help="Capacity of a switch of each level, in plus out, in bytes a second; those "
                "next to the hosts (the innermost part of a location) first.",
            )
        ]

    def read_levels(self, hosts: Mapping[ids.HostId, base.HostLoad]) -> threshold.Levels:
        """Return estimates for the levels that have a capacity."""
        return [
            [threshold.SwitchLoad(traffic, capacity) for traffic in _carried(hosts, level)]
            for level, capacity in enumerate(self.own.capacity_bytes_s)
        ]


def _carried(hosts: Mapping[ids.HostId, base.HostLoad], level: int) -> list[float]:
    below = collections.Counter(_place(host, level) for host in hosts.values()) if level else None
    carried: collections.defaultdict[location.Levels, float] = collections.defaultdict(float)
    others = max(1, len(hosts) - 1)
    for host in hosts.values():
        leaving = (len(hosts) - below[_place(host, level)]) / others if below else 1.0
        carried[_place(host, level + 1)] += host.bytes_s * leaving
    return list(carried.values())


def _place(host: base.HostLoad, levels_up: int) -> location.Levels:
    return location.ancestor(location.parse(host.location), levels_up)
