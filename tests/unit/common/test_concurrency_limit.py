# SPDX-License-Identifier: Apache-2.0
"""Slots for concurrent calls: their number, waiting time and fairness."""

import threading
import time
from concurrent import futures

import pytest

from acstor_common.util import concurrency_limit


def test_slot_is_released_after_an_error() -> None:
    limit = concurrency_limit.ConcurrencyLimit("Glance", 1, time)
    for _ in range(2):
        with pytest.raises(ValueError), limit.hold_slot():
            raise ValueError


def test_caller_waits_for_a_free_slot() -> None:
    limit = concurrency_limit.ConcurrencyLimit("Glance", 1, time)

    def call() -> None:
        with limit.hold_slot():
            time.sleep(0.05)

    with futures.ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(call) for _ in range(4)]:
            one.result(10)


def test_callers_are_refused_at_once_while_all_calls_are_late() -> None:
    limit = concurrency_limit.ConcurrencyLimit("Glance", 2, time, wait_s=0.2)
    ended, begun = threading.Event(), threading.Barrier(3)

    def hang() -> None:
        with limit.hold_slot():
            begun.wait(10)
            ended.wait(30)

    with futures.ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(hang)
        begun.wait(10)
        try:
            for _ in range(2):
                with pytest.raises(concurrency_limit.LimitReached, match="2 others wait"):
                    with limit.hold_slot():
                        pass
            began_s = time.monotonic()
            for _ in range(50):
                with pytest.raises(concurrency_limit.LimitReached), limit.hold_slot():
                    pass
            assert time.monotonic() - began_s < 5  # 50 waits would take 10 s
        finally:
            ended.set()


@pytest.mark.timed
def test_occasional_caller_is_served_despite_flooding_callers() -> None:
    """16 callers keep 4 slots busy and 4 calls waiting; each of 40 others is served at once."""
    limit = concurrency_limit.ConcurrencyLimit("Nova", 4, time, 2.0, max_waiting=4)
    stopping, refused = threading.Event(), list[str]()

    def ask(who: str) -> None:
        with limit.hold_slot(who):
            time.sleep(0.02)

    def flood(who: str) -> None:
        while not stopping.is_set():
            try:
                ask(who)
            except concurrency_limit.LimitReached:
                refused.append(who)

    with futures.ThreadPoolExecutor(16) as pool:
        for number in range(16):
            pool.submit(flood, f"hostile {number}")
        try:
            time.sleep(0.5)
            began_s = time.monotonic()
            for number in range(40):
                ask(f"honest {number}")
            assert time.monotonic() - began_s < 40 * 0.1
        finally:
            stopping.set()
    assert refused


def test_caller_without_slots_goes_before_one_that_holds_some() -> None:
    limit = concurrency_limit.ConcurrencyLimit("Nova", 2, time, 5.0)
    order, busy, ends = list[str](), threading.Barrier(3), threading.Semaphore(0)

    def ask(who: str) -> None:
        with limit.hold_slot(who):
            order.append(who)
            if len(order) <= 2:
                busy.wait(10)
            ends.acquire(timeout=10)

    with futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(ask, "a") for _ in range(2)]
        busy.wait(10)
        calls.append(pool.submit(ask, "a"))
        time.sleep(0.1)
        calls.append(pool.submit(ask, "b"))
        time.sleep(0.1)
        for _ in calls:
            ends.release()
            time.sleep(0.05)
        for call in calls:
            call.result(10)
    assert order == ["a", "a", "b", "a"]
