# SPDX-License-Identifier: Apache-2.0
import pytest
import trio

from acstor_agent.runtime import supervised_tasks
from tests.fakes import manual_clock


class Part:
    """A task that fails ``before`` times before its start, and ``after`` times later."""

    def __init__(self, before=0, after=0):
        self.before, self.after = before, after
        self.tries_s = []

    async def run(self, task_status=trio.TASK_STATUS_IGNORED):
        self.tries_s.append(trio.current_time())
        if len(self.tries_s) <= self.before:
            raise OSError(98, "Address already in use")
        task_status.started()
        if len(self.tries_s) <= self.before + self.after:
            await trio.sleep(1)
            raise RuntimeError("a bug")
        await trio.sleep_forever()


async def test_working_task_is_started_once(nursery, autojump_clock):
    parts, part = supervised_tasks.SupervisedTasks(nursery), Part()
    await parts.run_supervised("metrics", part.run)
    await trio.sleep(1000)
    assert (len(part.tries_s), parts.issues.now) == (1, {})


@pytest.mark.expect_log("metrics: .*Address already in use; guests read without it")
async def test_task_that_cannot_start_is_retried_with_backoff(nursery, autojump_clock):
    parts, part = (
        supervised_tasks.SupervisedTasks(nursery, clock=manual_clock.FunctionClock(lambda: 1234.0)),
        Part(before=12),
    )
    await parts.run_supervised("metrics", part.run)
    assert "Address already in use" in parts.issues.now["metrics"].why
    assert parts.issues.now["metrics"].since_s == 1234.0
    await trio.sleep(1000)
    pauses = [b - a for a, b in zip(part.tries_s, part.tries_s[1:], strict=False)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0] and pauses[-1] == 30.0
    assert len(part.tries_s) == 13 and parts.issues.now == {}


@pytest.mark.expect_log("metrics: a bug; guests")
async def test_task_that_fails_later_is_restarted(nursery, autojump_clock):
    parts, part = supervised_tasks.SupervisedTasks(nursery), Part(after=2)
    await parts.run_supervised("metrics", part.run)
    await trio.sleep(1.1)
    assert parts.issues.now["metrics"].why == "a bug"
    await trio.sleep(100)
    assert len(part.tries_s) == 3 and parts.issues.now == {}


@pytest.mark.expect_log("pins.json: the disk is full; guests read without it")
async def test_reported_state_is_a_health_issue_until_it_is_cleared(nursery):
    parts = supervised_tasks.SupervisedTasks(
        nursery, clock=manual_clock.FunctionClock(lambda: 1234.0)
    )
    for _ in range(2):
        parts.set_state("pins.json", "the disk is full")
    assert parts.issues.now["pins.json"].why == "the disk is full"
    parts.set_state("pins.json", "")
    assert parts.issues.now == {}
