# SPDX-License-Identifier: Apache-2.0
from acstor_agent.core.cache import cache_pins
from acstor_agent.core.images import capacity
from acstor_common.model import geometry
from acstor_common.model import ids

SLOT = 64 * geometry.KIB
A, B, C, D = (ids.Cid(bytes([number]) * 32) for number in range(1, 5))
OLD, OTHER, NEW = (
    ids.parse_image_id(f"7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a1{number}") for number in range(3)
)


def pinned(*images: capacity.Contents) -> cache_pins.Pins:
    pins = cache_pins.Pins()
    for contents in images:
        for cid, length in contents.items():
            pins.add(cid, length)
    return pins


def within(limit: int):
    """Return how many bytes slots need beyond a limit."""
    return lambda slots: max(0, sum(size * n for size, n in slots.items()) - limit * SLOT)


def test_slots_are_counted_by_size_for_contents_that_are_not_pinned():
    contents = {A: SLOT, B: SLOT - 1, C: SLOT + 1, D: SLOT}
    assert capacity.slots_of(contents, pinned({D: SLOT})) == {SLOT: 2, 2 * SLOT: 1}


def test_images_are_evicted_in_order_until_there_is_space():
    old, other, new = {A: SLOT}, {B: SLOT}, {C: SLOT}
    kept, pins = [(OLD, [old]), (OTHER, [other])], pinned(old, other)
    assert capacity.images_to_evict(new, kept, pins, within(3)) == []
    assert capacity.images_to_evict(new, kept, pins, within(2)) == [OLD]
    assert capacity.images_to_evict(new, kept, pins, within(1)) == [OLD, OTHER]


def test_nothing_is_evicted_if_all_images_do_not_make_space():
    old = {A: SLOT}
    new = {C: SLOT, D: SLOT}
    assert capacity.images_to_evict(new, [(OLD, [old])], pinned(old), within(1)) == []


def test_shared_contents_are_freed_with_the_last_image_that_has_them():
    old, other, new = {A: SLOT}, {A: SLOT}, {C: SLOT}
    kept, pins = [(OLD, [old]), (OTHER, [other])], pinned(old, other)
    assert capacity.images_to_evict(new, kept, pins, within(1)) == [OLD, OTHER]


def test_image_whose_eviction_frees_nothing_stays():
    old, other, new = {C: SLOT}, {B: SLOT}, {C: SLOT, D: SLOT}
    kept, pins = [(OLD, [old]), (OTHER, [other])], pinned(old, other)
    assert capacity.images_to_evict(new, kept, pins, within(2)) == [OTHER]
