# SPDX-License-Identifier: Apache-2.0
"""The wall clock of a chaos run's host: it jumps under a process without any other effect."""

import subprocess
import sys
import time

import pytest

from tests.chaos import clocks

PATIENCE_S = 20.0
NEAR_S = 5.0
YEAR_S = 365 * 86400.0
SCRIPT = """
import os, sys, threading, time
for _ in sys.stdin:
    began = time.monotonic()
    time.sleep(0.05)
    threading.Event().wait(0.05)
    child = os.fork()
    if not child:
        print(time.time(), time.monotonic(), time.monotonic() - began, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture
def library(tmp_path):
    return clocks.build(tmp_path)


def test_clock_jump_does_not_affect_waits_and_the_monotonic_clock(tmp_path, library):
    clock = clocks.WallClock(tmp_path / "clock", library)
    argv = [sys.executable, "-c", SCRIPT]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, env=clock.environment, stdin=pipe, stdout=pipe, text=True, bufsize=1
    ) as process:
        for off_s in (0.0, 600.5, -600.5, 25 * YEAR_S, -25 * YEAR_S, 0.0):
            clock.set_off(off_s)
            process.stdin.write("now\n")
            wall_s, monotonic_s, took_s = map(float, process.stdout.readline().split())
            assert wall_s - time.time() == pytest.approx(off_s, abs=NEAR_S)
            assert monotonic_s == pytest.approx(time.monotonic(), abs=NEAR_S)
            assert 0.1 <= took_s < NEAR_S
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def test_two_clocks_are_set_independently(tmp_path, library):
    made = [clocks.WallClock(tmp_path / name, library) for name in ("one", "other")]
    made[0].set_off(YEAR_S)
    said = [
        float(subprocess.check_output(["date", "+%s"], env=clock.environment)) for clock in made
    ]
    assert said[0] - said[1] == pytest.approx(YEAR_S, abs=NEAR_S)
