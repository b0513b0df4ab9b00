# SPDX-License-Identifier: Apache-2.0
"""Scenario and result of a simulation."""

import dataclasses
import statistics

from acstor_decision.core import vnode_counts
from acstor_simulator.model import boot_traces
from acstor_simulator.model import topology
from acstor_simulator.model import workloads

LONGEST_S = 1800.0  # time after which a guest counts as unbooted


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Parameters of a simulation."""

    shape: topology.Shape = topology.ONE_SWITCH
    guests: int = 160
    images: int = 5
    mean: float = 70e6  # mean traffic of a host besides chunks, in bytes a second
    cv: float = 0.8  # coefficient of variation of this traffic (Wu 2017, Equation 2)
    partners: int = 8  # hosts that each host talks to
    reach: int = 5  # distance of the farthest of them, in switches
    chunks: int = boot_traces.CHUNKS  # chunks that a guest reads
    common: float = 0.3  # share of an image's boot chunks that all images have
    seed: int = 1
    busy: float = 0.0  # share of all links but the storage's that further traffic takes
    think_s: float = boot_traces.THINK_S  # boot time on a local disk
    sizes: boot_traces.Sizes = boot_traces.DEBIAN  # of images; the default is the demo's Debian
    longest_s: float = LONGEST_S
    workload: str = workloads.BOOT  # boot, or one of ``workloads.WORKLOADS``
    warm_s: float = 0.0  # time before traffic, in which half of the guests boot
    factor: float = vnode_counts.LAMBDA  # lambda of Equation 1, for the policy ``paper``


@dataclasses.dataclass(frozen=True)
class Later:
    """Results of the guests that booted under traffic, after ``warm_s``."""

    boot_s: list[float]  # boot times
    storage_chunks: int
    peer_chunks: int
    busy_bytes: float  # chunk bytes sent by hosts with a link at least 80 % full of other traffic
    busy_hosts: int  # number of these hosts


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one run."""

    policy: str
    boot_s: list[float]  # boot times of the guests that booted
    unbooted: int
    storage_chunks: int
    peer_chunks: int
    traffic_cv: list[float]  # CV of all traffic over the hosts, per collection
    true_cv: float  # CV of the traffic besides chunks, which links' limits may have lowered
    remaps: int  # v-node tables that moved v-nodes
    ready_s: list[float]  # times until guests had their first byte
    whole_s: list[float]  # times until an image was complete, for each host that fetched one
    used: tuple[int, int, int]  # different images, pairs of image and rack, pairs of image and host
    storage_bytes: float  # sent by the storage
    uplink_bytes: float  # carried by rack uplinks, both directions
    storage_peak: float  # bytes a second, in the busiest second
    uplink_peak: float  # the same of the busiest uplink
    storage_rates: list[float]  # bytes a second from the storage, second by second
    throughput: float  # sum of guests' rates of reads and writes, in bytes a second
    later: Later | None  # none without ``warm_s``

    @property
    def mean_boot_s(self) -> float:
        """Return the mean over the guests that booted."""
        return statistics.fmean(self.boot_s) if self.boot_s else float("nan")
