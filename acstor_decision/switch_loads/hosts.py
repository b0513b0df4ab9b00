# SPDX-License-Identifier: Apache-2.0
"""Loads estimated from the hosts' samples and locations, where no switch can be asked.

A switch of a level stands above all hosts of one place.  It is taken to carry
what these hosts send and receive as far as it leaves the places below, and they
are taken to talk to all other hosts alike.  Chunks do not count: where they go is
what the thresholds decide, so they would follow themselves.
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
    """Adds up the hosts beneath each switch."""

    @staticmethod
    def options() -> list[cfg.Opt]:
        """Return the capacities' option."""
        return [
            cfg.ListOpt(
                "capacity_bytes_s",
                default=[],
                item_type=types.Float(min=1.0),
                help="What a switch of each level carries, in plus out, in bytes a second; those "
                "beside the hosts (the innermost part of a location) first.",
            )
        ]

    def read_levels(self, hosts: Mapping[ids.HostId, base.HostLoad]) -> threshold.Levels:
        """Return an estimate for as many levels as have a capacity."""
        return [
            [threshold.SwitchLoad(traffic, capacity) for traffic in _carried(hosts, level)]
            for level, capacity in enumerate(self.own.capacity_bytes_s)
        ]


def _carried(hosts: Mapping[ids.HostId, base.HostLoad], level: int) -> list[float]:
    """Return what each switch of a level carries, in bytes a second."""
    below = collections.Counter(_place(host, level) for host in hosts.values()) if level else None
    carried: collections.defaultdict[location.Levels, float] = collections.defaultdict(float)
    others = max(1, len(hosts) - 1)
    for host in hosts.values():
        leaving = (len(hosts) - below[_place(host, level)]) / others if below else 1.0
        carried[_place(host, level + 1)] += host.bytes_s * leaving
    return list(carried.values())


def _place(host: base.HostLoad, levels_up: int) -> location.Levels:
    """Return the place whose hosts are nearer to this one than ``levels_up``."""
    return location.ancestor(location.parse(host.location), levels_up)
