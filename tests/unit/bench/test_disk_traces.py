# SPDX-License-Identifier: Apache-2.0
"""Traces of blktrace and fio become the requests that they recorded."""

import pytest

from acstor_agent.core.disk_scheduling import scheduler
from tests.bench import disk_simulation as simulation
from tests.bench import disk_traces

BLKPARSE = """\
  8,0    3        1     0.000000000   697  Q   R 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   R 223490 + 8 [kjournald]
  8,0    1        3     0.010000000   701  Q  WS 1000 + 88 [tapdisk]
  8,0    1        4     0.010500000   701  Q   D 1000 + 88 [tapdisk]
  8,0    1        5     0.010600000   701  Q FWS [tapdisk]
  8,0    1        6     0.020000000     0  C   R 223490 + 8 [0]
CPU3 (sda):
 Reads Queued:           1,        4KiB  Writes Queued:           1,       44KiB
"""
FIO = """\
0, 2000, 0, 4096, 8192, 0
7, 2100, 1, 65536, 0

9, 2100, 2, 4096, 4096
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


def test_blkparse_gives_what_was_queued_by_process() -> None:
    assert list(disk_traces.from_blkparse(BLKPARSE.splitlines())) == [
        (0.0, "pid-697", simulation.Access(223490 * 512, 4096)),
        (0.01, "pid-701", simulation.Access(512000, 45056, True)),
    ]


def test_fio_log_gives_reads_and_writes_and_no_trims() -> None:
    assert list(disk_traces.from_fio(FIO.splitlines(), "job")) == [
        (0.0, "job", simulation.Access(8192, 4096)),
        (0.007, "job", simulation.Access(0, 65536, True)),
    ]


def test_fio_log_without_offsets_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: no offset"):
        list(disk_traces.from_fio(["0, 2000, 0, 4096"], "job"))


def test_priority_at_the_end_of_a_fio_log_may_be_hexadecimal() -> None:
    (found,) = disk_traces.from_fio(["12, 84213, 0, 4096, 1048576, 0x0004"], "job")
    assert found == (0.012, "job", simulation.Access(1048576, 4096))


def test_iolog_gives_reads_and_writes_by_file_at_their_microseconds() -> None:
    assert list(disk_traces.from_iolog(IOLOG.splitlines())) == [
        (0.000878, "Nvme1n1", simulation.Access(0, 16384, True)),
        (0.000888, "Nvme1n1", simulation.Access(65536, 4096)),
    ]


@pytest.mark.parametrize("text", ["", "fio version 2 iolog\n/dev/sda read 0 4096\n"])
def test_iolog_without_times_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="fio version 3 iolog"):
        list(disk_traces.from_iolog(text.splitlines()))


@pytest.mark.parametrize("policy", scheduler.POLICIES)
def test_trace_is_played_at_its_own_times(policy: str) -> None:
    guests = disk_traces.guests(disk_traces.from_blkparse(BLKPARSE.splitlines()))
    run = simulation.Simulation(guests, scheduler.POLICIES[policy]()).run()
    assert {guest.name: guest.applications[0].bytes for guest in guests} == {
        "pid-697": 4096,
        "pid-701": 45056,
    }
    assert run.now_s > 0.01
