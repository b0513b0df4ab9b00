# SPDX-License-Identifier: Apache-2.0
"""The disk model, and the scheduling policies on small workloads of the paper's guests."""

import functools
import random

import pytest

from acstor_agent.core.disk_scheduling import policy as policies
from acstor_agent.core.disk_scheduling import pregather
from acstor_policies import disk_schedulers
from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_workloads as workloads
from tests.fakes import rotating_disk

SMALL = 32 * workloads.MIB


@functools.cache
def four_guests(policy: str) -> simulation.Simulation:
    guests = workloads.four_guests(SMALL)
    return simulation.Simulation(guests, disk_schedulers.SCHEDULERS[policy]()).run()


@functools.cache
def reader_beside_random_ones(policy: str) -> simulation.Simulation:
    guests = workloads.mixed_guest("SRRR", 2 * SMALL)
    return simulation.Simulation(guests, disk_schedulers.SCHEDULERS[policy]()).run()


def test_random_reads_of_the_model_take_the_time_of_the_data_sheet() -> None:
    disk, rng = rotating_disk.RotatingDisk(), random.Random(1)
    now_s = 0.0
    for _ in range(5000):
        now_s += disk.serve_s(rng.randrange(disk.cost.size_bytes - 4096), 4096, now_s)
    assert now_s / 5000 == pytest.approx(0.0085 + 60 / 7200 / 2, rel=0.03)


def test_sequential_reads_of_the_model_have_the_rate_of_its_outer_edge() -> None:
    disk = rotating_disk.RotatingDisk()
    took_s = sum(disk.serve_s(number * 2**20, 2**20, 0.0) for number in range(100))
    assert 100 * 2**20 / took_s == pytest.approx(125e6, rel=0.03)


def test_repeated_run_gives_the_same_result() -> None:
    again = simulation.Simulation(
        workloads.four_guests(SMALL), disk_schedulers.SCHEDULERS["pregather"]()
    ).run()
    assert again.now_s == four_guests("pregather").now_s
    assert again.distances == four_guests("pregather").distances


def test_all_policies_serve_the_same_requests() -> None:
    def asked(policy: str) -> list[tuple[str, int]]:
        run = four_guests(policy)
        return [
            (guest.name, sum(a.bytes for a in guest.applications if not a.is_background))
            for guest in run.guests
        ]

    assert len({tuple(asked(policy)) for policy in disk_schedulers.SCHEDULERS}) == 1


def test_pregather_keeps_more_seeks_at_zero_and_ends_first() -> None:
    def at_zero(policy: str) -> float:
        distances = four_guests(policy).distances
        return distances.count(0) / len(distances)

    others = [name for name in disk_schedulers.SCHEDULERS if name != "pregather"]
    assert at_zero("pregather") > max(map(at_zero, others))
    ends = {name: four_guests(name).now_s for name in disk_schedulers.SCHEDULERS}
    assert min(ends, key=lambda name: ends[name]) == "pregather"


def test_pregather_waits_for_the_sequential_one_of_several_readers() -> None:
    waits = reader_beside_random_ones("pregather").scheduler.account.waits
    assert waits["met"] > 100
    assert waits["met"] > 9 * waits["expired"]


def test_zone_with_both_readers_of_a_guest_gives_no_prediction() -> None:
    def two_readers(policy: policies.SchedulingPolicy, second: int) -> float:
        files = (workloads.FILES_AT[0], second)
        parts = ("SR-S", "SR-S")
        guest = workloads.guest("SRSR", parts, workloads.REGIONS[0], 1, SMALL, files)
        return simulation.Simulation([guest], policy).run().now_s

    def pregather_s(sectors: int, second: int) -> float:
        limits = pregather.PregatherParameters(zone_bytes=sectors * workloads.SECTOR)
        return two_readers(pregather.Pregather(limits), second)

    near, far = workloads.FILES_AT[0] + 2**30, workloads.FILES_AT[1]
    cfq_s = two_readers(disk_schedulers.SCHEDULERS["cfq"](), near)
    assert pregather_s(2000, near) < cfq_s / 2
    assert pregather_s(10**7, near) == pytest.approx(cfq_s, rel=0.02)
    assert pregather_s(10**7, far) < cfq_s / 2


@pytest.mark.parametrize("policy", ["none", "deadline", "anticipatory", "cfq"])
def test_other_policies_treat_a_guest_as_one_reader_and_do_not_wait(policy: str) -> None:
    waits = reader_beside_random_ones(policy).scheduler.account.waits
    assert waits["met"] <= 3


def written(steps: simulation.Steps) -> list[list[simulation.Access]]:
    return [step for step in steps if isinstance(step, list)]


def is_journal(batch: list[simulation.Access]) -> bool:
    return batch[0].offset < workloads.FILES_AT[0]


def test_sequential_writer_calls_fsync_only_at_its_end() -> None:
    make, files = workloads.streams(workloads.AS_SYSBENCH)["SW-M"]
    start = workloads.FILES_AT[0]
    batches = written(make(random.Random(1), start, workloads.Journal(0), SMALL, files))
    assert [is_journal(batch) for batch in batches[-3:]] == [False, True, True]
    assert not any(map(is_journal, batches[:-2]))
    assert max(map(len, batches)) <= workloads.AS_SYSBENCH.piece
    assert sum(access.length for batch in batches[:-2] for access in batch) == SMALL


def test_random_writer_has_one_file_in_flight_per_thread() -> None:
    make, files = workloads.streams(workloads.AS_SYSBENCH)["RW"]
    start = workloads.FILES_AT[0]
    batches = written(make(random.Random(1), start, workloads.Journal(0), SMALL, files))
    blocks = [batch for batch in batches if not is_journal(batch)]
    assert max(map(len, blocks)) == workloads.THREADS
    assert sum(map(len, blocks)) % workloads.FSYNC_BLOCKS == 0
    assert len(batches) == 3 * len(blocks)  # each is followed by a commit


def test_writers_that_fill_the_ring_gain_nothing_from_waits() -> None:
    def ends_s(policy: str, writing: workloads.Writing) -> float:
        parts = ("SW-S", "SW-S")
        guest = workloads.guest("", parts, workloads.REGIONS[0], 1, SMALL, writing=writing)
        return simulation.Simulation([guest], disk_schedulers.SCHEDULERS[policy]()).run().now_s

    def gain(writing: workloads.Writing) -> float:
        return ends_s("cfq", writing) / ends_s("pregather", writing)

    assert gain(workloads.Writing(piece=38)) == pytest.approx(1.0, abs=0.02)
    assert gain(workloads.Writing(fsync_blocks=100, group=100)) == pytest.approx(1.0, abs=0.02)
    assert gain(workloads.Writing(piece=4)) > 2
