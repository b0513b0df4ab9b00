# SPDX-License-Identifier: Apache-2.0
"""S4's results on clouds small enough for a unit test, decided by the product's cores."""

import dataclasses
import functools

import pytest

from acstor_simulator import simulation
from acstor_simulator.model import boot_traces
from acstor_simulator.model import topology
from acstor_simulator.model import workloads

SMALL = simulation.Scenario(
    topology.Shape(1, 1, 8),
    guests=24,
    images=3,
    chunks=60,
    mean=0.0,
    cv=0.0,
    sizes=boot_traces.Sizes(stored=10_000_000, data=20_000_000),
)
UNEVEN = dataclasses.replace(
    SMALL, shape=topology.Shape(1, 1, 16), guests=48, mean=70e6, cv=1.2, chunks=40
)
simulate = functools.cache(simulation.simulate)
"""Several tests use one deterministic run."""


def test_same_seed_gives_the_same_run() -> None:
    assert simulate(SMALL, "acstor") == simulation.simulate(SMALL, "acstor")
    assert simulate(SMALL, "acstor") != simulate(dataclasses.replace(SMALL, seed=2), "acstor")


@pytest.mark.parametrize("policy", simulation.POLICIES)
def test_every_guest_boots_and_none_faster_than_its_think_time(policy: str) -> None:
    seen: list[int] = []
    result = simulation.simulate(SMALL, policy, seen.append)
    assert (len(result.boot_s), result.unbooted, seen) == (24, 0, list(range(1, 25)))
    assert min(result.boot_s) >= boot_traces.THINK_S - 1e-9


def test_storage_is_read_once_per_guest_host_or_chunk() -> None:
    read = {policy: simulate(SMALL, policy).storage_chunks for policy in simulation.BOOTING}
    different = len(
        {
            chunk.cid
            for image in range(3)
            for chunk in boot_traces.make_traced_image(image, SMALL.chunks, 0.3, 1).chunks
        }
    )
    assert read["none"] == 24 * SMALL.chunks
    assert different < read["local"] <= 8 * different
    assert read["collaborative"] == read["acstor"] == different


def test_overload_moves_vnodes_and_shortens_boots() -> None:
    still, moved = (simulate(UNEVEN, policy) for policy in ("collaborative", "acstor"))
    assert still.remaps == 0
    assert moved.remaps >= 1
    assert moved.mean_boot_s < still.mean_boot_s


NARROW = simulation.Scenario(
    topology.Shape(2, 4, 4, edge_rate=topology.GBIT / 2, storage_rate=topology.GBIT / 4),
    guests=32,
    images=3,
    mean=20e6,
    cv=1.2,
    chunks=30,
    seed=3,
)
"""Racks behind links that traffic fills, as in S4, section 5.8, but smaller."""


@pytest.mark.parametrize("reach", [1, 5])
def test_acstor_is_no_slower_than_other_policies_on_narrow_links(reach: int) -> None:
    scenario = dataclasses.replace(NARROW, reach=reach)
    boot_s = {policy: simulate(scenario, policy).mean_boot_s for policy in simulation.BOOTING}
    assert boot_s["acstor"] <= 1.005 * min(boot_s.values()), boot_s


def test_storage_is_read_once_for_all_racks() -> None:
    read = {
        policy: simulate(dataclasses.replace(NARROW, mean=0.0), policy).storage_chunks
        for policy in ("collaborative", "acstor")
    }
    assert read["collaborative"] > 1.9 * read["acstor"], "once for each of two pods, and once"


def test_tables_that_only_report_slow_links_are_no_remaps() -> None:
    assert simulate(NARROW, "acstor-still").remaps == 0, "of two rings that are published"


def test_even_traffic_causes_no_remap() -> None:
    result = simulate(dataclasses.replace(SMALL, mean=40e6), "acstor")
    assert result.remaps == 0


def test_guests_that_start_after_the_traffic_find_warm_caches() -> None:
    scenario = dataclasses.replace(UNEVEN, warm_s=40.0)
    still = simulate(scenario, "collaborative").later
    moved = simulate(scenario, "acstor")
    assert still is not None and moved.later is not None
    assert still.storage_chunks == 0, "each chunk is at its home, and no home changes"
    assert (len(still.boot_s), len(moved.later.boot_s)) == (24, 24)
    assert moved.remaps >= 1
    assert moved.later.busy_bytes < still.busy_bytes
    assert moved.later.busy_hosts == still.busy_hosts > 0


def test_no_warm_time_gives_no_later_result() -> None:
    assert simulate(SMALL, "local").later is None


@pytest.mark.parametrize("workload", workloads.WORKLOADS)
def test_workload_is_read_by_every_guest_and_faster_from_peers(workload: str) -> None:
    scenario = dataclasses.replace(SMALL, workload=workload, common=0.0)
    found = {policy: simulate(scenario, policy) for policy in ("none", "collaborative")}
    assert found["none"].storage_chunks == 24 * SMALL.chunks
    assert found["collaborative"].throughput > found["none"].throughput


def test_lambda_matters_only_with_the_printed_rules() -> None:
    found = {
        policy: {
            simulate(dataclasses.replace(UNEVEN, factor=factor), policy).mean_boot_s
            for factor in (1.0, 3.0)
        }
        for policy in ("acstor", "paper")
    }
    assert len(found["acstor"]) == 1
    assert max(found["paper"]) < 1.1 * min(found["paper"])
