# SPDX-License-Identifier: Apache-2.0
import time

import trio

from acstor_agent.process import loop_lag


def work() -> None:
    time.sleep(0.1)


async def test_loop_lag_includes_blocking_work():
    turns = loop_lag.LoopLag()
    await trio.sleep(0.001)
    turns.latency.longest_s = 0.0
    work()  # the loop cannot go on
    await trio.sleep(0.001)
    assert turns.latency.longest_s >= 0.1


async def test_loop_lag_excludes_idle_time():
    turns = loop_lag.LoopLag()
    began_s = time.perf_counter()
    for _ in range(5):
        await trio.sleep(0.05)
    waited_s = time.perf_counter() - began_s
    assert turns.latency.count >= 4  # the last is not over yet
    assert turns.latency.total_s < waited_s / 2
