# SPDX-License-Identifier: Apache-2.0
"""V-node counts of hosts, inversely proportional to their traffic.

This is Wu et al. 2017 (ACStor), Equation 1, with two additional rules. Each host has at least one
v-node and at most a limit. The counts add up to a given total, from which lambda follows; in the
paper lambda only scales the counts (its table 1 shows no effect from 1 to 3).
"""

import math
from collections.abc import Mapping

from acstor_common.model import ids

LAMBDA = 1.67  # the paper's factor

HALVINGS = 100  # bisection steps for the factor; more than a float has bits

Counts = dict[ids.HostId, int]


def equation_1(traffic: Mapping[ids.HostId, float], factor: float = LAMBDA) -> Counts:
    """Return floor(factor * sum of all traffic / traffic of the host) for each host.

    >>> equation_1({ids.HostId("idle"): 10.0, ids.HostId("busy"): 90.0})
    {'idle': 16, 'busy': 1}

    :param traffic: of each host; above 0, in any unit
    """
    whole = sum(traffic.values())
    return {host: math.floor(factor * whole / own) for host, own in traffic.items()}


def printed_counts(traffic: Mapping[ids.HostId, float], factor: float, most: int) -> Counts:
    """Return Equation 1 as printed, with counts from 1 to ``most``.

    >>> printed_counts({ids.HostId("idle"): 1.0, ids.HostId("busy"): 99.0}, 0.5, most=40)
    {'idle': 40, 'busy': 1}
    """
    exact = equation_1(traffic, factor)
    return {host: min(most, max(1, count)) for host, count in exact.items()}


def bounded_counts(traffic: Mapping[ids.HostId, float], total: int, most: int) -> Counts:
    """Return the v-nodes of each host, 1 to ``most``: Equation 1 with ``total`` in all, clamped.

    ``traffic`` is above 0, in any unit.
    """
    if not traffic:
        return {}
    total = min(max(total, len(traffic)), len(traffic) * most)
    exact = _bounded(traffic, total, most)
    result = {host: math.floor(count) for host, count in exact.items()}
    order = sorted(exact, key=lambda host: (result[host] - exact[host], host))
    for host in order[: total - sum(result.values())]:  # those that rounding reduced most
        result[host] += 1
    return result


def _bounded(traffic: Mapping[ids.HostId, float], total: int, most: int) -> dict[ids.HostId, float]:
    low, high = 0.0, float(most) * max(traffic.values())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        whole = sum(min(most, max(1.0, middle / own)) for own in traffic.values())
        low, high = (middle, high) if whole < total else (low, middle)
    return {host: min(float(most), max(1.0, low / own)) for host, own in traffic.items()}
