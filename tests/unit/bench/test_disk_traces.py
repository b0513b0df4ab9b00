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


@pytest.mark.parametrize("policy", scheduler.POLICIES)
def test_trace_is_played_at_its_own_times(policy: str) -> None:
    guests = disk_traces.guests(disk_traces.from_blkparse(BLKPARSE.splitlines()))
    run = simulation.Simulation(guests, scheduler.POLICIES[policy]()).run()
    assert {guest.name: guest.applications[0].bytes for guest in guests} == {
        "pid-697": 4096,
        "pid-701": 45056,
    }
    assert run.now_s > 0.01
