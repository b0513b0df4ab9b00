# SPDX-License-Identifier: Apache-2.0
import random

from acstor_agent.core.sources import stored_reads
from acstor_common.formats import layout

STORED = layout.Extent(4096, 8192, layout.Codec.STORED, 700, 8192)
PACKED = layout.Extent(0, 4096, layout.Codec.DEFLATE, 100, 50)


def test_piece_needs_the_fragments_of_extents_that_overlap_it():
    packed, stored = stored_reads.fragments(2048, 4096, [PACKED, STORED])
    assert (packed.to, packed.skip, packed.length) == (0, 2048, 2048)
    assert (stored.to, stored.skip, stored.length) == (2048, 0, 2048)
    assert stored_reads.fragments(12288, 4096, [PACKED, STORED]) == []


def test_compressed_extent_is_read_whole_and_a_stored_one_in_part():
    packed, stored = stored_reads.fragments(2048, 4096, [PACKED, STORED])
    assert packed.span == (100, 150)
    assert stored.span == (700, 2748)
    assert packed.is_part and stored.is_part
    assert not stored_reads.fragments(0, 4096, [PACKED])[0].is_part


def test_only_a_piece_of_one_fragment_without_gaps_is_whole():
    assert stored_reads.is_one_fragment(4096, stored_reads.fragments(0, 4096, [PACKED]))
    assert not stored_reads.is_one_fragment(
        4096, stored_reads.fragments(2048, 4096, [PACKED, STORED])
    )
    assert not stored_reads.is_one_fragment(9000, stored_reads.fragments(4096, 9000, [STORED]))
    assert not stored_reads.is_one_fragment(100, [])


def test_tiles_give_the_bytes_of_each_run_whatever_the_runs_overlap():
    rng = random.Random(1)
    data = rng.randbytes(1000)
    for _ in range(300):
        starts = [rng.randrange(900) for _ in range(rng.randint(1, 6))]
        runs = [(start, start + rng.randint(1, 100)) for start in starts]
        tiles = stored_reads.Tiles(runs)
        ends = [stop for _, stop in tiles.ranges[:-1]]
        assert all(a <= b for a, (b, _) in zip(ends, tiles.ranges[1:], strict=True))
        for number, (start, stop) in enumerate(tiles.ranges):
            tiles.put(number, data[start:stop])
        for start, stop in runs:
            assert tiles.bytes_of((start, stop)) == data[start:stop]


def test_dropped_tile_holds_no_bytes():
    tiles = stored_reads.Tiles([(0, 10)])
    tiles.put(0, b"0123456789")
    tiles.drop(0)
    tiles.drop(0)
    assert not tiles._data
