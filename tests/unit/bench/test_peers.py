# SPDX-License-Identifier: Apache-2.0
"""PEERS: its plan, the replay of a guest's reads, and its report."""

import pathlib
import threading
import time

import pytest

from acstor_common.model import ids
from evaluation.bench import peer_boots
from evaluation.bench import peer_plan
from evaluation.bench import peer_replay
from evaluation.bench import peer_report
from evaluation.bench import peer_ways

LOG = """\
2026-11-29 10:00:00.000000 connection=1 Connect export="" tls=0 size=0x1000 write=1 ...
2026-11-29 10:00:01.000000 connection=1 Read id=1 offset=0x200 count=0x1000 ...
2026-11-29 10:00:01.250000 connection=1 Read id=2 offset=0x10000 count=0x200 ...
2026-11-29 10:00:01.500000 connection=1 ...Read id=2 return=0 (Success)
2026-11-29 10:00:02.000000 connection=1 Flush id=3 ...
2026-11-29 10:00:02.500000 connection=1 ...Read id=1 return=0 (Success)
2026-11-29 10:00:03.000000 connection=1 Read id=4 offset=0x0 count=0x200 ...
"""
READ = peer_replay.Read(0.0, 1.5, 0x200, 0x1000)
OVERLAPPING = peer_replay.Read(0.25, 0.5, 0x10000, 0x200)
ZERO_S = {"login_s": 1.0, "service_s": 2.0, "program_s": 3.0, "login_bytes": 0}
IMAGE = "3f6f3a52-6d0c-4c6a-9d3e-0a55e8b4e1c7"
CELL = peer_plan.Cell(100, 20)
CROWD = peer_plan.Cell(100, 0, 8)


def boot(**figures: float) -> peer_boots.Boot:
    """Return a boot with some figures."""
    others = {"program_bytes": 0, "source_bytes": 0, "cpu_s": 9.0, "memory_mib": 5.0}
    return peer_boots.Boot(**{**ZERO_S, **others, **figures})  # type: ignore[arg-type]


def found(**boots: peer_boots.Boot) -> peer_report.Found:
    """Return one boot of each way in one cell."""
    names = {"raw": peer_ways.RAW, "acstor": peer_ways.ACSTOR}
    return peer_report.Found(
        {(CELL, names.get(way, way)): {0: one} for way, one in boots.items()},
    )


def test_log_of_nbdkit_yields_the_finished_reads_in_order() -> None:
    assert peer_replay.parse(LOG) == [READ, OVERLAPPING]


def test_replay_starts_a_read_only_after_those_it_waited_for() -> None:
    first = peer_replay.Read(0.0, 0.01, 0, 1)
    beside = peer_replay.Read(0.005, 0.02, 1, 1)
    after_both = peer_replay.Read(0.03, 0.04, 2, 1)
    began, released, seen = threading.Event(), threading.Event(), []

    def do_read(read: peer_replay.Read) -> None:
        if read == first:
            assert began.wait(5.0)  # of the read beside it
            time.sleep(0.05)
            released.set()
        elif read == beside:
            began.set()
        else:
            seen.append(released.is_set())

    peer_replay.replay([first, beside, after_both], do_read)
    assert seen == [True]


def test_replay_repeats_the_pauses_of_the_guest() -> None:
    reads = [peer_replay.Read(0.0, 0.5, 0, 1), peer_replay.Read(0.55, 0.6, 1, 1)]
    times = []
    peer_replay.replay(reads, lambda read: times.append(time.monotonic()))
    assert 0.05 <= times[1] - times[0] < 0.5


def test_replay_passes_on_the_failure_of_a_read() -> None:
    def do_read(read: peer_replay.Read) -> None:
        raise ValueError(read)

    with pytest.raises(ValueError, match="offset=512"):
        peer_replay.replay([READ], do_read)


def test_reader_of_a_raw_file_returns_its_bytes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(range(100)))
    with peer_replay.opened(None, peer_ways.Backing(path, "raw")) as reader:  # type: ignore[arg-type]
        assert reader(10, 3) == bytes([10, 11, 12])


@pytest.mark.parametrize("is_quick", [False, True])
def test_plan_has_each_way_and_turn_of_a_cell_once(is_quick: bool) -> None:
    jobs = peer_plan.plan(5, is_quick=is_quick)
    assert len(set(jobs)) == len(jobs)
    assert {job.cell for job in jobs} <= set(peer_plan.GRID)
    boots = {(job.cell, job.way, job.turn) for job in jobs if job.kind is not peer_plan.Kind.REPLAY}
    assert len(boots) == sum(job.kind is not peer_plan.Kind.REPLAY for job in jobs)


def test_plan_repeats_the_first_cells_in_five_turns() -> None:
    jobs = peer_plan.plan(5, is_quick=False)
    for cell in peer_plan.CORE:
        for way in peer_ways.WAYS:
            assert sum(job.cell == cell and job.way == way for job in jobs) == 5


def test_plan_reverses_the_ways_in_every_second_turn() -> None:
    jobs = peer_plan.plan(3, is_quick=False)
    orders = {
        turn: [job.way for job in jobs if job.cell == CELL_0 and job.turn == turn]
        for turn in range(3)
    }
    assert orders[1] == orders[0][::-1]
    assert orders[2] == orders[0]


CELL_0 = peer_plan.CORE[0]


def test_job_that_took_long_before_has_no_time_at_the_end() -> None:
    now_s = 0.0
    limit = peer_plan.TimeLimit(1000.0, lambda: now_s)
    slow = peer_plan.Job(peer_plan.Kind.BOOT, CELL, "QEMU")
    fast = peer_plan.Job(peer_plan.Kind.BOOT, CELL, "nbdkit")
    limit.note(slow, 500.0)
    limit.note(slow, 100.0)
    limit.note(fast, 50.0)
    now_s = 600.0
    assert limit.has_time(fast)
    assert not limit.has_time(slow)


