# SPDX-License-Identifier: Apache-2.0
"""Rules of the public cache: size limit, held slots, eviction by class, pins."""

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from acstor_agent.core.cache import cache_actions
from acstor_agent.core.cache import cache_pins
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import public_cache
from acstor_common import errors
from acstor_common.model import ids
from acstor_policies import cache_orders

KeepClass = public_cache.KeepClass
KIB = 1024
SLAB_BYTES = 5 * 16 * KIB  # four slots of 16 KiB and their table
LIMIT_BYTES = 3 * SLAB_BYTES


def cid(number: int) -> ids.Cid:
    return ids.Cid(number.to_bytes(32, "little"))


def make(order: str = "lru", slabs: int = 1) -> public_cache.PublicCache:
    return public_cache.PublicCache(slabs * SLAB_BYTES, SLAB_BYTES, cache_orders.ORDERS[order])


def fill(cache: public_cache.PublicCache, numbers, keep_class=KeepClass.BORROWED) -> None:
    for number in numbers:
        cache.allocate_slot(cid(number), 16 * KIB, keep_class)


def fill_and_hold(cache):
    """Fill the cache with four chunks, and hold the slot of the first."""
    fill(cache, [1, 2, 3, 4])
    slot = cache.slot_of(cid(1))
    cache.hold_slot(slot)
    return slot


def held(cache: public_cache.PublicCache) -> list[ids.Cid]:
    return sorted(cache.cids())


def test_lru_evicts_the_least_recently_used_chunk():
    cache = make("lru")
    fill(cache, [1, 2, 3, 4])
    cache.lookup(cid(1))
    fill(cache, [5])
    assert held(cache) == [cid(1), cid(3), cid(4), cid(5)]


@pytest.mark.parametrize("order", sorted(cache_orders.ORDERS))
def test_demoted_borrowed_chunk_is_evicted_first(order):
    cache = make(order)
    fill(cache, [1, 2, 3, 4])
    for number in (1, 2, 3, 3, 3, 4):
        cache.lookup(cid(number))
    assert cache.demote_chunk(cache.slot_of(cid(3)))
    fill(cache, [5])
    assert held(cache) == [cid(1), cid(2), cid(4), cid(5)]


def test_demoted_chunk_that_is_used_again_stays():
    cache = make("lru")
    fill(cache, [1, 2, 3, 4])
    assert cache.demote_chunk(cache.slot_of(cid(3)))
    cache.lookup(cid(3))
    fill(cache, [5])
    assert cid(3) in cache and cid(1) not in cache


@pytest.mark.parametrize("keep_class", [KeepClass.HOME, KeepClass.BOOT])
def test_home_and_boot_chunks_are_not_demoted(keep_class):
    cache = make("lru")
    fill(cache, [1, 2])
    fill(cache, [3], keep_class)
    fill(cache, [4])
    assert not cache.demote_chunk(cache.slot_of(cid(3)))
    fill(cache, [5, 6, 7])
    assert cid(3) in cache


@pytest.mark.parametrize("order", sorted(cache_orders.ORDERS))
def test_boot_class_is_bounded_and_keeps_the_recently_used_chunks(order):
    cache = make(order, slabs=3)
    fill(cache, [1, 2, 3, 4, 5], KeepClass.BOOT)
    cache.allocate_slot(cid(6), 4 * KIB, KeepClass.BOOT)  # in another slab
    for number in (2, 3, 4, 5, 6):
        cache.lookup(cid(number))
    may_keep = cache.limit_bytes // public_cache.BOOT_SHARES[KeepClass.BOOT]
    cache.bound_boot()
    kept_bytes = cache.usage.class_bytes[KeepClass.BOOT]
    assert kept_bytes <= may_keep < 16 * KIB + kept_bytes
    kept = {c for c in cache.cids() if cache.slot_of(c).keep_class is KeepClass.BOOT}
    assert len(cache) == 6 and cid(1) not in kept and cid(6) in kept
    fill(cache, range(10, 30))
    assert kept <= set(cache.cids()) and cid(1) not in cache
    before = cache.usage.class_bytes[:]
    cache.bound_boot()
    assert cache.usage.class_bytes == before


