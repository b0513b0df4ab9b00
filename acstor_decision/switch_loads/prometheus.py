# SPDX-License-Identifier: Apache-2.0
"""Switch loads from a Prometheus server that monitors the switches."""

import collections
import json
import math
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from acstor_common.model import ids
from acstor_decision.core import threshold
from acstor_decision.switch_loads import base

TRAFFIC_QUERY = "sum by (level, switch) (rate(acstor_switch_bytes_total[1m]))"
"""Traffic of each switch. Levels are 0 beside the hosts, 1 above, and so on."""
CAPACITY_QUERY = "sum by (level, switch) (acstor_switch_capacity_bytes)"
"""Capacity of each switch, in the same unit a second."""
LONGEST_BYTES = 8 << 20
MAX_LEVEL = 8

_Key = tuple[int, str]


class PrometheusLoads(base.SwitchLoads):
    """Runs two queries in every collection."""

    @staticmethod
    def options() -> list[cfg.Opt]:
        """Return the option of the server."""
        return [
            cfg.URIOpt(
                "url",
                default="http://localhost:9090",
                schemes=["http", "https"],
                help="URL of the Prometheus server, without /api/v1. It must have the metrics "
                "acstor_switch_bytes_total and acstor_switch_capacity_bytes with the labels switch "
                "(a name) and level (0 next to the hosts, 1 above).",
            ),
        ]

    def read_levels(self, hosts: Mapping[ids.HostId, base.HostLoad]) -> threshold.Levels:
        """Return the switches for which Prometheus has both figures, or raise LoadsUnknown."""
        traffic = self._query(TRAFFIC_QUERY)
        capacity = self._query(CAPACITY_QUERY)
        by_level: collections.defaultdict[int, list[threshold.SwitchLoad]]
        by_level = collections.defaultdict(list)
        for level, switch in sorted(traffic.keys() & capacity.keys()):
            key = (level, switch)
            by_level[level].append(threshold.SwitchLoad(traffic[key], capacity[key]))
        return [by_level[level] for level in range(max(by_level, default=-1) + 1)]

    def _query(self, text: str) -> dict[_Key, float]:
        url = f"{self.own.url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        try:
            with urllib.request.urlopen(url, timeout=base.TIMEOUT_S) as answer:
                return _series(json.loads(answer.read(LONGEST_BYTES)))
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as e:
            raise base.LoadsUnknown(self.own.url, f"{type(e).__name__}: {e}") from e


def _series(answer: Any) -> dict[_Key, float]:
    if answer["status"] != "success" or answer["data"]["resultType"] != "vector":
        raise ValueError(f"not an instant vector: {str(answer)[:200]}")
    found = {}
    for series in answer["data"]["result"]:
        level, value = int(series["metric"]["level"]), float(series["value"][1])
        if not 0 <= level <= MAX_LEVEL or not math.isfinite(value):
            raise ValueError(f"level {level} with value {value}")
        found[level, str(series["metric"]["switch"])] = value
    return found
