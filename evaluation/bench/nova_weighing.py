# SPDX-License-Identifier: Apache-2.0
"""Nova's weighers on a simulated cloud, and the time of acstor's weigher.

``python -m evaluation.bench.nova_weighing SEED [MULTIPLIER]`` in the virtualenv of the OpenStack
services prints one line of JSON.
"""

import json
import statistics
import sys
import time
import uuid
from typing import Any

from nova import config
from nova import objects
from nova.conf import CONF
from nova.scheduler import host_manager
from nova.scheduler import weights

from acstor_nova import weigher
from acstor_nova.locality import host_weight
from evaluation.bench import scheduled_cloud

STOCK = [
    f"nova.scheduler.weights.{name}"
    for name in ("ram.RAMWeigher", "cpu.CPUWeigher", "disk.DiskWeigher", "io_ops.IoOpsWeigher")
]
"""Nova's weighers that distinguish these hosts; all others give equal weights."""
TIMED_HOSTS, TIMED_RUNS = 1000, 200
CELL = str(uuid.UUID(int=1))


def make_state(name: str) -> host_manager.HostState:
    """Return Nova's state of an empty host."""
    state = host_manager.HostState(name, name, CELL)
    state.total_usable_ram_mb = state.free_ram_mb = scheduled_cloud.RAM_MB
    state.vcpus_total, state.cpu_allocation_ratio = scheduled_cloud.VCPUS, 1.0
    state.free_disk_mb = scheduled_cloud.DISK_MB
    state.hypervisor_version = 1
    return state


def request(image_id: str) -> Any:
    """Return the request of a server from an image."""
    return objects.RequestSpec(
        image=objects.ImageMeta(id=image_id, properties=objects.ImageMetaProps()),
        is_bfv=False,
        instance_group=None,
        pci_requests=objects.InstancePCIRequests(requests=[]),
        numa_topology=None,
        requested_destination=None,
    )


class Weighers:
    """Nova's handler with stock weighers; with acstor's if ``tables`` are given."""

    def __init__(self) -> None:
        self._handler = weights.HostWeightHandler()
        self._stock = [one() for one in self._handler.get_matching_classes(STOCK)]
        self.ours = weigher.ImageLocalityWeigher()
        self.has_ours = False
        CONF.set_override("decision_url", "http://simulated", "acstor")

    def use_tables(self, tables: Any) -> None:
        """Let acstor's weigher look up tables there."""
        self.has_ours = True
        self.ours._own_cache = lambda: tables  # type: ignore[method-assign]

    def order(self, states: list[Any], image_id: str) -> list[Any]:
        """Return hosts, the best first."""
        weighers = [*self._stock, *([self.ours] if self.has_ours else [])]
        found = self._handler.get_weighed_objects(weighers, states, request(image_id))
        return [one.obj for one in found]


def simulate(seed: int, weighers: Weighers, *, has_ours: bool) -> dict[str, Any]:
    """Return the figures of one run."""
    run = scheduled_cloud.Run(seed, make_state, weighers.order)
    weighers.has_ours = False
    if has_ours:
        weighers.use_tables(run)
    run.run()
    return run.result()


class _Table:
    """A table of all timed hosts."""

    def __init__(self) -> None:
        self._table = {f"h{n}": host_weight.CachedImage(0.9, 0.1) for n in range(TIMED_HOSTS)}

    def lookup(self, image_id: str) -> host_weight.LocalityTable:
        """Return the table."""
        return self._table


def weigher_ms(weighers: Weighers) -> float:
    """Return the median CPU time in acstor's weigher for 1,000 hosts."""
    weighers.use_tables(_Table())
    hosts = [weights.WeighedHost(make_state(f"h{n}"), 0.0) for n in range(TIMED_HOSTS)]
    spec, took_s = request(str(uuid.UUID(int=2))), []
    for _ in range(TIMED_RUNS):
        began_s = time.thread_time()
        weighers.ours.weigh_objects(hosts, spec)
        for one in hosts:
            weighers.ours.weight_multiplier(one.obj)
        took_s.append(time.thread_time() - began_s)
    return 1e3 * statistics.median(took_s)


def main() -> None:
    """Run everything and print it."""
    config.parse_args(["nova-scheduler"], default_config_files=[])
    objects.register_all()
    seed, weighers = int(sys.argv[1]), Weighers()
    if len(sys.argv) > 2:
        CONF.set_override(weigher.MULTIPLIER, float(sys.argv[2]), "acstor")
    found = {
        "multiplier": CONF.acstor[weigher.MULTIPLIER],
        "stock": simulate(seed, weighers, has_ours=False),
        "acstor": simulate(seed, weighers, has_ours=True),
        "weigher_ms": weigher_ms(weighers),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
