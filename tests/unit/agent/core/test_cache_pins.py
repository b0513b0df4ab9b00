# SPDX-License-Identifier: Apache-2.0
import hypothesis
import pytest
from hypothesis import strategies as st

from acstor_agent.core.cache import cache_pins
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import public_cache
from acstor_common import errors
from acstor_common.model import ids

KIB = 1024
SLAB_BYTES = 256 * KIB
SIZES = (4 * KIB, 16 * KIB, 64 * KIB)


def cid(number: int) -> ids.Cid:
    return ids.Cid(number.to_bytes(32, "little"))


def test_chunk_shared_by_two_images_takes_one_slot():
    pins = cache_pins.Pins()
    for length in (10_000, 10_000):
        pins.add(cid(1), length)
    pins.add(cid(2), 5000)
    assert (dict(pins.slot_counts), len(pins), pins.slot_bytes) == ({16384: 1, 8192: 1}, 2, 24576)
    assert [pins.pin_count(cid(number)) for number in (1, 2, 3)] == [2, 1, 0]
    pins.remove(cid(1), 10_000)
    assert cid(1) in pins
    pins.remove(cid(1), 10_000)
    assert cid(1) not in pins and pins.slot_bytes == 8192


def test_unpinning_a_chunk_that_is_not_pinned_raises_an_error():
    with pytest.raises(KeyError):
        cache_pins.Pins().remove(cid(1), 10)


def test_slots_larger_than_a_slab_count_as_lacking():
    assert cache_pins.lacking_bytes({512 * KIB: 2}, 64 << 20, SLAB_BYTES) == 1024 * KIB


def pin_and_place(cache, lengths) -> None:
    """Pin chunks; if the cache reports room for all of them, it must accept them."""
    for number, length in enumerate(lengths):
        cache.pin_chunk(cid(number), length)
    if cache.lacking_bytes({}):
        return
    for number, length in enumerate(lengths):
        cache.allocate_slot(cid(number), length, public_cache.KeepClass.BORROWED)
    assert cache.usage.pinned_chunks == len(lengths)
    assert cache.disk_bytes <= cache.limit_bytes


@hypothesis.given(
    counts=st.lists(st.integers(0, 60), min_size=3, max_size=3), slabs=st.integers(1, 8)
)
@hypothesis.example(
    counts=[1, 1, 17], slabs=2
)  # a single chunk of the middle size takes a whole slab
def test_cache_that_reports_room_accepts_pins_of_all_sizes(counts, slabs):
    """Larger chunks are stored first, so a few small ones may use larger slots."""
    cache = public_cache.PublicCache(slabs * SLAB_BYTES, SLAB_BYTES)
    sizes = zip(reversed(SIZES), counts, strict=True)
    pin_and_place(cache, [size for size, count in sizes for _ in range(count)])


@hypothesis.given(
    count=st.integers(0, 60),
    slabs=st.integers(1, 8),
    noise=st.lists(st.sampled_from(SIZES), max_size=60),
)
def test_cache_that_reports_room_accepts_pins_despite_its_contents(count, slabs, noise):
    cache = public_cache.PublicCache(slabs * SLAB_BYTES, SLAB_BYTES)
    for number, size in enumerate(noise):
        cache.allocate_slot(cid(10_000 + number), size, public_cache.KeepClass.BOOT)
    pin_and_place(cache, [16 * KIB] * count)


def place_pinned(cache: public_cache.PublicCache) -> None:
    for number in range(20):
        cache.pin_chunk(cid(number), 64 * KIB)
        cache.allocate_slot(cid(number), 64 * KIB, public_cache.KeepClass.BORROWED)


def test_cache_enlarged_by_the_lacking_bytes_accepts_all_pins():
    limit_bytes = 2 * SLAB_BYTES
    small = public_cache.PublicCache(limit_bytes, SLAB_BYTES)
    lacking_bytes = small.lacking_bytes({64 * KIB: 20})
    with pytest.raises(errors.CacheFull):
        place_pinned(small)
    cache = public_cache.PublicCache(limit_bytes + lacking_bytes, SLAB_BYTES)
    place_pinned(cache)
    assert cache.usage.pinned_chunks == 20
    layout = cache_slab.SlabLayout.largest_within(SLAB_BYTES, 64 * KIB)
    assert cache.disk_bytes == 7 * layout.file_bytes
