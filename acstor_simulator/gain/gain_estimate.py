# SPDX-License-Identifier: Apache-2.0
"""Estimates a cloud's gain from numbers that its operator knows.

In a *rush*, which is simulated, many servers are created at once on hosts without their images.  In
a *day*, each image comes once to each host (or rack, or cloud) that uses it, at the rush's cost.
"""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Sequence

from acstor_simulator import simulation
from acstor_simulator.model import boot_traces
from acstor_simulator.model import topology

POLICY_TITLES = {
    "nova": "full copy, as Nova does",
    "alone": "acstor, each host alone",
    "today": "acstor",
}
"""The compared policies and their titles."""
GB, MB = 1e9, 1e6
UNPACKED = boot_traces.DEBIAN.data / boot_traces.DEBIAN.stored
"""Ratio of unpacked to stored size if unknown: that of the demo's Debian."""
PAYLOAD = 0.956  # share of a link that TCP over Ethernet leaves for image data
LONGEST_S = 12 * 3600.0
MOST_AT_ONCE = 1024
MOST_HOSTS = 4096


class WrongNumbersError(ValueError):
    """The numbers are inconsistent; the message has the remedy."""


@dataclasses.dataclass(frozen=True)
class CloudParameters:
    """A cloud, in numbers that its operator knows."""

    hosts: int = 40
    racks: int = 2
    link_gbit: float = 10.0
    uplink_gbit: float = 40.0  # of a rack
    store_gbit: float = 10.0  # of the image store
    images: int = 20
    image_gb: float = 2.0  # size of one image in Glance
    data_gb: float | None = None  # unpacked, without holes; None: UNPACKED times ``image_gb``
    boots_a_day: int = 500
    at_once: int | None = None  # servers in the rush; None: one on each host, 1,024 at most
    at_once_images: int = 1  # different images in the rush
    boot_s: float = boot_traces.THINK_S  # from power-on to login on a local disk
    boot_mb: float = boot_traces.CHUNKS * boot_traces.CHUNK_BYTES / MB
    busy_percent: float = 30.0  # other traffic on the links of hosts and racks
    seed: int = 1

    @property
    def sizes(self) -> boot_traces.Sizes:
        """Return the sizes of an image."""
        data_gb = UNPACKED * self.image_gb if self.data_gb is None else self.data_gb
        return boot_traces.Sizes(round(self.image_gb * GB), round(data_gb * GB))

    @property
    def rush_servers(self) -> int:
        """Return the number of servers in the rush."""
        return min(self.hosts, MOST_AT_ONCE) if self.at_once is None else self.at_once

    @property
    def shape(self) -> topology.Shape:
        """Return the network; equal racks may need a few more hosts than requested."""
        link, uplink, store = (
            gbit * topology.GBIT * PAYLOAD
            for gbit in (self.link_gbit, self.uplink_gbit, self.store_gbit)
        )
        rack_hosts = -(-self.hosts // self.racks)
        return topology.Shape(1, self.racks, rack_hosts, link, uplink, self.racks * uplink, store)

    def check_consistency(self) -> None:
        """Raise WrongNumbersError, with the remedy, if the numbers are inconsistent."""
        rules = {
            f"{self.racks} racks are too many for {self.hosts} hosts: "
            f"pass --racks {self.hosts} at most": self.racks <= self.hosts,
            f"unpacked, an image cannot be smaller than {self.image_gb:g} GB as it is stored: "
            f"pass --data-gb {self.image_gb:g} or more": self.sizes.data >= self.sizes.stored,
            f"a server reads {self.boot_mb:g} MB of an image that has "
            f"{self.sizes.data / MB:g} MB: pass --boot-mb {self.sizes.data // MB:g} at most, or a "
            "larger --data-gb": self.boot_mb * MB <= self.sizes.data,
            f"the servers at once have {self.at_once_images} images, and there are {self.images}: "
            f"pass --at-once-images {self.images} at most": self.at_once_images <= self.images,
        }
        for wrong, is_right in rules.items():
            if not is_right:
                raise WrongNumbersError(wrong)

    def boot_scenario(self, longest_s: float) -> simulation.Scenario:
        """Return the rush, ended after ``longest_s``, as a scenario of the simulator."""
        return simulation.Scenario(
            self.shape,
            guests=self.rush_servers,
            images=self.at_once_images,
            mean=0.0,
            cv=0.0,
            chunks=max(1, round(self.boot_mb * MB / boot_traces.CHUNK_BYTES)),
            common=0.0,
            seed=self.seed,
            busy=self.busy_percent / 100,
            think_s=self.boot_s,
            sizes=self.sizes,
            longest_s=longest_s,
        )


@dataclasses.dataclass(frozen=True)
class GainEstimate:
    """Result of one policy."""

    policy: str
    first_s: tuple[float, float, float]  # until a server has its disk's first byte: half, 95 %, all
    login_s: tuple[float, float, float]  # the same until its login prompt
    whole_s: float | None  # until the last host's image is fully cached; None: not within 12 hours
    unbooted: int  # servers not booted after 12 hours
    storage_gb: float
    storage_peak_gbit: float  # from the image store in its busiest second
    uplink_gb: float
    uplink_peak_gbit: float  # on the busiest link of a rack, one direction
    day_storage_gb: float  # from the image store in a day
    day_uplink_gb: float  # over the racks' links in a day, both directions added
    day_waits: float  # servers in a day that are the first of their image on their host


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the 95th percentile and the maximum.

    >>> percentiles([float(n) for n in range(1, 101)])
    (50.0, 95.0, 100.0)
    """
    ordered = sorted(values) or [math.inf]
    half, most = (ordered[math.ceil(len(ordered) * share) - 1] for share in (0.5, 0.95))
    return half, most, ordered[-1]


def popularity(images: int) -> list[float]:
    """Return each image's share of all boots, by Zipf's law.

    >>> popularity(2)
    [0.6666666666666666, 0.3333333333333333]
    """
    weights = [1 / rank for rank in range(1, images + 1)]
    return [weight / sum(weights) for weight in weights]


def first_uses(places: int, boots: int, images: int) -> float:
    """Return the expected number of first uses in a day, over places and images.

    >>> [round(first_uses(places, 500, 20), 1) for places in (1, 2, 40)]
    [20.0, 39.7, 297.0]
    """
    return sum(places * (1 - (1 - p / places) ** boots) for p in popularity(images))


def estimate_gain(parameters: CloudParameters, result: simulation.Result) -> GainEstimate:
    """Return the results of a rush, and the day calculated from it."""
    images, racks, hosts = result.used
    cloud_day, rack_day, host_day = (
        first_uses(places, parameters.boots_a_day, parameters.images)
        for places in (1, parameters.racks, parameters.hosts)
    )
    if result.policy == "today":  # each host reads its chunk map from the store
        maps = parameters.sizes.map_bytes
        day_storage = cloud_day * (result.storage_bytes - hosts * maps) / images + host_day * maps
        day_uplink = rack_day * result.uplink_bytes / racks
    else:
        day_storage = host_day * result.storage_bytes / hosts
        day_uplink = host_day * result.uplink_bytes / hosts
    late = [math.inf] * result.unbooted
    is_whole = len(result.whole_s) == hosts
    return GainEstimate(
        result.policy,
        percentiles(result.ready_s + late),
        percentiles(result.boot_s + late),
        max(result.whole_s) if is_whole else None,
        result.unbooted,
        result.storage_bytes / GB,
        result.storage_peak * 8 / GB,
        result.uplink_bytes / GB,
        result.uplink_peak * 8 / GB,
        day_storage / GB,
        day_uplink / GB,
        host_day,
    )


@dataclasses.dataclass(frozen=True)
class CacheSize:
    """Size of images in a host's cache: those of a day on average, and all."""

    day_gb: float
    all_gb: float


def cache_size(parameters: CloudParameters) -> CacheSize:
    """Return the cache size that a host needs for images and boot images."""
    image_gb = (parameters.sizes.data + boot_traces.PACKED * parameters.boot_mb * MB) / GB
    a_host = (
        first_uses(parameters.hosts, parameters.boots_a_day, parameters.images) / parameters.hosts
    )
    return CacheSize(a_host * image_gb, parameters.images * image_gb)


def simulate(
    parameters: CloudParameters,
    policy: str,
    progress: Callable[[int], None] = lambda booted: None,
    longest_s: float = LONGEST_S,
) -> simulation.Result:
    """Simulate the rush, ended after ``longest_s``, by a policy; may raise WrongNumbersError."""
    parameters.check_consistency()
    return simulation.simulate(parameters.boot_scenario(longest_s), policy, progress)
