# SPDX-License-Identifier: Apache-2.0
"""Traces of blktrace and fio are parsed into the recorded requests."""

import pathlib
from collections.abc import Iterable

import pytest

from acstor_policies import disk_schedulers
from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_traces

RECORDED = pathlib.Path(__file__).resolve().parents[2] / "data/disk_traces"
JOBS = {  # of one run of fio (tests/data/README.rst): the latency log, the process
    "sequential": ("sequential_lat.1.log", "pid-18102"),
    "random": ("random_lat.2.log", "pid-18103"),
}
every_job = pytest.mark.parametrize("job", JOBS)
BLKPARSE = """\
  8,0    3        1     0.000000000   697  Q   R 223490 + 8 [kjournald]
  8,0    1        3     0.010000000   701  Q  WS 1000 + 88 [tapdisk]
"""
IOLOG = """\
fio version 3 iolog
2 Nvme1n1 add
872 Nvme1n1 open
878 Nvme1n1 write 0 16384
888 Nvme1n1 read 65536 4096
889 Nvme1n1 sync 0 0
890 Nvme1n1 trim 0 4096
10001677 Nvme1n1 close
"""


def lines(name: str) -> list[str]:
    return (RECORDED / name).read_text().splitlines()


def accesses(trace: Iterable[disk_traces.Traced]) -> list[simulation.Access]:
    return [traced.access for traced in trace]


@every_job
def test_three_recordings_of_one_run_have_the_same_requests(job: str) -> None:
    log, process = JOBS[job]
    issued = accesses(disk_traces.from_iolog(lines(f"{job}.iolog")))
    assert len(issued) in (10, 12)
    assert {access.is_write for access in issued} == ({True, False} if job == "random" else {False})
    assert accesses(disk_traces.from_fio(lines(log), job)) == issued
    queued = disk_traces.from_blkparse(lines("blkparse.txt"))
    assert accesses(traced for traced in queued if traced.guest == process) == issued


def test_discards_flushes_and_summaries_are_no_requests() -> None:
    text = lines("blkparse.txt")
    assert any(" Q  DS " in line for line in text)
    assert any(" Q FWS " in line for line in text)
    total = text[text.index("Total (7,0):") + 1].split()
    assert (total[2], total[6]) == ("62,", "10,")  # as blkparse counts reads and writes
    found = accesses(disk_traces.from_blkparse(text))
    assert len([access for access in found if not access.is_write]) == 62
    assert len([access for access in found if access.is_write]) == 10 - 2  # the discard, the flush


@every_job
def test_latency_log_and_iolog_agree_on_request_times(job: str) -> None:
    logged = disk_traces.from_fio(lines(JOBS[job][0]), job)
    issued = disk_traces.from_iolog(lines(f"{job}.iolog"))
    for by_log, by_iolog in zip(logged, issued, strict=True):
        assert by_log.when_s == pytest.approx(by_iolog.when_s, abs=0.0012)


def test_trims_in_a_fio_log_are_skipped() -> None:
    log = ["7, 2100, 2, 4096, 4096, 0", "", "8, 2000000, 1, 65536, 0"]
    (found,) = disk_traces.from_fio(log, "job")
    assert found == (pytest.approx(0.006), "job", simulation.Access(0, 65536, True))


def test_fio_log_without_offsets_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: no offset"):
        list(disk_traces.from_fio(["0, 2000, 0, 4096"], "job"))


def test_priority_at_the_end_of_a_fio_log_may_be_hexadecimal() -> None:
    (found,) = disk_traces.from_fio(["12, 2000000, 0, 4096, 1048576, 0x0004"], "job")
    assert found == (pytest.approx(0.010), "job", simulation.Access(1048576, 4096))


def test_iolog_is_parsed_by_file_with_microseconds() -> None:
    assert list(disk_traces.from_iolog(IOLOG.splitlines())) == [
        (0.000878, "Nvme1n1", simulation.Access(0, 16384, True)),
        (0.000888, "Nvme1n1", simulation.Access(65536, 4096)),
    ]


@pytest.mark.parametrize("text", ["", "fio version 2 iolog\n/dev/sda read 0 4096\n"])
def test_iolog_without_times_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="fio version 3 iolog"):
        list(disk_traces.from_iolog(text.splitlines()))


@pytest.mark.parametrize("policy", disk_schedulers.SCHEDULERS)
def test_trace_is_played_at_its_own_times(policy: str) -> None:
    guests = disk_traces.guests(disk_traces.from_blkparse(BLKPARSE.splitlines()))
    run = simulation.Simulation(guests, disk_schedulers.SCHEDULERS[policy]()).run()
    assert {guest.name: guest.applications[0].bytes for guest in guests} == {
        "pid-697": 4096,
        "pid-701": 45056,
    }
    assert run.now_s > 0.01


@pytest.mark.parametrize("policy", disk_schedulers.SCHEDULERS)
def test_recording_is_played_to_its_end_by_every_policy(policy: str) -> None:
    trace = list(disk_traces.from_blkparse(lines("blkparse.txt")))
    guests = disk_traces.guests(trace)
    run = simulation.Simulation(guests, disk_schedulers.SCHEDULERS[policy]()).run()
    done = [(offset, length) for guest in guests for _, offset, length in guest.done]
    assert sorted(done) == sorted((access.offset, access.length) for access in accesses(trace))
    assert run.now_s > trace[-1].when_s
