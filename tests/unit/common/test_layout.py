# SPDX-License-Identifier: Apache-2.0
"""A layout finds the stored extents of every range that a guest reads."""

import functools
import itertools
import random

import hypothesis
import pytest
from hypothesis import strategies

from acstor_common.formats import layout
from acstor_common.model import geometry

CUT = geometry.Geometry(64 * geometry.MIB + 5000, 16384)
CLUSTER_BYTES = 65536
E = layout.Extent
DEFLATE, STORED = layout.Codec.DEFLATE, layout.Codec.STORED


def some_extents(seed: int, count: int = 900) -> list[layout.Extent]:
    """Return extents like those of a qcow2 image: clusters, some compressed, with gaps."""
    rng = random.Random(seed)
    found, place = [], 1 << 20
    for number in sorted(rng.sample(range(CUT.size_bytes // CLUSTER_BYTES + 1), count)):
        at = number * CLUSTER_BYTES
        length = min(CLUSTER_BYTES, CUT.size_bytes - at)
        if rng.random() < 0.5:
            stored_bytes = rng.randrange(1, CLUSTER_BYTES)
            found.append(E(at, length, DEFLATE, place, stored_bytes))
        else:
            place = -(-place // CLUSTER_BYTES) * CLUSTER_BYTES
            stored_bytes = length
            found.append(E(at, length, STORED, place, length))
        place += stored_bytes
    return found


def built(extents: list[layout.Extent]) -> tuple[layout.Layout, bytes, bytes]:
    """Return the layout of extents, its entries and its index."""
    index = layout.IndexBuilder(CUT)
    entries = b"".join(layout.pack(extent) for extent in layout.merge_within_pages(extents, CUT))
    index.add_entries(entries)
    stored = layout.StoredFile(layout.DiskFormat.QCOW2, 1 << 30, len(entries) // layout.ENTRY_BYTES)
    buffer = b"ahead" + entries + index.index_slots()
    return layout.Layout(buffer, 5, CUT, stored), entries, index.index_slots()


@pytest.mark.parametrize("seed", range(5))
def test_layout_finds_the_same_bytes_as_the_extents(seed: int) -> None:
    extents = some_extents(seed)
    found, entries, slots = built(extents)
    assert layout.why_invalid(entries, slots, CUT, found.stored) is None
    assert found.stored.entries < len(extents)  # some were joined
    rng = random.Random(seed)
    for _ in range(300):
        start = rng.randrange(CUT.size_bytes)
        stop = min(start + rng.choice([1, 512, 16384, 1 << 20]), CUT.size_bytes)
        got = found.find(start, stop)
        assert all(e.at < stop and start < e.at + e.length for e in got)
        for place in (start, rng.randrange(start, stop), stop - 1):
            assert _place(got, place) == _place(extents, place)


def _place(extents: list[layout.Extent], at: int) -> layout.Extent | int | None:
    """Return the location of one byte."""
    for extent in extents:
        if extent.at <= at < extent.at + extent.length:
            return extent.offset + at - extent.at if extent.codec is STORED else extent
    return None


def test_adjacent_runs_are_merged_up_to_page_boundaries() -> None:
    page = layout.page_bytes(CUT)
    run = [E(n, 65536, STORED, (1 << 20) + n, 65536) for n in range(0, 2 * page, 65536)]
    apart = E(2 * page, 65536, STORED, 0, 65536)  # elsewhere in the stored file
    joined = list(layout.merge_within_pages([*run, apart], CUT))
    assert [e.length for e in joined] == [page, page, 65536]
    assert [e.offset for e in joined] == [1 << 20, (1 << 20) + page, 0]
    compressed = [E(0, 65536, DEFLATE, 0, 100), E(65536, 65536, DEFLATE, 100, 100)]
    assert list(layout.merge_within_pages(compressed, CUT)) == compressed


def test_find_returns_nothing_in_holes_and_past_the_end() -> None:
    found, _, _ = built([E(1 << 20, 65536, STORED, 0, 65536)])
    assert found.find(0, 1 << 20) == [] and found.find(CUT.size_bytes, CUT.size_bytes + 9) == []
    assert found.find(0, 1 << 62) == found.find((1 << 20) + 65535, (1 << 20) + 65536)
    empty, entries, slots = built([])
    assert empty.find(0, CUT.size_bytes) == []
    assert layout.why_invalid(entries, slots, CUT, empty.stored) is None


def test_raw_image_has_one_stored_extent() -> None:
    found = layout.Layout(b"", 0, CUT, layout.raw_file(CUT.size_bytes))
    assert found.find(1000, 3000) == [E(1000, 2000, STORED, 1000, 2000)]
    assert layout.table_bytes(CUT, found.stored) == 0


def test_pages_are_validated_separately() -> None:
    """A host without the map reads the extents of single pages."""
    found, entries, slots = built(some_extents(7))
    counts = [int.from_bytes(slots[n : n + 8], "little") for n in range(0, len(slots), 8)]
    for page, (low, high) in enumerate(itertools.pairwise(counts)):
        some = entries[low * layout.ENTRY_BYTES : high * layout.ENTRY_BYTES]
        two = slots[page * 8 : page * 8 + 16]
        assert layout.why_invalid(some, two, CUT, found.stored, page) is None
        assert layout.why_invalid(some, two, CUT, found.stored, page + 1) is not None
        table = layout.LayoutTable(some, 0, high - low)
        start, stop = page * layout.page_bytes(CUT), (page + 1) * layout.page_bytes(CUT)
        assert table.extents_between(start, stop, 0, high - low) == found.find(start, stop)


def test_check_pauses_at_least_every_two_thousand_entries_of_a_page() -> None:
    small = [E(at, 512, DEFLATE, 0, 100) for at in range(0, layout.page_bytes(CUT), 512)]
    found, entries, slots = built(small)
    pauses: list[None] = []
    pause = functools.partial(pauses.append, None)
    assert layout.why_invalid(entries, slots, CUT, found.stored, pause=pause) is None
    assert len(small) / 2000 <= len(pauses) <= len(small) / 500
    bad = entries[: -layout.ENTRY_BYTES] + layout.pack(E(0, 1, DEFLATE, 0, 1))
    fault = layout.why_invalid(bad, slots, CUT, found.stored)
    assert fault is not None and fault[0] == len(bad) - layout.ENTRY_BYTES


@pytest.mark.parametrize(
    "extent",
    [
        E(0, 1, STORED, 1 << 56, 1),
        E(0, 1, STORED, -1, 1),
        E(-1, 1, STORED, 0, 1),
        E(0, 1 << 32, DEFLATE, 0, 1),
        E(1 << 64, 1, STORED, 0, 1),
    ],
)
def test_extent_that_does_not_fit_an_entry_is_not_packed(extent: layout.Extent) -> None:
    with pytest.raises(ValueError, match="an entry cannot have"):
        layout.pack(extent)


@hypothesis.given(strategies.binary(max_size=50 * layout.ENTRY_BYTES), strategies.integers(0, 60))
def test_random_table_is_refused_or_readable(rubbish: bytes, slot: int) -> None:
    whole = rubbish[: len(rubbish) // layout.ENTRY_BYTES * layout.ENTRY_BYTES]
    count = len(whole) // layout.ENTRY_BYTES
    cut = geometry.Geometry(2 * layout.PAGE_CHUNKS * 16384, 16384)
    stored = layout.StoredFile(layout.DiskFormat.QCOW2, 1 << 30, count)
    slots = b"".join(n.to_bytes(8, "little") for n in (0, slot, count))
    if layout.why_invalid(whole, slots, cut, stored) is None:
        found = layout.Layout(whole + slots, 0, cut, stored)
        assert len(found.find(0, cut.size_bytes)) == count
