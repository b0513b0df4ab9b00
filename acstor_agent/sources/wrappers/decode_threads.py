# SPDX-License-Identifier: Apache-2.0
"""Decodes compressed clusters in threads, by turns (``core/sources/decode_slots.py``).

A decoder is a generator that pauses after each step and may continue in another thread.
"""

import math
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

import trio

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.sources import decode_slots
from acstor_common.model import ids


class _DecodeSlice(NamedTuple):
    used_s: float
    decoded_bytes: int
    is_done: bool


class DecodeThreads:
    """The threads of a host, one for each processor; ``nursery`` must outlive all use."""

    def __init__(self, nursery: trio.Nursery, threads: int | None = None) -> None:
        threads = threads or len(os.sched_getaffinity(0))
        self._nursery = nursery
        self._slots = decode_slots.DecodeSlots(threads)
        self._limiter = trio.CapacityLimiter(threads)
        self._begun: dict[decode_slots.Job, trio.Event] = {}
        self._begins_at_s = math.inf

    async def run(
        self, image_id: ids.ImageId, guest: requests.Stream, steps: Iterator[int]
    ) -> None:
        """Run ``steps`` in threads; each yields the bytes that it decoded. None raises."""
        while not await self._slice(image_id, guest, steps):
            pass

    async def _slice(
        self, image_id: ids.ImageId, guest: requests.Stream, steps: Iterator[int]
    ) -> bool:
        job = self._slots.queue_job(image_id, guest)
        begun = self._begun[job] = trio.Event()
        self._begin()
        done = _DecodeSlice(0.0, 0, is_done=False)
        try:
            await begun.wait()
            done = await trio.to_thread.run_sync(
                self._work, steps, job, limiter=self._limiter, abandon_on_cancel=True
            )
        finally:
            del self._begun[job]
            if begun.is_set():
                self._slots.end_job(job, done.used_s, done.decoded_bytes, trio.current_time())
            else:
                self._slots.leave_queue(job)
            self._begin()
        return done.is_done

    def _begin(self) -> None:
        now_s = trio.current_time()
        while (job := self._slots.begin_job(now_s)) is not None:
            self._begun[job].set()
        delay_s = self._slots.delay_s(now_s)
        if delay_s is not None and now_s + delay_s < self._begins_at_s:
            self._begins_at_s = now_s + delay_s
            self._nursery.start_soon(self._begin_later, self._begins_at_s)

    async def _begin_later(self, at_s: float) -> None:
        await trio.sleep_until(at_s)
        if at_s == self._begins_at_s:  # no earlier timer replaced it
            self._begins_at_s = math.inf
            self._begin()

    # In a thread

    def _work(self, steps: Iterator[int], job: decode_slots.Job) -> _DecodeSlice:
        began_s, decoded_bytes = time.thread_time(), 0
        for step_bytes in steps:
            decoded_bytes += step_bytes
            used_s = time.thread_time() - began_s
            if self._slots.is_over(job, used_s, decoded_bytes):
                return _DecodeSlice(used_s, decoded_bytes, is_done=False)
        return _DecodeSlice(time.thread_time() - began_s, decoded_bytes, is_done=True)
