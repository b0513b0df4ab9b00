# SPDX-License-Identifier: Apache-2.0
"""Disk I/O of the agent: scheduling, errors, cancellation, stalls and policy changes."""

import contextlib
import threading

import pytest
import trio
import trio.testing

from acstor_agent.control import status
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.runtime import disk_io
from acstor_policies import disk_schedulers

pytestmark = pytest.mark.allow_log("the disk has not answered")  # happens on a busy machine
GUEST = requests.Stream(requests.Klass.GUEST, "a")
SCHEDULING = [name for name in disk_schedulers.SCHEDULERS if name != disk_io.NONE]


@contextlib.asynccontextmanager
async def serving(policy):
    async with trio.open_nursery() as nursery:
        io = disk_io.DiskIo(policy, disk_schedulers.SCHEDULERS)
        await nursery.start(io.serve)
        yield io
        nursery.cancel_scope.cancel()


async def use(io, place, function, stream=GUEST):
    with disk_io.use_stream(stream):
        return await io.run(place, 4096, False, function)


@pytest.mark.parametrize("policy", disk_schedulers.SCHEDULERS)
async def test_every_caller_gets_its_own_result(policy):
    answers = {}

    async def ask(io, number):
        stream = requests.Stream(requests.Klass(number % 3), str(number % 5))
        answers[number] = await use(io, number * 10**9, lambda: number, stream)

    async with serving(policy) as io, trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(ask, io, number)
    assert answers == {number: number for number in range(60)}
    assert io.waiting_count == 0


@pytest.mark.parametrize("policy", SCHEDULING)
async def test_error_reaches_only_its_caller(policy):
    outcomes = {}

    def fail():
        raise OSError(5, "unreadable")

    async def ask(io, number):
        try:
            outcomes[number] = await use(io, number * 4096, fail if number == 3 else lambda: "good")
        except OSError as e:
            outcomes[number] = e.strerror

    async with serving(policy) as io, trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(ask, io, number)
    assert outcomes == {n: "unreadable" if n == 3 else "good" for n in range(6)}


@pytest.mark.parametrize("policy", SCHEDULING)
async def test_disk_serves_one_request_at_a_time(policy):
    inside, most = 0, 0
    lock = threading.Lock()

    def work():
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        with lock:
            inside -= 1

    async with serving(policy) as io, trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(use, io, number * 4096, work)
    assert most == 1


@pytest.mark.parametrize("policy", SCHEDULING)
async def test_cancelled_request_leaves_the_queue(policy):
    hold = threading.Event()
    done = []
    async with serving(policy) as io, trio.open_nursery() as nursery:
        nursery.start_soon(use, io, 0, hold.wait)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as gone:
                for number in range(1, 5):
                    gone.start_soon(use, io, number * 4096, lambda: done.append("gone"))
                await trio.testing.wait_all_tasks_blocked()
                assert io.waiting_count == 4
                scope.cancel()
        assert io.waiting_count == 0
        hold.set()
        await use(io, 0, lambda: done.append("other"))
    assert done == ["other"]


@pytest.mark.parametrize("other", disk_schedulers.SCHEDULERS)
@pytest.mark.parametrize("policy", disk_schedulers.SCHEDULERS)
async def test_policy_may_change_under_load(policy, other):
    answers = []
    async with serving(policy) as io, trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(use, io, number * 4096, lambda number=number: answers.append(number))
            if number == 20:
                await trio.testing.wait_all_tasks_blocked(0.001)
                io.change_policy(other)
    assert sorted(answers) == list(range(40))
    assert io.policy == disk_io.NONE  # as after every end: no scheduler runs


@pytest.mark.expect_log("the disk has not answered")
async def test_stalled_disk_does_not_block_other_requests():
    hold = threading.Event()
    async with serving("pregather") as io, trio.open_nursery() as nursery:
        nursery.start_soon(use, io, 0, hold.wait)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            assert await use(io, 10**9, lambda: "other") == "other"
        assert io.stalls >= 1
        hold.set()


async def test_waiting_requests_run_when_the_scheduler_ends():
    hold = threading.Event()
    answers = []
    async with trio.open_nursery() as nursery:
        async with serving("pregather") as io:
            nursery.start_soon(use, io, 0, hold.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(use, io, 4096, lambda: answers.append("late"))
            await trio.testing.wait_all_tasks_blocked()
        hold.set()
    assert answers == ["late"]


async def test_streams_are_shown_by_name_in_status():
    async with serving("cfq") as io:
        await use(io, 0, lambda: None)
        await io.run(4096, 4096, True, lambda: None)
        shown = status.of_disk_io(io)
    assert shown["policy"] == "cfq"
    assert shown["seeks"] == {"zero": 1, "near": 0, "far": 0}
    assert {name: count["bytes"] for name, count in shown["streams"].items()} == {
        "guest:a": 4096,
        "background:agent": 4096,
    }


def test_policy_none_only_calls_in_a_thread():
    io = disk_io.DiskIo()
    assert trio.run(io.run, 0, 1, False, threading.get_ident) != threading.get_ident()
    assert not io.counters.streams


def test_files_get_separate_address_ranges():
    io = disk_io.DiskIo()
    assert io.address_of("one", 5, 100) == 5
    assert io.address_of("two", 5, 50) == 105
    assert io.address_of("one", 99, 100) == 99
    assert io.address_of("three", 0, 1) == 150


@pytest.mark.parametrize(
    ("rotational", "link", "policy"),
    [
        ("1", "pci0000:00/ata1/block/sda", "pregather"),
        ("0", "pci0000:00/nvme0/nvme0n1", "none"),
        ("1", "pci0000:00/virtio1/block/vda", "none"),
        (None, "virtual/block/loop0", "none"),
    ],
)
@pytest.mark.parametrize("is_partition", [False, True])
def test_policy_suits_the_device(tmp_path, rotational, link, policy, is_partition):
    disk = tmp_path / "devices" / link
    (disk / "queue").mkdir(parents=True)
    if rotational is not None:
        (disk / "queue/rotational").write_text(rotational + "\n")
    number = tmp_path.stat().st_dev
    device = tmp_path / f"{number >> 8 & 0xFFF}:{number & 0xFF}"
    (disk / "part1").mkdir()
    device.symlink_to(disk / "part1" if is_partition else disk)
    assert disk_io.policy_for(tmp_path, tmp_path) == policy


def test_removed_file_is_forgotten():
    io = disk_io.DiskIo()
    for number in range(100):
        io.address_of(number, 0, 100)
        io.forget_file(number)
    assert io._bases == {}
    assert io.address_of("next", 5, 50) == 100 * 100 + 5  # no address range is used twice
