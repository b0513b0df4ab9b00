# SPDX-License-Identifier: Apache-2.0
import threading

import pytest
import trio
import trio.testing

from acstor_agent.core.sources import hung_calls
from acstor_agent.sources import blocking_threads
from acstor_common import errors
from tests.fakes import manual_clock

HANGS = pytest.mark.expect_log(r"the folder: \d calls? hangs?, the oldest for")


class Rig:
    """A folder whose calls hang until ``answers`` is set, with a manual clock."""

    def __init__(self, max_calls=2, max_hung_per_key=None):
        self.now_s = 0.0
        self.answers = threading.Event()
        self.began = threading.Semaphore(0)
        self.threads = blocking_threads.BlockingThreads(
            "the folder",
            max_calls,
            max_hung_per_key,
            clock=manual_clock.FunctionClock(lambda: self.now_s),
        )

    def call(self):
        self.began.release()
        assert self.answers.wait(30)
        return "an answer"

    async def hang(self, of="a"):
        """Start a call and abandon it while it hangs."""
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.threads.run, "a call", of, self.call)
                assert await trio.to_thread.run_sync(self.began.acquire, True, 30)
                scope.cancel()


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.answers.set()


async def until(is_true):
    with trio.fail_after(30):
        while not is_true():  # noqa: ASYNC110 - the end of a thread is no event
            await trio.sleep(0.01)


async def test_result_or_exception_of_the_call_is_passed_on(rig):
    assert await rig.threads.run("a call", "a", lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await rig.threads.run("a call", "a", lambda: 1 // 0)
    await until(lambda: rig.threads.hanging.calls == 0)


@HANGS
async def test_hung_calls_block_new_ones_until_one_returns(rig, watched_log):
    for _ in range(2):
        await rig.hang()
    assert (
        await rig.threads.run("a call", "b", lambda: 5) == 5
    )  # the calls do not count as hung yet
    rig.now_s = hung_calls.HANGS_AFTER_S
    with pytest.raises(errors.SourceUnreachable, match="2 calls hang, the oldest for 5 s"):
        await rig.threads.run("a call", "b", lambda: 5)
    assert rig.threads.hanging.calls == 2
    rig.answers.set()
    await until(lambda: rig.threads.hanging.calls == 0)
    assert await rig.threads.run("a call", "b", lambda: 5) == 5
    assert len(watched_log.messages) == 1


@HANGS
async def test_remounted_folder_is_used_although_old_calls_still_hang(rig):
    for _ in range(2):
        await rig.hang()
    rig.now_s = hung_calls.TRY_AGAIN_S - 1
    with pytest.raises(errors.SourceUnreachable):
        await rig.threads.run("a call", "b", lambda: 5)
    rig.now_s = hung_calls.TRY_AGAIN_S
    for _ in range(10):
        assert await rig.threads.run("a call", "b", lambda: 5) == 5
    assert rig.threads.hanging.calls == 2


@HANGS
async def test_hanging_file_leaves_the_others_readable():
    rig = Rig(max_calls=4, max_hung_per_key=1)
    try:
        await rig.hang("a")
        rig.now_s = hung_calls.HANGS_AFTER_S
        with pytest.raises(errors.SourceUnreachable, match="1 call hangs"):
            await rig.threads.run("a call", "a", lambda: 5)
        assert await rig.threads.run("a call", "b", lambda: 5) == 5
    finally:
        rig.answers.set()


async def test_threads_are_bounded_before_calls_count_as_hung(rig):
    for _ in range(6):
        await rig.hang()
    with trio.move_on_after(0.1) as scope:
        await rig.threads.run("a call", "a", rig.call)
    assert scope.cancelled_caught
    assert not rig.began.acquire(blocking=False)  # the seventh call never began
    rig.answers.set()
    with trio.fail_after(30):
        assert await rig.threads.run("a call", "a", lambda: 5) == 5


async def test_call_cancelled_before_its_thread_starts_takes_no_slot(rig):
    for _ in range(20):
        with trio.CancelScope() as scope:
            scope.cancel()
            await rig.threads.run("a call", "a", rig.call)
    rig.answers.set()
    assert await rig.threads.run("a call", "a", rig.call) == "an answer"
    assert rig.threads.hanging.calls == 0


def test_event_loop_ends_without_waiting_for_calls(rig):
    async def main():
        with trio.move_on_after(0.1):
            await rig.threads.run("a call", "a", rig.call)

    trio.run(main)
    assert not rig.answers.is_set()
