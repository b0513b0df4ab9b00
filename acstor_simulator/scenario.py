# SPDX-License-Identifier: Apache-2.0
"""Scenario and result of a simulation."""

import dataclasses
import statistics

from acstor_decision.core import vnode_counts
from acstor_simulator.model import boot_traces
from acstor_simulator.model import topology
from acstor_simulator.model import workloads

LONGEST_S = 1800.0
"""Time after which a guest counts as unbooted."""


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is simulated.

    :param mean: mean traffic of a host besides chunks, in bytes a second
    :param cv: coefficient of variation of this traffic (Wu 2017, Equation 2)
    :param partners: hosts that each host talks to
    :param reach: distance of the farthest of them, in switches
    :param chunks: chunks that a guest reads
    :param common: share of an image's boot chunks that all images have
    :param busy: share of each link but the storage's that other traffic takes, besides ``mean``
    :param think_s: boot time on a local disk
    :param sizes: of images; the default is the demo's Debian
    :param workload: boot, or one of ``workloads.WORKLOADS``
    :param warm_s: time without traffic in which half of the guests boot; the others boot some
        collections after the traffic has begun
    :param factor: lambda of Equation 1, for the policy ``paper``
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
    """Results of the guests that booted under traffic, after ``warm_s``.

    :param boot_s: boot times
    :param busy_bytes: chunk bytes sent by hosts with a link at least 80 % full of other traffic
    :param busy_hosts: number of these hosts
    """

    boot_s: list[float]
    storage_chunks: int
    peer_chunks: int
    busy_bytes: float
    busy_hosts: int


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one run.

    :param boot_s: boot times of the guests that booted
    :param traffic_cv: CV of all traffic over the hosts, per collection
    :param true_cv: CV of the traffic besides chunks, which links' limits may have lowered
    :param remaps: v-node tables that moved v-nodes
    :param ready_s: times until guests had their first byte
    :param whole_s: times until an image was complete, for each host that fetched one
    :param used: numbers of different images, of pairs of image and rack, of pairs of image and host
    :param storage_bytes: sent by the storage
    :param uplink_bytes: carried by rack uplinks, both directions
    :param storage_peak: bytes a second, in the busiest second
    :param uplink_peak: the same of the busiest uplink
    :param storage_rates: bytes a second from the storage, second by second
    :param throughput: sum of guests' rates of reads and writes, in bytes a second
    :param later: None without ``warm_s``
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
        """Return the mean over the guests that booted."""
        return statistics.fmean(self.boot_s) if self.boot_s else float("nan")
