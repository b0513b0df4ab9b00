# SPDX-License-Identifier: Apache-2.0
"""What is simulated, and what comes of it."""

import dataclasses
import statistics

from acstor_decision.core import vnode_counts
from acstor_simulator.model import boot_traces
from acstor_simulator.model import topology
from acstor_simulator.model import workloads

LONGEST_S = 1800.0
"""A guest that has not booted by then counts as one that cannot."""


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is simulated.

    :param mean: bytes per second that a host sends and receives besides chunks, on average
    :param cv: how unevenly (S4, Equation 2)
    :param partners: hosts that each host talks to
    :param reach: distance of the farthest of them, in switches
    :param chunks: that a guest reads
    :param common: share of its boot chunks that an image has in common with the others
    :param busy: share of each link but the storage's that others take, beside ``mean``
    :param think_s: what a guest needs to boot from a disk that is there
    :param sizes: of whole images; the default is the demo's Debian
    :param workload: what guests do: boot, or one of ``workloads.WORKLOADS``
    :param warm_s: so long there is no traffic, and half of the guests boot; then it begins, and
        after some collections the others do
    :param factor: lambda of S4's Equation 1, for the policy ``paper``
    """

    shape: topology.Shape = topology.ONE_SWITCH
    guests: int = 160
    images: int = 5
    mean: float = 70e6
    cv: float = 0.8
    partners: int = 8
    reach: int = 5
    chunks: int = boot_traces.CHUNKS
    common: float = 0.3
    seed: int = 1
    busy: float = 0.0
    think_s: float = boot_traces.THINK_S
    sizes: boot_traces.Sizes = boot_traces.DEBIAN
    longest_s: float = LONGEST_S
    workload: str = workloads.BOOT
    warm_s: float = 0.0
    factor: float = vnode_counts.LAMBDA


@dataclasses.dataclass(frozen=True)
class Later:
    """What happened from the moment on in which guests began beside the traffic.

    :param boot_s: seconds that each of these needed
    :param busy_bytes: of chunks that left hosts whose link others fill to 80 % or more
    :param busy_hosts: the number of these
    """

    boot_s: list[float]
    storage_chunks: int
    peer_chunks: int
    busy_bytes: float
    busy_hosts: int


@dataclasses.dataclass(frozen=True)
class Result:
    """What one run gave.

    :param boot_s: seconds each guest needed, of those that booted
    :param traffic_cv: CV of all traffic over the hosts, per collection
    :param true_cv: CV of the traffic besides chunks, which the links' limits may have lowered
    :param remaps: v-node tables that gave v-nodes to other hosts
    :param ready_s: seconds until a guest had its first byte
    :param whole_s: seconds until all of an image was on a host, for each that fetched it
    :param used: images that guests booted from: so many different ones, as many times as a
        different rack had one of them, and a different host
    :param storage_bytes: that left the storage
    :param uplink_bytes: that crossed links between racks and the rest, both directions of each
    :param storage_peak: bytes per second, in the busiest second
    :param uplink_peak: the same of the busiest link
    :param storage_rates: bytes per second that left the storage, second by second
    :param throughput: bytes per second that all guests read and wrote, each as long as it did
    :param later: what was beside the traffic, if some guests booted before it
    """

    policy: str
    boot_s: list[float]
    unbooted: int
    storage_chunks: int
    peer_chunks: int
    traffic_cv: list[float]
    true_cv: float
    remaps: int
    ready_s: list[float]
    whole_s: list[float]
    used: tuple[int, int, int]
    storage_bytes: float
    uplink_bytes: float
    storage_peak: float
    uplink_peak: float
    storage_rates: list[float]
    throughput: float
    later: Later | None

    @property
    def mean_boot_s(self) -> float:
        """The mean over the guests that booted."""
        return statistics.fmean(self.boot_s) if self.boot_s else float("nan")
