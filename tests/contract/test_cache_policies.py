# SPDX-License-Identifier: Apache-2.0
"""What every replacement policy of the public cache must do, on real files."""

import random

import pytest
import trio

from acstor_agent.cache import cache_files
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import cache_slot
from acstor_agent.core.cache import public_cache
from acstor_common.model import ids
from acstor_policies import cache_orders

KeepClass = public_cache.KeepClass
SLAB_BYTES = 1 << 20
LIMIT_BYTES = 3 << 20
SIZES = (16 << 10, 64 << 10, 5000)


@pytest.fixture(params=cache_orders.ORDERS.values(), ids=cache_orders.ORDERS)
def policy(request) -> type[cache_slot.Order]:
    return request.param


@pytest.fixture
def order(policy) -> cache_slot.Order:
    return policy()


def make_slots(count: int) -> list[cache_slot.Slot]:
    layout = cache_slab.SlabLayout(4096, count)
    slab = cache_slot.Slab(0, layout, cache_slot.SizeGroup(layout, cache_slot.LruOrder))
    return [
        cache_slot.Slot(ids.cid_of(bytes([i])), 4096, KeepClass.BORROWED, slab, i)
        for i in range(count)
    ]


def test_empty_order_has_no_victim(order):
    assert order.next_victim() is None


def test_demoted_slot_is_the_next_victim_until_it_is_used(order):
    slots = make_slots(9)
    for slot in slots:
        order.add(slot)
    for slot in slots * 2:
        order.note_use(slot)
    order.demote(slots[5])
    assert order.next_victim() is slots[5]
    order.remove(slots[5])
    order.add(slots[5])
    given = []
    while (slot := order.next_victim()) is not None:
        order.remove(slot)
        given.append(slot)
    assert sorted(given, key=id) == sorted(slots, key=id)


def test_order_returns_each_slot_exactly_once(order):
    slots = make_slots(20)
    for slot in slots:
        order.add(slot)
    for slot in slots[::3] * 3:
        order.note_use(slot)
    given = []
    while (slot := order.next_victim()) is not None:
        order.remove(slot)
        given.append(slot)
    assert len(given) == 20 and set(given) == set(slots)


def test_unused_slots_are_evicted_in_order_of_insertion(order):
    slots = make_slots(5)
    for slot in slots:
        order.add(slot)
    for slot in slots:
        assert order.next_victim() is slot
        order.remove(slot)


def test_parked_slot_may_be_used_and_reinserted(order):
    one, two = make_slots(2)
    order.add(one)
    order.add(two)
    order.remove(one)
    one.is_parked = True
    for _ in range(5):
        order.note_use(one)
    one.is_parked = False
    order.put_back(one)
    order.remove(two)
    assert order.next_victim() is one


async def test_any_load_respects_the_limit_and_returns_correct_bytes(policy, tmp_path):
    dice = random.Random(policy.__name__)
    chunks = [dice.randbytes(dice.choice(SIZES)) for _ in range(120)]
    content = {ids.cid_of(chunk): chunk for chunk in chunks}
    stored = 0
    cache = cache_files.CacheFiles.open(tmp_path, LIMIT_BYTES, SLAB_BYTES, policy)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        for _ in range(600):
            cid = dice.choice(list(content))
            got = await cache.read_chunk(cid)
            assert got in (None, content[cid])
            if got is None:
                stored += cache.store_chunk(cid, content[cid], dice.choice(list(KeepClass)))
            if dice.random() < 0.05:
                cache.drop_chunk(dice.choice(list(content)))
            if dice.random() < 0.05:
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    await cache.aclose()
    assert stored > 120
    assert cache.statistics.evictions > 0 and cache.statistics.corrupt_chunks == 0
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert on_disk == cache.statistics.disk_bytes <= LIMIT_BYTES


async def test_boot_chunks_survive_a_flood_of_borrowed_chunks(policy, tmp_path):
    cache = cache_files.CacheFiles.open(tmp_path, 1 << 20, 1 << 20, policy)
    boot = [bytes([i]) * 65536 for i in range(1, 6)]
    for chunk in boot:
        cache.store_chunk(ids.cid_of(chunk), chunk, KeepClass.BOOT)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        stored = 0
        for i in range(200):
            chunk = (i + 1000).to_bytes(2, "big") * 32768
            if cache.store_chunk(ids.cid_of(chunk), chunk):
                stored += 1
            else:
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    assert stored > 100
    assert all(ids.cid_of(chunk) in cache for chunk in boot)
    assert cache.statistics.chunks_by_class["boot"] == 5
    await cache.aclose()
