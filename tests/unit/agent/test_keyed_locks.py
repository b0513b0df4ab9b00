# SPDX-License-Identifier: Apache-2.0
"""Locks by key: one holder at a time for each, and no unused lock is kept."""

import trio
import trio.testing

from acstor_agent.runtime import keyed_locks


async def test_key_has_one_holder_at_a_time_and_other_keys_do_not_wait(nursery):
    locks, order, go_on = keyed_locks.KeyedLocks[str](), [], trio.Event()

    async def hold(key, number):
        async with locks.hold(key):
            order.append(number)
            await go_on.wait()

    for number in range(3):
        nursery.start_soon(hold, "a", number)
        await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(hold, "b", 3)
    await trio.testing.wait_all_tasks_blocked()
    assert order == [0, 3] and len(locks) == 2 and "a" in locks
    go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert order == [0, 3, 1, 2] and not locks


async def test_cancelled_waiter_leaves_no_lock_behind(nursery):
    locks, go_on, scope = keyed_locks.KeyedLocks[str](), trio.Event(), trio.CancelScope()

    async def hold():
        async with locks.hold("a"):
            await go_on.wait()

    async def wait():
        with scope:
            await hold()

    nursery.start_soon(hold)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert "a" in locks
    go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert "a" not in locks
