# SPDX-License-Identifier: Apache-2.0
"""Decoding of many images in a few threads, with preemption of long work."""

import threading
import time
from collections.abc import Iterator

import trio
import trio.testing

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.sources import decode_slots
from acstor_agent.sources.wrappers import decode_threads
from acstor_common.model import ids

GUEST = requests.Stream(requests.Klass.GUEST, "a guest")
SLOW, OTHER = ids.ImageId("slow"), ids.ImageId("other")


def busy(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def slow_steps(seconds: float, decoded_bytes: int = 1 << 20) -> Iterator[int]:
    """Use a processor for this time, one millisecond per step."""
    for _ in range(round(seconds * 1000)):
        busy(0.001)
        yield decoded_bytes


async def test_short_work_does_not_wait_for_the_end_of_long_work(nursery):
    threads = decode_threads.DecodeThreads(nursery, 1)
    ended = []

    async def run(image_id, steps):
        await threads.run(image_id, GUEST, steps)
        ended.append(image_id)

    for _ in range(4):
        nursery.start_soon(run, SLOW, slow_steps(0.3))
    await trio.sleep(0.05)
    await run(OTHER, slow_steps(0.002))
    assert ended == [OTHER]
    nursery.cancel_scope.cancel()


async def test_steps_run_in_order_and_never_concurrently(nursery):
    threads = decode_threads.DecodeThreads(nursery, 3)
    seen, lock = {number: [] for number in range(8)}, {n: threading.Lock() for n in range(8)}

    def steps(number):
        for step in range(20):
            assert lock[number].acquire(blocking=False)
            busy(0.0005)
            seen[number].append(step)
            lock[number].release()
            yield 1 << 20

    async with trio.open_nursery() as callers:
        for number in seen:
            callers.start_soon(threads.run, ids.ImageId(str(number % 3)), GUEST, steps(number))
    assert all(found == list(range(20)) for found in seen.values())


async def test_work_beyond_its_budget_resumes_later(nursery):
    threads = decode_threads.DecodeThreads(nursery, 2)
    began_s = trio.current_time()
    await threads.run(SLOW, GUEST, slow_steps(decode_slots.BURST_S + 0.02, decoded_bytes=0))
    took_s = trio.current_time() - began_s
    assert took_s > decode_slots.BURST_S + 0.015 / decode_slots.REFILL


async def test_cancelled_work_frees_its_slot(nursery):
    threads = decode_threads.DecodeThreads(nursery, 1)
    with trio.move_on_after(0.05):
        async with trio.open_nursery() as callers:
            for _ in range(3):
                callers.start_soon(threads.run, SLOW, GUEST, slow_steps(0.1))
    with trio.fail_after(5.0):
        await threads.run(OTHER, GUEST, slow_steps(0.001))
    assert threads._slots._waiting == 0


async def test_job_with_a_short_delay_does_not_wait_for_one_with_a_long_delay(nursery):
    threads = decode_threads.DecodeThreads(nursery, 2)

    def owe(image_id, used_s):
        job = threads._slots.queue_job(image_id, GUEST)
        assert threads._slots.begin_job(trio.current_time()) is job
        threads._slots.end_job(job, used_s, 0, trio.current_time())

    owe(SLOW, 30.0)
    owe(OTHER, decode_slots.BURST_S + 0.01)
    nursery.start_soon(threads.run, SLOW, GUEST, slow_steps(0.002))
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(5):
        await threads.run(OTHER, GUEST, slow_steps(0.002))
    nursery.cancel_scope.cancel()
