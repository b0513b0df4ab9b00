# SPDX-License-Identifier: Apache-2.0
"""A quarter of a minute of the chaos suite, and tests of its plan and its findings."""

import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from acstor_common import errors
from tests.chaos import actions
from tests.chaos import plan
from tests.chaos import readers
from tests.chaos import run
from tests.chaos import watch
from tests.chaos import world
from tests.fakes import hosts
from tests.lab import runs

HOSTS = ("h1", "h2", "h3")
LENGTH_S = 1800.0
PATIENCE_S = 60.0
STORM_S = 9.0


@hosts.needs_fuse
@hosts.needs_take_over
def test_run_of_a_quarter_minute_has_no_findings():
    """^C ends it."""
    argv = [sys.executable, "-m", "tests.chaos.run", "--seed", "5", "--minutes", "5"]
    running = subprocess.Popen(
        [*argv, "--hosts", "2", "--verbose"], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    said = []
    for line in running.stdout:
        said.append(line)
        if line.startswith("[") and float(line[1:].split()[0]) > STORM_S:
            running.send_signal(signal.SIGINT)
            break
    rest, _ = running.communicate(timeout=LENGTH_S)
    assert running.returncode == 0 and "seed 5: 0 findings" in rest, "".join([*said, rest])
    assert "the storm is over" in rest and "begins" not in rest.partition("the storm is over")[2]


@pytest.mark.parametrize("seed", range(20))
def test_steps_do_not_share_resources_and_end_before_the_calm(seed):
    steps = plan.make(seed, HOSTS, LENGTH_S)
    calms = plan.calms(LENGTH_S)
    assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
    for step in steps:
        assert step.at_s < step.until_s <= next(calm for calm in calms if calm > step.at_s)
    for takes, some in itertools.groupby(sorted(steps, key=lambda s: s.takes), lambda s: s.takes):
        for one, later in itertools.pairwise(sorted(some, key=lambda s: s.at_s)):
            assert one.until_s < later.at_s, takes


def test_plan_depends_only_on_the_seed_and_uses_every_kind():
    steps = plan.make(1, HOSTS, LENGTH_S)
    assert steps == plan.make(1, HOSTS, LENGTH_S)
    assert {step.name for step in steps} == set(plan.KINDS) == set(actions.ACTIONS)
    ways = {(step.name, step.way) for step in steps}
    assert ways == {(name, way) for name, kind in plan.KINDS.items() for way in kind.ways}


def test_selected_steps_of_a_plan_keep_their_times():
    steps = plan.make(1, HOSTS, 60.0)
    some = plan.only(steps, {1, 3, 5}, 4)
    assert some == [steps[1], steps[3]]


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(mirror, data=bytes(8192), way="direct"):
        (tmp_path / "truth").write_bytes(data)
        started.append(readers.Reader(way, tmp_path / "truth", mirror, 1, tmp_path / "reader"))
        return started[-1]

    yield begin
    for reader in started:
        hosts.kill(reader.pid)
        assert reader.ended_in(PATIENCE_S)


def look_until(made, reader, words):
    ends_s = time.monotonic() + PATIENCE_S
    while not any(words in found for found in made.findings):
        assert time.monotonic() < ends_s, made.findings
        made.look({"h1": AlwaysRunning()}, {"h1": [reader]})
        time.sleep(0.05)


class AlwaysRunning:
    is_running = True


@pytest.mark.parametrize("way", readers.WAYS)
def test_wrong_byte_is_reported_once(tmp_path, start, way):
    mirror = tmp_path / "mirror"
    mirror.write_bytes(bytes(5000) + b"!" + bytes(8192 - 5001))
    made = watch.Watch(["h1"])
    reader = start(mirror, way=way)
    look_until(made, reader, "the first is 5000")
    assert f"{way}: " in made.findings[0]


def test_reader_that_ends_or_hangs_is_a_finding(tmp_path, start):
    made = watch.Watch(["h1"], read_limit_s=0.5)
    look_until(made, start(tmp_path / "none"), "ended by exit status 1")
    os.mkfifo(tmp_path / "pipe")  # an open of it blocks
    look_until(made, start(tmp_path / "pipe", way="buffered"), "nothing explains it")


def test_wait_explained_by_a_step_is_no_finding(tmp_path, start):
    os.mkfifo(tmp_path / "pipe")
    made = watch.Watch(["h1", "h2"], read_limit_s=0.5)
    reader = start(tmp_path / "pipe", way="buffered")
    step = plan.Step(1, 0.0, 9.0, "freeze-worker", "h1", "", 0)
    made.begins(step)
    ends_s = time.monotonic() + 2
    while time.monotonic() < ends_s:
        made.look({"h1": AlwaysRunning()}, {"h1": [reader]})
        time.sleep(0.05)
    assert made.findings == []
    made.ended(step)
    look_until(made, reader, "nothing explains it")


def test_reader_that_makes_progress_is_no_finding(tmp_path, start):
    (tmp_path / "whole").write_bytes(bytes(8192))
    assert run.go_on({"h1": [start(tmp_path / "whole", way="buffered")]}, PATIENCE_S) == []


def test_reader_without_progress_is_a_finding(tmp_path, start):
    os.mkfifo(tmp_path / "pipe")
    waiting = start(tmp_path / "pipe", way="buffered")
    assert run.go_on({"h1": [waiting]}, 1.0) == [f"{waiting.name}: no read ended in 1 s"]


def test_hanging_reads_and_wrong_bytes_are_reported():
    assert actions.read_wrong(["sleep", "60"], b"", 0.2) == "it did not end in 0.2 s"
    assert actions.read_wrong(["echo", "a"], b"b\n", PATIENCE_S) == "wrong bytes"
    assert "/none" in actions.read_wrong(["dd", "if=/none"], b"", PATIENCE_S)
    assert actions.read_wrong(["echo", "a"], b"a\n", PATIENCE_S) == ""


@hosts.needs_fuse
@hosts.needs_take_over
def test_processes_and_mounts_of_a_killed_run_are_removed():
    argv = [
        sys.executable,
        "-m",
        "tests.chaos.run",
        "--seed",
        "6",
        "--minutes",
        "1",
        "--hosts",
        "1",
    ]
    argv += ["--steps", "9999", "--verbose"]
    with subprocess.Popen(argv, cwd=readers.ROOT, stdout=subprocess.DEVNULL) as process:
        folder = f"{process.pid}t{runs.start_ticks(process.pid)}n"
        hosts.wait_until(lambda: reading(folder), "readers", PATIENCE_S)
        process.kill()
    hosts.wait_until(lambda: not pids_of(folder), "the end of all", PATIENCE_S)
    runs.sweep()
    assert folder not in pathlib.Path("/proc/self/mountinfo").read_text()
    assert not list(runs.RUNS_FOLDER.glob(f"{folder}*"))


def reading(folder):
    return any(b"tests.chaos.readers" in line for line in pids_of(folder).values())


def pids_of(folder):
    """Return the command lines that contain a run's folder, by process."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if folder.encode() in line:
                found[path.parent.name] = line
    return found


def test_failed_step_and_missing_agent_are_findings():
    made = watch.Watch(["h1"])
    step = plan.make(1, ["h1"], 60.0)[0]

    def fail():
        raise errors.Unusable("the agent of h1", "it does not start")

    run.attempt(made, step, fail)()
    for _ in range(2):
        made.look({"h1": ExitedAgent()}, {"h1": []})
    assert ["does not start" in made.findings[0], "has ended" in made.findings[1]] == [True, True]
    assert len(made.findings) == 2


class ExitedAgent:
    is_running = False

    def log(self):
        return ""


def test_step_without_anything_to_do_is_counted(tmp_path):
    made = world.World(tmp_path, 1, ["h1"])
    made.hosts["h1"] = WithoutSlabs()
    for name in ("freeze-worker", "rot", "delete-slab"):
        run.begin(made, plan.Step(1, 0.0, 9.0, name, "h1", "", 0))()
    assert made.tally.idle == 3 and not made.watch.findings


class WithoutSlabs:
    def worker_pid(self):
        return None

    def slabs(self):
        return []
