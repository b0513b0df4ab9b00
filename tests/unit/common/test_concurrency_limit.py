# SPDX-License-Identifier: Apache-2.0
"""Places of callers: how many, how long one waits for a place, and when nobody waits."""

import threading
import time
from concurrent import futures

import pytest

from acstor_common import concurrency_limit


def test_place_is_free_again_after_the_call_and_after_an_error() -> None:
    limit = concurrency_limit.ConcurrencyLimit("Glance", 1, time.monotonic)
    for _ in range(2):
        with pytest.raises(ValueError), limit.place():
            raise ValueError


def test_caller_waits_for_a_place_that_becomes_free() -> None:
    limit = concurrency_limit.ConcurrencyLimit("Glance", 1, time.monotonic)

    def call() -> None:
        with limit.place():
            time.sleep(0.05)

    with futures.ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(call) for _ in range(4)]:
            one.result(10)


def test_nobody_waits_once_all_calls_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency_limit, "WAIT_S", 0.2)
    limit = concurrency_limit.ConcurrencyLimit("Glance", 2, time.monotonic)
    ended, begun = threading.Event(), threading.Barrier(3)

    def hang() -> None:
        with limit.place():
            begun.wait(10)
            ended.wait(30)

    with futures.ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(hang)
        begun.wait(10)
        try:
            for _ in range(2):
                with pytest.raises(concurrency_limit.LimitReached, match="2 others wait"):
                    with limit.place():
                        pass
            began_s = time.monotonic()
            for _ in range(50):
                with pytest.raises(concurrency_limit.LimitReached), limit.place():
                    pass
            assert time.monotonic() - began_s < 5  # 50 waits would take 10 s
        finally:
            ended.set()
