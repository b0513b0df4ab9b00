# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import trio
import trio.testing

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.images.read import read_admission
from acstor_agent.runtime import disk_io
from acstor_common import errors

FLOOD, OTHER = (requests.Stream(requests.Klass.GUEST, name) for name in ("a/8", "b/8"))
READ = read_admission.REQUEST_BYTES


class AdmittedTasks:
    """Tasks that wait for admission, and then for the end of the test."""

    def __init__(self, nursery, **options):
        self.waiting = read_admission.ReadAdmission(**options)
        self.nursery = nursery
        self.at_work, self.failed = [], []
        self.is_over = trio.Event()

    async def enter(self, guest, name, more_bytes=0):
        self.nursery.start_soon(self._enter, guest, name, more_bytes)
        await trio.testing.wait_all_tasks_blocked()

    async def _enter(self, guest, name, more_bytes):
        try:
            await self.waiting.run_admitted(guest, self._work, guest, name, more_bytes=more_bytes)
        except errors.AcstorError as e:
            self.failed.append((name, type(e)))

    async def _work(self, guest, name):
        assert disk_io._stream.get() == guest
        self.at_work.append(name)
        await self.is_over.wait()


async def test_each_guest_has_its_own_queue_and_concurrency_limit(nursery):
    room = AdmittedTasks(nursery, at_once=2)
    for number in range(10):
        await room.enter(FLOOD, number)
    await room.enter(OTHER, "other")
    assert room.at_work == [0, 1, "other"]
    assert len(room.waiting) == 11
    room.is_over.set()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(room.at_work[3:]) == [*range(2, 10)]
    assert len(room.waiting) == 0 and room.waiting._lines == {}


@pytest.mark.expect_log(r"guest:a/8 has the most waiting requests")
async def test_newest_request_of_the_largest_queue_fails_over_the_limit(nursery):
    room = AdmittedTasks(nursery, limit_bytes=10 * READ, at_once=2)
    for number in range(12):
        await room.enter(FLOOD, number)
    for number in range(3):
        await room.enter(OTHER, f"other{number}")
    assert [name for name, _ in room.failed] == [10, 11, 9, 8, 7]
    assert {kind for _, kind in room.failed} == {errors.QueueFull}
    assert room.at_work == [0, 1, "other0", "other1"]
    assert room.waiting.refused == 5
    room.is_over.set()


async def test_request_that_is_not_admitted_by_its_deadline_fails(nursery, autojump_clock):
    room = AdmittedTasks(nursery, deadline_s=30.0, at_once=1)
    for number in range(3):
        nursery.start_soon(room._enter, FLOOD, number, 0)
    await trio.sleep(31)
    assert [kind for _, kind in room.failed] == [errors.DeadlineExceeded] * 2
    assert len(room.waiting) == 1
    room.is_over.set()


async def test_bytes_held_by_a_request_count_against_the_limit(nursery):
    room = AdmittedTasks(nursery, limit_bytes=100 * READ)
    await room.enter(FLOOD, "heavy", 98 * READ)
    assert room.waiting.has_room(0)
    assert not room.waiting.has_room(READ)
    room.is_over.set()


async def test_local_read_does_not_wait_behind_remote_reads(nursery):
    room = AdmittedTasks(nursery, at_once=1)
    await room.enter(FLOOD, "a miss")
    await room.enter(FLOOD, "another")

    async def read():
        assert room.at_work == ["a miss"]
        return b"here"

    assert await room.waiting.run_admitted(FLOOD, read, is_local=True) == b"here"
    room.is_over.set()


async def test_requests_of_a_killed_guest_fail_and_others_stay(nursery):
    room = AdmittedTasks(nursery, at_once=2)
    for number in range(4):
        await room.enter(FLOOD, number)
    await room.enter(OTHER, "other")
    assert read_admission.fail_requests(room.waiting.table, FLOOD, math.inf) == 4
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(room.failed) == [(number, errors.ReaderKilled) for number in range(4)]
    assert len(room.waiting) == len(room.waiting.table) == 1
    assert read_admission.fail_requests(room.waiting.table, FLOOD, math.inf) == 0
    room.is_over.set()


async def test_late_guests_are_listed_with_the_reason_of_their_wait(nursery):
    room = AdmittedTasks(nursery)

    async def wait():
        read_admission.note_wait("the source is away")
        with room.waiting.track_request(OTHER):  # already tracked
            assert len(room.waiting.table) == 1
        await room.is_over.wait()

    read_admission.note_wait("nothing of it is known outside of a turn")
    nursery.start_soon(room.waiting.run_admitted, OTHER, wait)
    await trio.testing.wait_all_tasks_blocked()
    (late,) = room.waiting.table.late_guests(float("inf"), 0.0).values()
    assert (late.count, late.why) == (1, "the source is away")
    room.is_over.set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(room.waiting.table) == 0


async def test_error_of_the_request_itself_is_raised(nursery):
    async def fail():
        raise errors.ChunkLost("x", "y")

    with pytest.raises(errors.ChunkLost):
        await read_admission.ReadAdmission().run_admitted(OTHER, fail)


async def test_cancelled_request_does_not_count_as_refused(nursery):
    crowd = read_admission.ReadAdmission()
    with trio.move_on_after(0) as scope:
        await crowd.run_admitted(OTHER, trio.sleep_forever)
    assert scope.cancelled_caught
    assert (crowd.refused, len(crowd), len(crowd.table)) == (0, 0, 0)
