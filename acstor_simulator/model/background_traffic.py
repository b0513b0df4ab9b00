# SPDX-License-Identifier: Apache-2.0
"""Traffic that is not chunks: so much per host on average, so unevenly spread.

S4 describes a pattern by two numbers: the mean over the hosts of what a host
sends and receives, and its coefficient of variation (CV, Equation 2).  Host loads
are drawn from a gamma distribution, moved to that mean and CV, and kept below
what the cable carries; a host talks to as many partners as it is told, each
chosen with a probability in proportion to the partner's load, so that who sends
much receives much too.
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
    """Return the coefficient of variation (S4, Equation 2); 0 where nothing flows.

    >>> cv_of([1.0, 1.0]), cv_of([0.0, 2.0])
    (0.0, 1.0)
    """
    mean = statistics.fmean(values)
    return statistics.pstdev(values) / mean if mean else 0.0


def draw_loads(hosts: int, mean: float, cv: float, limit: float, rng: random.Random) -> list[float]:
    """Return bytes per second, sent and received, for each host.

    The limit cuts the tail, so at a high CV the true one is lower: report ``cv_of`` the result.

    :param limit: most that a host can send and receive together
    """
    if not mean or not cv:
        return [mean] * hosts
    loads = [rng.gammavariate(1 / cv**2, cv**2) for _ in range(hosts)]
    for _ in range(8):  # cutting changes mean and CV a little; moving again mends most of it
        middle, spread = statistics.fmean(loads), statistics.pstdev(loads) or 1.0
        loads = [mean + (load - middle) * cv * mean / spread for load in loads]
        loads = [min(max(load, 0.0), limit) for load in loads]
    return loads


class Flow(NamedTuple):
    """What one host sends to another, in bytes per second."""

    sender: int
    receiver: int
    rate: float


def flows(
    tree: topology.Tree, loads: Sequence[float], partners: int, reach: int, rng: random.Random
) -> list[Flow]:
    """Return who sends what to whom: half of each host's load, to ``partners`` others.

    :param reach: largest distance of a partner, in switches; 5 is anywhere
    """
    found = []
    upto = list(itertools.accumulate(loads, initial=0.0))
    for host, load in enumerate(loads):
        near = tree.hosts_within(host, reach)
        whole = upto[near.stop] - upto[near.start]
        if not load or whole <= load:  # nobody else near it talks
            continue
        for _ in range(partners):
            other = host
            while other == host:
                place = upto[near.start] + rng.random() * whole
                other = min(bisect.bisect_right(upto, place), near.stop) - 1
            found.append(Flow(host, other, load / 2 / partners))
    return found


def put(tree: topology.Tree, sent: Iterable[Flow]) -> None:
    """Put flows on the links of ``tree``."""
    for sender, receiver, rate in sent:
        for link in tree.links_between(sender, receiver):
            link.others += rate
