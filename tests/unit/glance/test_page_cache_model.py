# SPDX-License-Identifier: Apache-2.0
"""The model of a host's page cache: properties for any guest."""

import pytest
from hypothesis import given
from hypothesis import strategies

from acstor_common.model import geometry
from acstor_glance.boot import page_cache_model

PAGE = page_cache_model.PAGE_BYTES
WINDOW_BYTES = page_cache_model.WINDOW_PAGES * PAGE
SIZE_BYTES = 300 * PAGE + 512

offsets = strategies.integers(min_value=0, max_value=SIZE_BYTES + 5 * PAGE)
lengths = strategies.integers(min_value=1, max_value=80 * PAGE)
reads = strategies.lists(strategies.tuples(offsets, lengths), max_size=40)


def pages_of(extent: page_cache_model.Extent) -> range:
    offset, length = extent
    assert offset % PAGE == length % PAGE == 0
    return range(offset // PAGE, (offset + length) // PAGE)


@given(reads)
def test_each_page_is_read_once_and_requested_ones_always(
    wanted: list[page_cache_model.Extent],
) -> None:
    cache, here = page_cache_model.PageCacheModel(SIZE_BYTES), set[int]()
    end = -(-SIZE_BYTES // PAGE)
    for offset, length in wanted:
        new = [page for extent in cache.read(offset, length) for page in pages_of(extent)]
        assert len(new) == len(set(new))
        assert not here & set(new)
        here |= set(new)
        assert all(0 <= page < end for page in new)
        stop = min(end, -(-(offset + length) // PAGE))
        assert here >= set(range(offset // PAGE, stop))
        read_pages = max(0, stop - offset // PAGE)
        assert len(new) <= 2 * read_pages + 2 * page_cache_model.WINDOW_PAGES


def test_random_reads_start_no_read_ahead() -> None:
    cache = page_cache_model.PageCacheModel(64 * geometry.MIB)
    for number in range(1, 60):
        offset = (number * 7919) % 16_000 * PAGE
        assert cache.read(offset, 2 * PAGE) == [(offset, 2 * PAGE)]


@pytest.mark.parametrize("length", [PAGE, 4 * PAGE, 16 * PAGE, WINDOW_BYTES])
def test_sequential_reads_are_at_most_one_window_ahead(length: int) -> None:
    cache = page_cache_model.PageCacheModel(64 * geometry.MIB)
    came = 0
    for offset in range(0, 4 * geometry.MIB, length):
        came += sum(size for _, size in cache.read(offset, length))
        assert offset + length <= came <= offset + length + 2 * WINDOW_BYTES
    assert came > 4 * geometry.MIB  # it reads ahead


def test_two_sequential_streams_are_distinguished() -> None:
    cache = page_cache_model.PageCacheModel(64 * geometry.MIB)
    came = 0
    for step in range(256):
        for start in (0, 32 * geometry.MIB):
            came += sum(size for _, size in cache.read(start + step * PAGE, PAGE))
    assert 2 * 256 * PAGE < came <= 2 * (256 * PAGE + 2 * WINDOW_BYTES)