def test_job_is_guessed_from_those_with_its_round_trip() -> None:
    limit = peer_plan.TimeLimit(100.0, lambda: 0.0)
    near = peer_plan.Job(peer_plan.Kind.BOOT, peer_plan.Cell(100, 0), "nbdkit")
    far = peer_plan.Job(peer_plan.Kind.BOOT, peer_plan.Cell(100, 100), "nbdkit")
    limit.note(near, 50.0)
    assert limit.has_time(near)
    assert not limit.has_time(far)


def test_percentiles_of_five_runs_are_interpolated() -> None:
    assert peer_report.percentiles([5.0, 1.0, 3.0, 2.0, 4.0]) == pytest.approx((3.0, 4.6, 4.96))


def test_goal_names_the_points_where_direct_reads_are_faster() -> None:
    measured = found(
        raw=boot(login_s=0.1),
        nbdkit=boot(login_s=20.0, service_s=40.0, program_s=10.0),
        QEMU=boot(login_s=30.0, service_s=30.0, program_s=25.0),
        acstor=boot(login_s=10.0, service_s=33.0, program_s=20.0),
    )
    lines = list(peer_report.goal_lines(peer_report.direct_ratios(measured)))
    assert lines[0].endswith("met at 1 of 3 measured points")
    assert lines[1:] == [
        "goal missed: 100 Mbit/s, 20 ms: service: 1.10 times QEMU",
        "goal missed: 100 Mbit/s, 20 ms: program: 1.06 times nbdkit",
    ]


def test_goal_counts_the_slowest_of_eight_hosts() -> None:
    replays = {
        (CROWD, "nbdkit"): {0: peer_replay.Replay([10.0, 20.0], 1, 0, 0, 0.0, 0.0)},
        (CROWD, peer_ways.ACSTOR): {0: peer_replay.Replay([5.0, 30.0], 1, 0, 0, 0.0, 0.0)},
    }
    (ratio,) = peer_report.direct_ratios(peer_report.Found(replays=replays))
    assert ratio == ("100 Mbit/s, 0 ms, 8 hosts: reads done", 1.5, "nbdkit")


def test_ratio_is_the_median_over_the_turns_of_both() -> None:
    ours = {0: boot(login_s=10.0), 1: boot(login_s=30.0), 2: boot(login_s=12.0)}
    theirs = {1: boot(login_s=20.0), 2: boot(login_s=24.0), 3: boot(login_s=1.0)}
    boots = {(CELL, peer_ways.ACSTOR): ours, (CELL, "nbdkit"): theirs}
    login, *_ = peer_report.direct_ratios(peer_report.Found(boots))
    assert login == ("100 Mbit/s, 20 ms: login", pytest.approx((1.5 + 0.5) / 2), "nbdkit")


def test_ways_of_different_turns_are_not_compared() -> None:
    boots = {(CELL, peer_ways.ACSTOR): {0: boot()}, (CELL, "nbdkit"): {1: boot()}}
    assert not peer_report.direct_ratios(peer_report.Found(boots))


def test_recorded_reads_are_repeated_by_later_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = peer_ways.Prepared(tmp_path, ids.parse_image_id(IMAGE), tmp_path / "raw")
    stored, reads = tmp_path / made.file_name, tmp_path / "PEERS.reads.json"
    recordings = iter([[READ], [OVERLAPPING]])
    monkeypatch.setattr(peer_replay, "record", lambda raw: next(recordings))
    stored.write_bytes(b"one")
    assert peer_replay.recorded(made, reads) == [READ]
    assert peer_replay.recorded(made, reads) == [READ]
    stored.write_bytes(b"another image")
    assert peer_replay.recorded(made, reads) == [OVERLAPPING]


def test_value_compares_each_step_with_the_fastest_peer() -> None:
    measured = found(
        raw=boot(login_s=0.1),
        download=boot(login_s=100.0, service_s=100.0, program_s=2.0),
        nbdkit=boot(login_s=20.0, service_s=40.0, program_s=10.0),
        acstor=boot(login_s=10.0, service_s=60.0, program_s=8.0),
    )
    assert peer_report.over_peers(measured) == (0.5, 1.5, 4.0)


def test_report_names_cells_and_ways_that_were_not_measured() -> None:
    lines = list(peer_report.not_measured(found(acstor=boot())))
    assert "not measured: 100 Mbit/s, 20 ms: raw file, download, Dragonfly, nbdkit, QEMU" in lines
    (empty,) = (line for line in lines if line.startswith("not measured in any way: "))
    assert "; no limit, 200 ms, 8 hosts" in empty
    assert "100 Mbit/s, 20 ms;" not in empty


def test_table_shows_the_percentiles_of_several_runs() -> None:
    measured = found(acstor=boot(login_s=10.0))
    measured.boots[CELL, peer_ways.ACSTOR][1] = boot(login_s=20.0)
    assert "15.0 / 19.0 / 19.9" in peer_report.boot_table(measured.boots)


def test_table_of_kept_guests_leaves_out_other_runs() -> None:
    measured = found(acstor=boot(program_s=4.0))
    measured.boots[CELL, peer_ways.ACSTOR][1] = boot(program_s=5.0, later_s=7.5)
    (row,) = peer_report.later_table(measured.boots).splitlines()[3:-1]
    assert row.split() == "| 100 Mbit/s, 20 ms | acstor | 5.0 | 7.5 | - | - | - |".split()
