# SPDX-License-Identifier: Apache-2.0
"""Every long-lived loop is supervised: the supervisor's behaviour, and its use by all loops."""

import ast
import functools
import pathlib
import subprocess
import sys
import threading

import pytest

from acstor_common.util import backoff
from acstor_common.util import supervision

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = (
    "acstor_agent",
    "acstor_checkpoint",
    "acstor_common",
    "acstor_decision",
    "acstor_glance",
    "acstor_nova",
    "acstor_osc",
)
HELPER = "acstor_common/util/supervision.py"
STARTS = {
    "Thread",
    "Timer",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "create_task",
    "ensure_future",
    "start_new_thread",
    "spawn_system_task",
    "spawn",
    "spawn_n",
    "LoopingCall",
    "FixedIntervalLoopingCall",
    "PeriodicWorker",
}
WITHOUT_LOOP = {
    (
        "acstor_glance/gateway/read_admission.py",
        "ThreadPoolExecutor",
    ): "Admission.run reads the result",
    (
        "acstor_glance/gateway/flatten/flatten_job.py",
        "ThreadPoolExecutor",
    ): "BaseFile reads the results",
    (
        "acstor_glance/gateway/flatten/flatten_jobs.py",
        "ThreadPoolExecutor",
    ): "_lines reads the result",
    ("acstor_glance/prepare/prehash.py", "ThreadPoolExecutor"): "_in_order reads the results",
}
"""Threads that run no loop: their starter waits for the result, errors included."""

NOT_OF_A_THREAD = {("acstor_agent/core/mount/process_state.py", "Thread"): "a row of /proc"}

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_backoff_doubles_up_to_a_limit_and_restarts_after_a_steady_run() -> None:
    again = backoff.Restarts(most=None)
    pauses = [again.next_pause(0.0) for _ in range(40)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert set(pauses[7:]) == {backoff.LONGEST_PAUSE_S}
    assert again.next_pause(backoff.STEADY_S) == backoff.FIRST_PAUSE_S


def test_loop_that_keeps_failing_is_abandoned() -> None:
    again = backoff.Restarts()
    reported = [again.next_pause(1.0) for _ in range(backoff.MAX_FAILURES)]
    assert None not in reported[:-1] and reported[-1] is None


class Loop:
    """Fails a number of times, and then returns."""

    def __init__(self, failures: int) -> None:
        self.left, self.runs = failures, 0

    def run(self) -> None:
        self.runs += 1
        if self.left:
            self.left -= 1
            raise LookupError("of a test")


@pytest.mark.expect_log("a loop failed; restarting it in")
def test_failed_loop_is_logged_counted_and_run_again() -> None:
    loop = Loop(2)
    before = supervision.failures().get("a loop", 0)
    supervision.start("a loop", loop.run, first_pause_s=0.001).join(10)
    assert loop.runs == 3
    assert supervision.failures()["a loop"] - before == 2


@pytest.mark.expect_log("a part failed; restarting it in")
def test_loop_that_is_not_vital_is_never_abandoned() -> None:
    loop = Loop(backoff.MAX_FAILURES + 1)
    supervision.start("a part", loop.run, is_vital=False, first_pause_s=0.001).join(10)
    assert loop.runs == backoff.MAX_FAILURES + 2


@pytest.mark.expect_log("a stopped loop failed; restarting it in")
def test_stopping_loop_is_not_run_again() -> None:
    stopping, has_run = threading.Event(), threading.Event()

    def fail() -> None:
        has_run.set()
        raise LookupError("of a test")

    thread = supervision.start("a stopped loop", fail, stopping, first_pause_s=600.0)
    assert has_run.wait(10)
    stopping.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.expect_log("one task failed; not restarting it")
def test_failed_work_is_logged_and_counted() -> None:
    before = supervision.failures().get("one task", 0)
    loop = Loop(1)
    supervision.start_once("one task", loop.run).join(10)
    assert loop.runs == 1 and supervision.failures()["one task"] == before + 1


def test_process_ends_when_a_vital_loop_keeps_failing() -> None:
    program = (
        "import logging, threading\n"
        "from acstor_common.util import supervision\n"
        "logging.basicConfig()\n"
        "supervision.start('rounds', lambda: 1 / 0, first_pause_s=0.001)\n"
        "threading.Event().wait(60)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == supervision.EXIT_FAILED
    assert "rounds keeps failing" in ended.stderr and "ZeroDivisionError" in ended.stderr


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the modules of the product, by their paths."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).glob("**/*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def started() -> set[tuple[str, str]]:
    """Return which modules of the product start threads or tasks, and with which function."""
    return {
        (path, name)
        for path, tree in trees().items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and (name := ast.unparse(call.func).rpartition(".")[2]) in STARTS
    }


def test_only_the_helper_starts_threads() -> None:
    assert started() - {(HELPER, "Thread")} == {*WITHOUT_LOOP, *NOT_OF_A_THREAD}


def takes_all_silently(handler: ast.ExceptHandler) -> bool:
    takes_all = handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")
    return takes_all and all(isinstance(step, ast.Pass | ast.Continue) for step in handler.body)


def test_no_handler_suppresses_all_errors() -> None:
    """An error of a trio task then ends its nursery: the part is restarted, or the worker ends."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and takes_all_silently(node)
    ]
    assert not found
