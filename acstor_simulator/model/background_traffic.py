# SPDX-License-Identifier: Apache-2.0
"""Background traffic besides chunks, with a given mean and variation.

Host loads follow a gamma distribution, scaled to mean and CV (Wu 2017, Equation 2) and limited to
the link rate.  A host talks to partners chosen with a probability proportional to their load.
"""

import bisect
import itertools
import random
import statistics
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from acstor_simulator.model import topology


def cv_of(values: Sequence[float]) -> float:
    """Return the coefficient of variation (Wu 2017, Equation 2); 0 without traffic.

    >>> cv_of([1.0, 1.0]), cv_of([0.0, 2.0])
    (0.0, 1.0)
    """
    mean = statistics.fmean(values)
    return statistics.pstdev(values) / mean if mean else 0.0


def draw_loads(hosts: int, mean: float, cv: float, limit: float, rng: random.Random) -> list[float]:
    """Return each host's load, sent plus received, in bytes a second, up to ``limit``.

    The limit lowers a high CV: report ``cv_of`` the result.
    """
    if not mean or not cv:
        return [mean] * hosts
    loads = [rng.gammavariate(1 / cv**2, cv**2) for _ in range(hosts)]
    for _ in range(8):  # clipping changes mean and CV; iterating restores most
        middle, spread = statistics.fmean(loads), statistics.pstdev(loads) or 1.0
        loads = [mean + (load - middle) * cv * mean / spread for load in loads]
        loads = [min(max(load, 0.0), limit) for load in loads]
    return loads


class Flow(NamedTuple):
    """Traffic from one host to another, in bytes a second."""

    sender: int
    receiver: int
    rate: float


def flows(
    tree: topology.Tree, loads: Sequence[float], partners: int, reach: int, rng: random.Random
) -> list[Flow]:
    """Return flows with half of each load to ``partners`` within ``reach`` switches (5: all)."""
    found = []
    upto = list(itertools.accumulate(loads, initial=0.0))
    for host, load in enumerate(loads):
        near = tree.hosts_within(host, reach)
        whole = upto[near.stop] - upto[near.start]
        if not load or whole <= load:  # no other host near it has traffic
            continue
        for _ in range(partners):
            other = host
            while other == host:
                place = upto[near.start] + rng.random() * whole
                other = min(bisect.bisect_right(upto, place), near.stop) - 1
            found.append(Flow(host, other, load / 2 / partners))
    return found


def put(tree: topology.Tree, sent: Iterable[Flow]) -> None:
    """Add flows to the links of a tree."""
    for sender, receiver, rate in sent:
        for link in tree.links_between(sender, receiver):
            link.others += rate
