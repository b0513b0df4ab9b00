# SPDX-License-Identifier: Apache-2.0
"""A hanging call times out for its caller and continues in one thread."""

import contextlib
import threading
import time

import pytest

from acstor_common.util import call_deadline
from tests.lab import runs


def test_caller_gets_result_or_exception_of_the_call() -> None:
    deadline = call_deadline.CallDeadline("a test", 10.0)
    assert deadline.run_call(lambda: 7) == 7
    with pytest.raises(LookupError):
        deadline.run_call(lambda: {}["no"])
    assert deadline.run_call(lambda: 8) == 8


def test_hanging_call_blocks_one_thread_and_the_next_call() -> None:
    deadline, ended = call_deadline.CallDeadline("a test", 0.1), threading.Event()
    before = threading.active_count()
    for _ in range(3):
        began_s = time.monotonic()
        with pytest.raises(call_deadline.CallTimeout, match="a test does not answer"):
            deadline.run_call(lambda: ended.wait(30))
        assert time.monotonic() - began_s < 5
    assert threading.active_count() <= before + 1
    ended.set()
    ends_s = time.monotonic() + 10
    said = 0
    while not said and time.monotonic() < ends_s:
        with contextlib.suppress(call_deadline.CallTimeout):
            said = deadline.run_call(lambda: 7)
    assert said == 7


@pytest.mark.parametrize("fails", [False, True])
def test_late_success_is_undone_before_the_next_call(fails: bool) -> None:
    deadline, ended = call_deadline.CallDeadline("a test", 0.1), threading.Event()
    done = list[str]()

    def work() -> None:
        ended.wait(30)
        done.append("work")
        if fails:
            raise LookupError

    with pytest.raises(call_deadline.CallTimeout):
        deadline.run_call(work, lambda: done.append("undo"))
    ended.set()

    def has_called() -> bool:
        with contextlib.suppress(call_deadline.CallTimeout):
            deadline.run_call(lambda: done.append("next"), lambda: pytest.fail("it was in time"))
        return "next" in done

    runs.wait_for(has_called, 10.0, "the next call", str)
    assert done == (["work", "next"] if fails else ["work", "undo", "next"])


def test_failed_thread_start_does_not_block_later_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadline = call_deadline.CallDeadline("a test", 10.0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            deadline.run_call(lambda: 7)
    assert deadline.run_call(lambda: 8) == 8


def no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
