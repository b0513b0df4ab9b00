# SPDX-License-Identifier: Apache-2.0
import trio
import trio.testing

from acstor_agent.chunks import retries


async def test_many_who_wait_try_no_more_often_in_all_than_a_few(nursery, autojump_clock):
    paused, tried = retries.Retries(), 0

    async def wait() -> None:
        nonlocal tried
        for tries in range(1_000_000):
            await paused.pause(tries)
            tried += 1

    for _ in range(4000):
        nursery.start_soon(wait)
    await trio.sleep(30)
    before = tried
    await trio.sleep(60)
    assert 0.5 * retries.RETRIES_PER_S < (tried - before) / 60 < 1.5 * retries.RETRIES_PER_S
    nursery.cancel_scope.cancel()


async def test_what_comes_wakes_those_who_wait_longest_and_not_all(nursery, autojump_clock):
    paused, woken = retries.Retries(), []

    async def wait(number: int) -> None:
        await paused.pause(10)
        woken.append(number)

    for number in range(20):
        nursery.start_soon(wait, number)
        await trio.testing.wait_all_tasks_blocked()
    paused.came()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(woken) == list(range(retries.WOKEN))
    assert len(paused) == 20 - retries.WOKEN
    await trio.sleep(retries.LONGEST_S + 0.1)
    assert sorted(woken) == list(range(20)) and len(paused) == 0
    paused.came()  # nobody waits: nothing happens


async def test_who_is_cancelled_waits_no_more(nursery):
    paused = retries.Retries()
    with trio.move_on_after(0.01):
        await paused.pause(10)
    assert len(paused) == 0