@pytest.mark.parametrize("order", sorted(cache_orders.ORDERS))
def test_prefetched_boot_chunks_are_bounded_and_displace_no_boot_chunks(order):
    cache = make(order, slabs=8)
    limits = {k: cache.limit_bytes // part for k, part in public_cache.BOOT_SHARES.items()}
    fill(cache, range(1, 6), KeepClass.BOOT)
    for number in range(10, 20):
        fill(cache, [number])
        cache.promote_chunk(cache.slot_of(cid(number)), KeepClass.PREFETCHED)
        cache.bound_boot()
        assert cache.usage.class_bytes[KeepClass.PREFETCHED] <= limits[KeepClass.PREFETCHED]
    assert cache.usage.class_chunks == [5, 0, 5, 5]
    assert all(cache.slot_of(cid(n)).keep_class is KeepClass.PREFETCHED for n in range(15, 20))
    fill(cache, range(20, 60))  # evicts all other unused chunks
    assert [cache.slot_of(cid(n)).keep_class for n in range(1, 6)] == 5 * [KeepClass.BOOT]
    assert cid(19) in cache and cid(14) not in cache
    cache.promote_chunk(cache.slot_of(cid(19)), KeepClass.BOOT)  # a guest boots from it
    assert cache.usage.class_chunks == [cache.usage.class_chunks[0], 0, 4, 6]


def test_pinned_boot_chunks_keep_their_class_beyond_the_bound():
    cache = make(slabs=3)
    fill(cache, [1, 2, 3, 4, 5], KeepClass.BOOT)
    for number in range(1, 6):
        cache.pin_chunk(cid(number), 16 * KIB)
    cache.bound_boot()
    assert cache.usage.class_chunks == [0, 0, 0, 5]
    cache.unpin_chunk(cid(3), 16 * KIB)
    cache.bound_boot()
    assert cache.slot_of(cid(3)).keep_class is KeepClass.BORROWED
    assert cache.usage.class_chunks == [1, 0, 0, 4]


def test_held_chunk_that_is_demoted_is_not_evicted():
    cache = make("lru")
    fill(cache, [1, 2, 3, 4])
    slot = cache.slot_of(cid(4))
    cache.hold_slot(slot)
    fill(cache, [5])
    assert cache.demote_chunk(slot)
    fill(cache, [6, 7])  # slot 4 is parked when it comes up
    assert cache.demote_chunk(slot)
    assert cid(4) in cache
    cache.release(slot)


def test_every_evicted_chunk_is_reported_once():
    cache, gone = make("lru"), []
    cache.gone = gone.append
    fill(cache, [1, 2, 3, 4, 5, 6])
    assert gone == [cid(1), cid(2)]
    cache.drop_chunk(cache.slot_of(cid(4)))
    assert gone == [cid(1), cid(2), cid(4)]
    assert not cache.demote_chunk(cache_slot_of_gone(cache, 5))
    assert gone == [cid(1), cid(2), cid(4), cid(5)]


def cache_slot_of_gone(cache, number):
    slot = cache.slot_of(cid(number))
    cache.drop_chunk(slot)
    return slot


def test_fifo_evicts_the_oldest_chunk_even_if_used():
    cache = make("fifo")
    fill(cache, [1, 2, 3, 4])
    cache.lookup(cid(1))
    fill(cache, [5])
    assert held(cache) == [cid(2), cid(3), cid(4), cid(5)]


def test_lfu_evicts_the_least_used_chunk_even_if_recent():
    cache = make("lfu")
    fill(cache, [1, 2, 3, 4])
    for number in (1, 1, 1, 2, 2, 2, 3, 3, 3, 4):
        cache.lookup(cid(number))
    fill(cache, [5])
    assert cid(4) not in cache
    fill(cache, [6])
    assert held(cache) == [cid(1), cid(2), cid(3), cid(6)]


def test_lfu_counts_uses_of_a_held_slot():
    cache = make("lfu")
    fill(cache, [1, 2, 3, 4])
    slots = [cache.lookup(cid(number)) for number in (1, 2, 3, 4)]
    for slot in slots:
        cache.hold_slot(slot)
    with pytest.raises(errors.CacheFull):
        fill(cache, [5])
    for slot in slots:
        for _ in range(8):
            cache.lookup(slot.cid)
        cache.release(slot)
    cache.drop_chunk(slots[0])
    fill(cache, [5, 6])
    assert held(cache) == [cid(2), cid(3), cid(4), cid(6)]


@pytest.mark.parametrize("order", cache_orders.ORDERS)
def test_borrowed_chunks_are_evicted_before_home_and_home_before_boot(order):
    cache = make(order)
    fill(cache, [1], KeepClass.BOOT)
    fill(cache, [2], KeepClass.HOME)
    fill(cache, [3, 4], KeepClass.BORROWED)
    for number in (3, 3, 4, 4):
        cache.lookup(cid(number))
    gone = []
    for number in range(10, 13):
        before = set(cache.cids())
        fill(cache, [number], KeepClass.BOOT)
        gone += before - set(cache.cids())
    assert sorted(gone[:2]) == [cid(3), cid(4)]
    assert gone[2:] == [cid(2)]


@pytest.mark.parametrize("order", cache_orders.ORDERS)
def test_promoted_chunk_outlives_others(order):
    cache = make(order)
    fill(cache, [1, 2, 3, 4])
    assert cache.promote_chunk(cache.slot_of(cid(1)), KeepClass.BOOT)
    assert not cache.promote_chunk(cache.slot_of(cid(1)), KeepClass.HOME)
    fill(cache, [5, 6, 7])
    assert cid(1) in cache
    assert cache.usage.class_chunks == [3, 0, 0, 1]


@pytest.mark.parametrize("order", cache_orders.ORDERS)
def test_held_slot_is_not_evicted_until_released(order):
    cache = make(order)
    slot = fill_and_hold(cache)
    cache.hold_slot(slot)
    fill(cache, [5, 6, 7])
    assert cid(1) in cache
    cache.release(slot)
    fill(cache, [8])
    assert cid(1) in cache
    cache.release(slot)
    fill(cache, range(9, 13))
    assert cid(1) not in cache


def test_slot_of_a_dropped_chunk_is_not_reused_while_held():
    cache = make()
    slot = fill_and_hold(cache)
    cache.drop_chunk(slot)
    assert slot.is_gone and cid(1) not in cache
    fill(cache, [5])
    assert cache.slot_of(cid(5)).slot_no != slot.slot_no
    cache.release(slot)
    fill(cache, [6])
    assert cache.slot_of(cid(6)).slot_no == slot.slot_no


def test_chunks_stored_in_sequence_are_adjacent_on_disk():
    cache = make()
    fill(cache, [1, 2, 3, 4])
    offsets = [cache.slot_of(cid(number)).offset for number in (1, 2, 3, 4)]
    assert offsets == [8192 + number * 16 * KIB for number in range(4)]


def test_cache_full_of_held_slots_raises_cache_full():
    cache = make()
    fill(cache, [1, 2, 3, 4])
    for number in (1, 2, 3, 4):
        cache.hold_slot(cache.slot_of(cid(number)))
    with pytest.raises(errors.CacheFull, match="everything is in use"):
        fill(cache, [5])
    with pytest.raises(errors.CacheFull, match="everything is in use"):
        cache.allocate_slot(cid(6), 4096, KeepClass.BOOT)


def test_borrowed_chunk_evicts_no_home_chunk_while_borrowed_ones_are_held():
    cache = make(slabs=2)
    fill(cache, [1, 2])
    fill(cache, [3, 4], KeepClass.HOME)
    cache.allocate_slot(cid(99), 30 * KIB, KeepClass.HOME)
    for number in (1, 2):
        cache.hold_slot(cache.slot_of(cid(number)))
    with pytest.raises(errors.CacheFull, match="everything is in use"):
        fill(cache, [5])
    fill(cache, [6], KeepClass.HOME)
    assert held(cache) == sorted(cid(number) for number in (1, 2, 4, 6, 99))


def test_chunk_larger_than_a_slab_is_refused():
    with pytest.raises(errors.CacheFull, match="slabs are too small"):
        make().allocate_slot(cid(1), 256 * KIB, KeepClass.BOOT)


def test_chunk_without_bytes_is_refused():
    with pytest.raises(ValueError, match="0 bytes"):
        make().allocate_slot(cid(1), 0, KeepClass.BOOT)


def test_new_slot_size_replaces_the_least_recently_used_slab():
    cache = make(slabs=2)
    fill(cache, range(8))
    cache.lookup(cid(0))
    first, second = cache.slot_of(cid(0)).slab, cache.slot_of(cid(7)).slab
    slot, actions = cache.allocate_slot(cid(100), 30 * KIB, KeepClass.BORROWED)
    assert [type(action).__name__ for action in actions] == ["RemoveSlab", "MakeSlab"]
    assert actions[0].slab is second and actions[1].slab is slot.slab
    assert slot.slab.layout.slot_bytes == 32 * KIB
    assert first.number != slot.slab.number
    assert cache.evictions == 4


def test_slab_with_a_boot_chunk_is_removed_last():
    cache = make(slabs=2)
    fill(cache, range(3))
    fill(cache, [3], KeepClass.BOOT)
    fill(cache, range(4, 8))
    cache.allocate_slot(cid(100), 30 * KIB, KeepClass.BORROWED)
    assert cid(3) in cache and cid(7) not in cache


def test_slab_with_a_held_slot_is_not_removed():
    cache = make(slabs=2)
    fill(cache, range(8))
    cache.hold_slot(cache.slot_of(cid(0)))
    cache.allocate_slot(cid(100), 30 * KIB, KeepClass.BORROWED)
    assert cid(0) in cache and cid(7) not in cache


def test_unused_slot_size_loses_its_slabs():
    cache = make(slabs=3)
    fill(cache, range(12))
    for number in range(100, 130):
        cache.allocate_slot(cid(number), 30 * KIB, KeepClass.BORROWED)
    assert not any(cid(number) in cache for number in range(12))
    assert cache.slab_count == 3


def test_slot_size_in_use_keeps_its_slabs():
    cache = make(slabs=3)
    fill(cache, range(12))
    for number in range(100, 130):
        cache.allocate_slot(cid(number), 30 * KIB, KeepClass.BORROWED)
        for hot in range(12):
            cache.lookup(cid(hot))
    assert sum(cid(number) in cache for number in range(12)) == 8


def test_cache_continues_without_a_slab_that_could_not_be_created():
    cache = make(slabs=3)
    fill(cache, range(4))
    slot, actions = cache.allocate_slot(cid(100), 16 * KIB, KeepClass.BORROWED)
    cache.hold_slot(slot)
    cache.lose_slab(actions[-1].slab)
    cache.release(slot)
    assert held(cache) == sorted(cid(number) for number in range(4))
    fill(cache, range(10, 30))
    assert cache.slab_count == 1 and len(cache) == 4


def found(number: int, records, slot_bytes: int = 16 * KIB) -> cache_actions.FoundSlab:
    layout = cache_slab.SlabLayout.largest_within(SLAB_BYTES, slot_bytes)
    return cache_actions.FoundSlab(number, layout, [cache_slab.SlotRecord(*r) for r in records])


@pytest.mark.parametrize("order", ["lru", "fifo"])
def test_eviction_order_survives_a_restart(order):
    cache = make(order)
    records = [(i, cid(i + 1), seq, 16 * KIB, 0) for i, seq in enumerate((7, 3, 9, 5))]
    assert cache.restore_slabs([found(0, records)]) == []
    fill(cache, [10])
    assert cid(2) not in cache
    fill(cache, [11])
    assert held(cache) == [cid(1), cid(3), cid(10), cid(11)]
    assert cache.slot_of(cid(10)).sequence > 9


def test_newer_of_two_records_counts_and_the_older_slot_is_free():
    cache = make(slabs=2)
    cache.restore_slabs(
        [
            found(0, [(2, cid(1), 20, 16 * KIB, 0)]),
            found(1, [(0, cid(1), 10, 16 * KIB, 1), (1, cid(2), 11, 16 * KIB, 3)]),
        ]
    )
    slot = cache.slot_of(cid(1))
    assert (slot.slab.number, slot.slot_no) == (0, 2)
    assert cache.usage.class_chunks == [1, 0, 0, 1]
    fill(cache, range(10, 16))
    assert len(cache) == 8 and cache.evictions == 0


def test_smaller_limit_removes_the_least_valuable_slabs():
    cache = make(slabs=2)
    actions = cache.restore_slabs(
        [
            found(0, [(0, cid(1), 90, 16 * KIB, 0)]),
            found(1, [(0, cid(2), 10, 16 * KIB, 2)]),
            found(2, [(0, cid(3), 80, 16 * KIB, 0)]),
        ]
    )
    assert [action.slab.number for action in actions] == [2]
    assert held(cache) == [cid(1), cid(2)]
    assert cache.disk_bytes <= cache.limit_bytes


def small_slab(number: int, sequence: int) -> cache_actions.FoundSlab:
    layout = cache_slab.SlabLayout(4096, 8)
    records = [cache_slab.SlotRecord(0, cid(number), sequence, 4096, 0)]
    return cache_actions.FoundSlab(number, layout, records)


def test_new_slab_replaces_as_many_restored_small_slabs_as_needed():
    cache = make(slabs=2)
    cache.restore_slabs([small_slab(number, sequence=100 - number) for number in range(4)])
    _, actions = cache.allocate_slot(cid(20), 30 * KIB, KeepClass.BORROWED)
    gone = [a.slab.number for a in actions if isinstance(a, cache_actions.RemoveSlab)]
    assert gone == [3, 2]
    assert cache.disk_bytes <= cache.limit_bytes


def test_no_slab_is_removed_if_that_frees_too_little():
    cache = make(slabs=1)
    cache.restore_slabs([small_slab(0, 1), small_slab(1, 2)])
    cache.hold_slot(cache.slot_of(cid(0)))
    with pytest.raises(errors.CacheFull):
        fill(cache, [10])
    assert held(cache) == [cid(0), cid(1)]


def test_chunks_and_bytes_are_counted_by_class():
    cache = make(slabs=2)
    fill(cache, [1, 2], KeepClass.HOME)
    cache.allocate_slot(cid(3), 10_000, KeepClass.BOOT)
    cache.drop_chunk(cache.slot_of(cid(1)))
    assert cache.usage.class_bytes == [0, 16 * KIB, 0, 10_000]
    assert cache.usage.class_chunks == [0, 1, 0, 1]


@pytest.mark.parametrize("order", cache_orders.ORDERS)
def test_pinned_chunk_is_not_evicted_until_its_last_pin_is_removed(order):
    cache = make(order)
    fill(cache, [1, 2, 3, 4])
    for _ in range(2):
        cache.pin_chunk(cid(1), 16 * KIB)
    fill(cache, range(10, 30))
    assert cid(1) in cache
    cache.unpin_chunk(cid(1), 16 * KIB)
    fill(cache, range(30, 50))
    assert cid(1) in cache
    cache.unpin_chunk(cid(1), 16 * KIB)
    fill(cache, range(50, 60))
    assert cid(1) not in cache


def test_chunk_pinned_before_it_is_stored_stays():
    cache = make()
    cache.pin_chunk(cid(1), 16 * KIB)
    fill(cache, [1])
    fill(cache, range(10, 30))
    assert cid(1) in cache
    assert (cache.usage.pinned_chunks, cache.usage.pinned_bytes) == (1, 16 * KIB)


def test_pinned_chunk_evicts_unpinned_chunks_of_any_class():
    cache = make()
    fill(cache, [1, 2, 3, 4], KeepClass.BOOT)
    for number in range(10, 14):
        cache.pin_chunk(cid(number), 16 * KIB)
        fill(cache, [number])
    assert held(cache) == [cid(number) for number in range(10, 14)]
    with pytest.raises(errors.CacheFull, match="everything is in use"):
        fill(cache, [20], KeepClass.BOOT)
    cache.pin_chunk(cid(20), 16 * KIB)
    with pytest.raises(errors.CacheFull, match="everything is in use"):
        fill(cache, [20])


def test_room_for_a_pinned_chunk_is_known_without_storing_it():
    cache = make()
    assert cache.can_store_pinned(16 * KIB) and not cache.can_store_pinned(128 * KIB)
    fill(cache, [1, 2, 3, 4])
    assert cache.can_store_pinned(16 * KIB) and cache.can_store_pinned(5000)
    assert held(cache) == [cid(number) for number in (1, 2, 3, 4)]
    for number in (1, 2, 3, 4):
        cache.pin_chunk(cid(number), 16 * KIB)
    assert not cache.can_store_pinned(16 * KIB) and not cache.can_store_pinned(5000)
    cache.unpin_chunk(cid(1), 16 * KIB)
    assert cache.can_store_pinned(16 * KIB) and cache.can_store_pinned(5000)


def test_pinned_chunks_do_not_count_as_borrowed():
    """Otherwise a borrowed chunk would be refused although it may evict a home chunk."""
    cache = make()
    fill(cache, [1])
    cache.pin_chunk(cid(1), 16 * KIB)
    fill(cache, [2, 3, 4], KeepClass.HOME)
    fill(cache, [5])
    assert cid(2) not in cache and cid(5) in cache


def test_slab_with_a_pinned_chunk_is_not_replaced_by_another_slot_size():
    cache = make(slabs=2)
    fill(cache, range(8))
    cache.pin_chunk(cid(0), 16 * KIB)
    cache.allocate_slot(cid(100), 30 * KIB, KeepClass.BOOT)
    assert cid(0) in cache and cid(7) not in cache
    cache.pin_chunk(cid(100), 30 * KIB)
    with pytest.raises(errors.CacheFull):
        cache.allocate_slot(cid(101), 60 * KIB, KeepClass.BOOT)


def test_pinned_chunk_uses_a_larger_slot_if_no_slab_can_be_added():
    cache = make(slabs=2)
    for number in range(2):  # two slots of 32 KiB a slab
        cache.allocate_slot(cid(number), 30 * KIB, KeepClass.BORROWED)
        cache.allocate_slot(cid(number + 10), 30 * KIB, KeepClass.BORROWED)
        cache.pin_chunk(cid(number), 30 * KIB)
    assert cache.slab_count == 2
    with pytest.raises(errors.CacheFull):
        cache.allocate_slot(cid(50), 5000, KeepClass.BOOT)
    cache.pin_chunk(cid(50), 5000)
    slot, actions = cache.allocate_slot(cid(50), 5000, KeepClass.BORROWED)
    assert (slot.length, slot.slab.layout.slot_bytes, actions) == (5000, 32 * KIB, [])
    assert cid(0) in cache and cid(1) in cache


def test_pin_survives_the_loss_of_its_chunk():
    cache = make()
    fill(cache, [1, 2, 3, 4])
    cache.pin_chunk(cid(1), 16 * KIB)
    cache.drop_chunk(cache.slot_of(cid(1)))
    assert (len(cache.pins), cache.usage.pinned_chunks) == (1, 0)
    fill(cache, [1])
    fill(cache, range(10, 30))
    assert cid(1) in cache
    slab = cache.slot_of(cid(1)).slab
    cache.forget_slab(slab)
    assert (len(cache.pins), cache.usage.pinned_chunks, cache.usage.pinned_bytes) == (1, 0, 0)
    fill(cache, [1])
    fill(cache, range(10, 30))
    assert cid(1) in cache


def test_held_chunk_pinned_and_unpinned_keeps_its_slot_until_released():
    cache = make()
    slot = fill_and_hold(cache)
    fill(cache, range(10, 20))  # parks it
    cache.pin_chunk(cid(1), 16 * KIB)
    cache.release(slot)
    fill(cache, range(20, 30))
    assert cid(1) in cache
    cache.hold_slot(slot)
    cache.unpin_chunk(cid(1), 16 * KIB)
    fill(cache, range(30, 40))
    assert cid(1) in cache
    cache.release(slot)
    fill(cache, range(40, 50))
    assert cid(1) not in cache


def test_pinned_chunk_is_not_demoted_but_can_be_promoted():
    cache = make()
    fill(cache, [1, 2, 3, 4])
    cache.pin_chunk(cid(1), 16 * KIB)
    cache.demote_chunk(cache.slot_of(cid(1)))
    assert cache.promote_chunk(cache.slot_of(cid(1)), KeepClass.HOME)
    fill(cache, range(10, 20))
    assert cid(1) in cache
    assert cache.slot_of(cid(1)).keep_class is KeepClass.HOME  # as in its record


def pinned_cache(numbers, slabs: int) -> public_cache.PublicCache:
    pins = cache_pins.Pins()
    for number in numbers:
        pins.add(cid(number), 16 * KIB)
    return public_cache.PublicCache(slabs * SLAB_BYTES, SLAB_BYTES, pins=pins)


def test_pinned_chunks_survive_a_restart_under_load():
    cache = pinned_cache([1, 2], slabs=1)
    records = [(i, cid(i + 1), seq, 16 * KIB, 0) for i, seq in enumerate((1, 2, 8, 9))]
    assert cache.restore_slabs([found(0, records)]) == []
    fill(cache, range(10, 30))
    assert cid(1) in cache and cid(2) in cache


def test_smaller_limit_removes_no_slab_with_a_pinned_chunk():
    cache = pinned_cache([2, 3], slabs=1)
    actions = cache.restore_slabs(
        [
            found(0, [(0, cid(1), 90, 16 * KIB, 2)]),
            found(1, [(0, cid(2), 10, 16 * KIB, 0), (1, cid(4), 11, 16 * KIB, 0)]),
            found(2, [(0, cid(3), 80, 16 * KIB, 0)]),
        ]
    )
    assert [action.slab.number for action in actions] == [0]
    assert held(cache) == [cid(2), cid(3), cid(4)]
    assert cache.disk_bytes > cache.limit_bytes
    fill(cache, range(10, 30))  # free slots are used, no slab is added
    assert cache.slab_count == 2 and cid(2) in cache and cid(3) in cache
    cache.unpin_chunk(cid(2), 16 * KIB)
    assert [action.slab.number for action in cache.shrink_to_limit()] == [1]
    assert cache.disk_bytes <= cache.limit_bytes and cid(3) in cache
    assert cache.shrink_to_limit() == []


def test_lacking_bytes_are_known_before_chunks_are_pinned():
    cache = make(slabs=10)  # a tenth is reserved for other chunks
    assert cache.lacking_bytes({16 * KIB: 40}) == 0
    assert cache.lacking_bytes({16 * KIB: 41}) > 0
    for number in range(30):
        cache.pin_chunk(cid(number), 16 * KIB)
    assert cache.lacking_bytes({16 * KIB: 10}) == 0
    assert cache.lacking_bytes({16 * KIB: 11}) > 0
    assert cache.lacking_bytes({256 * KIB: 1}) > 0  # larger than a slab


class CacheMachine(stateful.RuleBasedStateMachine):
    """Any sequence of calls against a model that knows only CIDs, lengths, classes and pins."""

    @stateful.initialize(order=st.sampled_from(sorted(cache_orders.ORDERS)))
    def begin(self, order):
        self.cache = public_cache.PublicCache(LIMIT_BYTES, SLAB_BYTES, cache_orders.ORDERS[order])
        self.model: dict[ids.Cid, tuple[int, int]] = {}
        self.holds: list = []
        self.files: dict[int, int] = {}
        self.pins: dict[ids.Cid, int] = {}

    def note_actions(self, actions):
        for action in actions:
            if isinstance(action, cache_actions.MakeSlab):
                assert action.slab.number not in self.files
                self.files[action.slab.number] = action.slab.layout.file_bytes
            else:
                del self.files[action.slab.number]
        assert sum(self.files.values()) <= LIMIT_BYTES

    @stateful.rule(
        number=st.integers(1, 40),
        length=st.sampled_from([100, 4096, 10_000, 16_384, 30_000, 65_536]),
        keep_class=st.sampled_from(KeepClass),
    )
    def place_one(self, number, length, keep_class):
        self.place(number, length, keep_class)

    def place(self, number, length, keep_class):
        if cid(number) in self.cache:
            return
        before = dict(self.model)
        slot_bytes = cache_slab.slot_bytes_for(length)
        same_size = {
            c: v
            for c, v in before.items()
            if self.cache.slot_of(c).slab.layout.slot_bytes == slot_bytes
        }
        safe = {slot.cid for slot in self.holds if not slot.is_gone} | self.pins.keys()
        is_pinned = cid(number) in self.pins
        can_store = self.cache.can_store_pinned(length)
        try:
            slot, actions = self.cache.allocate_slot(cid(number), length, keep_class)
        except errors.CacheFull:
            assert not (is_pinned and can_store)
            may_go = (v[1] for c, v in same_size.items() if c not in safe)
            assert all(not is_pinned and its > keep_class for its in may_go)
            assert set(self.cache.cids()) == set(before)
            return
        assert can_store or not is_pinned
        self.note_actions(actions)
        gone = set(before) - set(self.cache.cids())
        assert not gone & safe
        if gone and not actions and slot.slab.layout.slot_bytes == slot_bytes:
            assert len(gone) == 1
            lowest = min(v[1] for c, v in same_size.items() if c not in safe)
            assert before[gone.pop()][1] == lowest
        self.model = {c: v for c, v in before.items() if c in self.cache}
        self.model[cid(number)] = (length, keep_class)
        assert slot is self.cache.slot_of(cid(number))

    @stateful.rule(
        first=st.integers(1, 35),
        length=st.sampled_from([4096, 16_384, 30_000]),
        keep_class=st.sampled_from(KeepClass),
    )
    def place_several(self, first, length, keep_class):
        for number in range(first, first + 6):
            self.place(number, length, keep_class)

    @stateful.rule(number=st.integers(1, 40))
    def lookup(self, number):
        slot = self.cache.lookup(cid(number))
        assert (slot is None) == (cid(number) not in self.model)

    @stateful.rule(number=st.integers(1, 40), keep_class=st.sampled_from(KeepClass))
    def promote(self, number, keep_class):
        slot = self.cache.slot_of(cid(number))
        if slot is not None:
            length, before = self.model[slot.cid]
            assert self.cache.promote_chunk(slot, keep_class) == (keep_class > before)
            self.model[slot.cid] = (length, max(before, keep_class))

    @stateful.rule(number=st.integers(1, 40))
    def drop(self, number):
        slot = self.cache.slot_of(cid(number))
        if slot is not None:
            self.cache.drop_chunk(slot)
            del self.model[slot.cid]

    @stateful.rule(number=st.integers(1, 40))
    def hold(self, number):
        slot = self.cache.slot_of(cid(number))
        if slot is not None:
            self.cache.hold_slot(slot)
            self.holds.append(slot)

    @stateful.precondition(lambda self: self.holds)
    @stateful.rule(data=st.data())
    def release(self, data):
        place = data.draw(st.integers(0, len(self.holds) - 1))
        self.cache.release(self.holds.pop(place))

    @stateful.rule(number=st.integers(1, 40))
    def pin(self, number):
        """Pin a chunk, which need not be cached yet."""
        self.pins[cid(number)] = self.pins.get(cid(number), 0) + 1
        self.cache.pin_chunk(cid(number), 4096)

    @stateful.precondition(lambda self: self.pins)
    @stateful.rule(data=st.data())
    def unpin(self, data):
        one = data.draw(st.sampled_from(sorted(self.pins)))
        self.cache.unpin_chunk(one, 4096)
        self.pins[one] -= 1
        if not self.pins[one]:
            del self.pins[one]

    @stateful.rule()
    def trim(self):
        before = set(self.cache.cids())
        self.note_actions(self.cache.shrink_to_limit())
        assert before == set(self.cache.cids())  # it is never above its limit

    @stateful.rule()
    def lose_a_fresh_slab(self):
        try:
            slot, actions = self.cache.allocate_slot(cid(99), 8192, KeepClass.HOME)
        except errors.CacheFull:
            return
        self.note_actions(actions)
        if actions:
            self.cache.lose_slab(slot.slab)
            del self.files[slot.slab.number]
        else:
            self.cache.drop_chunk(slot)
        self.model = {c: v for c, v in self.model.items() if c in self.cache}

    @stateful.invariant()
    def content_is_the_models(self):
        slots = {c: self.cache.slot_of(c) for c in self.cache.cids()}
        assert {c: (s.length, s.keep_class) for c, s in slots.items()} == self.model
        chunks = [sum(v[1] == k for v in self.model.values()) for k in KeepClass]
        sizes = [sum(v[0] for v in self.model.values() if v[1] == k) for k in KeepClass]
        assert (self.cache.usage.class_chunks, self.cache.usage.class_bytes) == (chunks, sizes)

    @stateful.invariant()
    def pinned_chunks_are_counted(self):
        pinned = [c for c in self.cache.cids() if c in self.pins]
        assert self.cache.usage.pinned_chunks == len(pinned)
        assert self.cache.usage.pinned_bytes == sum(self.model[c][0] for c in pinned)
        assert len(self.cache.pins) == len(self.pins)

    @stateful.invariant()
    def no_two_chunks_share_a_place(self):
        used = [self.cache.slot_of(c) for c in self.cache.cids()]
        used += {s for s in self.holds if s.is_gone}
        places = [(id(s.slab), s.slot_no) for s in used]
        assert len(places) == len(set(places))

    @stateful.invariant()
    def bytes_are_bounded(self):
        assert self.cache.disk_bytes == sum(self.files.values()) <= LIMIT_BYTES
        assert self.cache.slab_count == len(self.files)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = hypothesis.settings(
    max_examples=60, stateful_step_count=60, deadline=None
)
