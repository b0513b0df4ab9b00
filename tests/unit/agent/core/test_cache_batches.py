# SPDX-License-Identifier: Apache-2.0
"""Calls of the public cache for several chunks or slabs at once."""

import pytest

from acstor_agent.core.cache import cache_slot
from acstor_agent.core.cache import public_cache
from acstor_common.model import ids
from acstor_policies import cache_orders
from tests.unit.agent.core import test_public_cache as single
from tests.unit.agent.core.test_public_cache import cid

KeepClass = public_cache.KeepClass
LENGTH = 16 * single.KIB


def adjacent(cache: public_cache.PublicCache, *numbers: int) -> list[cache_slot.Slot]:
    cids = [cid(number) for number in numbers]
    return cache.allocate_adjacent(cids, LENGTH, KeepClass.HOME)


@pytest.mark.parametrize("order", cache_orders.ORDERS)
def test_lookup_of_several_chunks_counts_as_one_use_of_each_in_turn(order):
    """The order of evictions is the same as after single look-ups."""
    evicted = []
    for is_batch in (True, False):
        cache, gone = single.make(order, slabs=2), []
        cache.gone = gone.append
        single.fill(cache, [1, 2], KeepClass.HOME)
        single.fill(cache, [3, 4, 5])
        wanted = [cid(number) for number in (4, 1, 99, 3, 1)]
        found = cache.lookup_all(wanted) if is_batch else [*map(cache.lookup, wanted)]
        assert found == [*map(cache.slot_of, wanted)] and found[2] is None
        single.fill(cache, range(10, 21), KeepClass.BOOT)
        evicted.append((gone, [slot.used_at for slot in found if slot]))
    assert evicted[0] == evicted[1]
    assert len(evicted[0][0]) == 8
    assert single.make().lookup_all([cid(1)]) == [None]


def test_look_up_of_a_held_victim_leaves_it_outside_the_order():
    cache = single.make()
    slot = single.fill_and_hold(cache)
    single.fill(cache, [5])  # parks it
    cache.lookup_all([cid(1), cid(3)])
    single.fill(cache, [6, 7])
    assert single.held(cache) == [cid(1), cid(3), cid(6), cid(7)]
    cache.release_all([slot])
    single.fill(cache, [8, 9, 10, 11])
    assert cid(1) not in cache


def test_adjacent_chunks_are_stored_counted_and_used_in_their_order():
    cache = single.make()
    assert adjacent(cache, 1, 2) == []  # no slab yet: the first chunk creates it
    single.fill(cache, [1])
    slots = adjacent(cache, 2, 3)
    assert [slot.slot_no for slot in slots] == [1, 2]
    assert slots == [cache.slot_of(cid(2)), cache.slot_of(cid(3))]
    assert [(slot.sequence, slot.used_at, slot.length) for slot in slots] == [
        (2, 2, LENGTH),
        (3, 3, LENGTH),
    ]
    assert (slots[0].slab.used_at, slots[0].slab.slots[1:3]) == (3, slots)
    assert cache.usage.class_chunks == [1, 2, 0, 0]
    assert cache.usage.class_bytes == [LENGTH, 2 * LENGTH, 0, 0]
    single.fill(cache, [4])
    assert cache.slot_of(cid(4)).sequence == 4
    single.fill(cache, [5, 6, 7], KeepClass.HOME)
    assert single.held(cache) == [cid(3), cid(5), cid(6), cid(7)]


def test_adjacent_slots_are_those_that_one_slab_has_left():
    cache = single.make(slabs=2)
    single.fill(cache, [1])
    slots = adjacent(cache, 2, 3, 4, 5, 6)
    assert [(slot.cid, slot.slot_no) for slot in slots] == [(cid(2), 1), (cid(3), 2), (cid(4), 3)]
    assert adjacent(cache, 5, 6) == [] and len(cache) == 4


@pytest.mark.parametrize("numbers", [(2, 1), (3, 3), (2, 50), (0, 2)])
def test_cached_repeated_pinned_and_zero_chunks_get_no_adjacent_slots(numbers):
    cache = single.make()
    single.fill(cache, [1])
    cache.pin_chunk(cid(50), LENGTH)
    known = {0: ids.ZERO_CID}
    cids = [known.get(number, cid(number)) for number in numbers]
    assert cache.allocate_adjacent(cids, LENGTH, KeepClass.BOOT) == []
    assert len(cache) == 1 and len(adjacent(cache, 2, 3)) == 2


def test_released_slots_can_be_evicted_unless_they_are_held_again():
    cache = single.make()
    single.fill(cache, [1, 2, 3, 4])
    slots = [cache.slot_of(cid(number)) for number in (1, 2, 3)]
    cache.hold_all(slots)
    cache.hold_slot(slots[2])
    assert slots[0].slab.held == 3
    cache.drop_chunk(slots[1])
    cache.release_all(slots)
    assert [slot.holds for slot in slots] == [0, 0, 1]
    assert slots[0].slab.held == 1
    single.fill(cache, [5])
    assert cache.slot_of(cid(5)).slot_no == slots[1].slot_no  # free since its release
    single.fill(cache, [6, 7, 8])
    assert single.held(cache) == [cid(3), cid(6), cid(7), cid(8)]


def test_chunk_that_has_a_slot_gets_no_second_one():
    cache = single.make()
    single.fill(cache, [1])
    with pytest.raises(ValueError, match="has a slot already"):
        single.fill(cache, [1])


def test_cache_grows_again_once_slabs_can_be_created():
    cache = single.make(slabs=3)
    single.fill(cache, range(5))
    cache.lose_slab(cache.slab_by_number(1))
    single.fill(cache, range(10, 20))
    assert cache.slab_by_number(1) is None and cache.slab_count == 1
    cache.grow_again()
    single.fill(cache, range(20, 40))
    assert cache.slab_count == 3 and len(cache) == 12


def test_replaced_contents_are_those_of_the_other_cache():
    cache, other, gone = single.make(), single.make(slabs=2), []
    cache.gone = gone.append
    single.fill(other, [1, 2])
    cache.replace_contents(other)
    assert set(cache.contents) == {cid(1), cid(2)} and cache.limit_bytes == other.limit_bytes
    assert cache.pinned_lost == 1  # its former contents may have been pinned
    cache.drop_chunk(cache.slot_of(cid(1)))
    assert gone == [cid(1)]
