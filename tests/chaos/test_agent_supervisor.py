# SPDX-License-Identifier: Apache-2.0
"""Workers that die at once, give up, or do not stop, and their supervisor's reaction."""

import contextlib
import itertools
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from acstor_agent.process import supervisor
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.lab import runs

pytestmark = hosts.needs_fuse


class Supervised:
    """A supervisor with workers of one odd kind."""

    def __init__(self, mount_point: pathlib.Path, *work: str) -> None:
        mount_point.mkdir()
        self.mount_point = mount_point
        self.log = mount_point.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.odd_workers", str(mount_point), *work],
                cwd=guest_readers.ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.began_s = time.monotonic()

    def said(self, lines: int) -> list[str]:
        """Return the next lines: the time of a worker's start, or ``ready``."""
        return [self.process.stdout.readline().strip() for _ in range(lines)]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Stop it; return its exit status and how long it took."""
        began_s = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(20), time.monotonic() - began_s


@pytest.fixture
def supervise(tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(*work: str) -> Supervised:
            made = Supervised(tmp_path / "mirror", *work)
            stack.callback(made.process.stdout.close)
            stack.callback(end, made)
            return made

        yield begin
        stack.close()
        assert not hosts.mounts(tmp_path)


def end(made: Supervised) -> None:
    if made.process.poll() is None:
        children = f"/proc/{made.process.pid}/task/{made.process.pid}/children"
        pids = pathlib.Path(children).read_text().split()
        hosts.kill(made.process.pid, *map(int, pids))
        made.process.wait(5)
        for point in hosts.mounts(made.mount_point):
            runs.tool(["umount", "--lazy", point])


def state_of(pid: str) -> str:
    """Return the state of a process as in /proc, empty if there is none."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


@pytest.mark.parametrize("work", ["die", "fail"])
def test_workers_that_died_are_reaped(supervise, work):
    made = supervise(work)
    made.said(4)
    children = pathlib.Path(f"/proc/{made.process.pid}/task/{made.process.pid}/children")
    states = [state_of(pid) for pid in children.read_text().split()]
    assert states.count("Z") <= 1  # the latest, which its supervisor may not have noticed yet
    made.stop()


@pytest.mark.parametrize("work", ["die", "fail"])
def test_worker_that_dies_at_once_is_restarted_with_backoff(supervise, work):
    made = supervise(work)
    starts = [float(line) for line in made.said(4)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses[0] < pauses[2]
    assert pauses[1] >= supervisor.RESTART_PAUSE_S[0]
    assert pauses[2] >= 2 * supervisor.RESTART_PAUSE_S[0]
    status, took_s = made.stop()
    assert status == 0
    assert took_s < 1.0
    words = made.log.read_text()
    how = "killed by SIGKILL" if work == "die" else "exit status 1"
    assert words.count(f"ended ({how}); starting another") >= 3
    assert ("RuntimeError: by order" in words) == (work == "fail")


def test_stopping_supervisor_starts_no_other_worker(supervise):
    made = supervise("die")
    made.said(4)
    time.sleep(0.3)  # it pauses now; the next start is due in a second
    assert made.stop(signal.SIGINT)[1] < 1.0
    assert made.process.stdout.read() == ""


def test_signal_during_a_refused_stop_is_handled(supervise):
    made = supervise("serve", "signal-again")
    made.said(2)
    used = os.open(made.mount_point, os.O_PATH)  # this sends the worker no request
    try:
        assert made.stop()[0] == 0
    finally:
        os.close(used)
    assert "is in use; the agent keeps running" in made.log.read_text()


def test_failed_start_of_a_worker_is_retried(supervise):
    """After a kill by the OOM killer there may be no memory for the next worker."""
    made = supervise("serve")
    made.said(2)
    children = f"/proc/{made.process.pid}/task/{made.process.pid}/children"
    worker = int(pathlib.Path(children).read_text())
    few, many = resource.prlimit(made.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(made.process.pid, resource.RLIMIT_NOFILE, (4, many))
    hosts.kill(worker)
    hosts.wait_until(lambda: made.log.read_text().count("no worker can be started") > 1, "tries")
    assert hosts.mounts(made.mount_point)
    resource.prlimit(made.process.pid, resource.RLIMIT_NOFILE, (few, many))
    made.said(1)
    assert made.stop()[0] == 0


def test_worker_that_cannot_start_ends_the_agent_with_status_1(supervise):
    made = supervise("cannot_start")
    assert made.process.wait(5) == 1
    assert len(made.process.stdout.read().splitlines()) == 1
    assert "the order: says so" in made.log.read_text()


def test_agent_that_has_served_survives_a_worker_that_cannot_start(supervise):
    """Guests wait for it: the missing resource may return."""
    made = supervise("cannot_start_again")
    assert made.said(4).count("ready") == 1
    assert made.process.poll() is None
    assert made.stop()[0] == 0


def test_worker_that_does_not_stop_is_killed(supervise):
    made = supervise("serve_and_ignore_sigterm")
    made.said(2)
    status, took_s = made.stop()
    assert (status, 0.4 < took_s < 3) == (0, True)
    assert "does not stop; killing it" in made.log.read_text()


@pytest.mark.timed
def test_stop_is_handled_at_any_moment(supervise, tmp_path):
    """A signal may come before the first worker, or just after its start."""
    for delay_ms in (0, 1, 2, 3, 5, 8):
        made = Supervised(tmp_path / f"mirror{delay_ms}", "serve")
        try:
            hosts.wait_until(lambda: bool(hosts.mounts(made.mount_point)), "the mount")  # noqa: B023
            time.sleep(delay_ms / 1000)
            status, took_s = made.stop()
            assert (status, took_s < 0.45) == (0, True)
        finally:
            end(made)
            made.process.stdout.close()
