# SPDX-License-Identifier: Apache-2.0
"""A merge reads as the base with the delta applied, for any base and delta."""

import itertools

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2_writer
from acstor_common.formats import layout
from acstor_glance.gateway.flatten import merge_plan
from acstor_glance.gateway.flatten.merge_plan import PieceOrigin

SECTOR, CLUSTER, DISK = 512, 4096, 16 * 4096
STORED, DEFLATE = layout.Codec.STORED, layout.Codec.DEFLATE
DATA, ZERO = disk_delta.ExtentKind.DATA, disk_delta.ExtentKind.ZERO

sectors = st.integers(0, DISK // SECTOR)


@st.composite
def tables(draw):
    """Return changes of a disk."""
    ends = sorted(draw(st.sets(sectors, max_size=12)))
    runs = [
        disk_delta.Extent(
            start * SECTOR, (stop - start) * SECTOR, draw(st.sampled_from([DATA, ZERO]))
        )
        for start, stop in itertools.pairwise(ends)
        if draw(st.booleans())
    ]
    return disk_delta.ExtentTable.from_runs(runs, DISK)


@st.composite
def extents(draw):
    """Return the clusters of a base of some length: compressed ones, stored ones, none."""
    clusters, offset, found = draw(st.integers(0, 20)), CLUSTER, []
    for at in range(0, clusters * CLUSTER, CLUSTER):
        kind = draw(st.sampled_from(["none", "next", "far", "packed", "packed"]))
        if kind == "far":
            offset += draw(st.integers(1, 200)) * CLUSTER
        if kind in ("next", "far"):
            found.append(layout.Extent(at, CLUSTER, STORED, offset, CLUSTER))
            offset += CLUSTER
        if kind == "packed":
            stored_bytes = draw(st.integers(1, CLUSTER + 600))
            found.append(layout.Extent(at, CLUSTER, DEFLATE, offset, stored_bytes))
            offset += stored_bytes
            offset += -offset % CLUSTER
    return found


def painted(disk):
    """Return the origin of each sector of a disk by the pieces: offsets in the base, or names."""
    shown = []
    for piece in disk:
        assert piece.at == len(shown) * SECTOR
        for at in range(piece.at, piece.stop, SECTOR):
            shown.append(owner(piece, at))
    return shown


def owner(piece, at):
    if piece.extent is None:
        return piece.origin.name
    assert piece.origin in (PieceOrigin.BASE, PieceOrigin.COMPRESSED)
    skip = at - piece.extent.at
    if piece.extent.codec is STORED:
        return piece.extent.offset + skip
    return (piece.extent.offset, skip)


def expected(table, base):
    """Compute the same sector by sector."""
    shown = ["ZERO"] * (DISK // SECTOR)
    for extent in base:
        for at in range(extent.at, min(extent.at + extent.length, DISK), SECTOR):
            skip, offset = at - extent.at, extent.offset
            shown[at // SECTOR] = offset + skip if extent.codec is STORED else (offset, skip)
    for change in table:
        name = "DELTA" if change.kind is DATA else "ZERO"
        for at in range(change.at, change.stop, SECTOR):
            shown[at // SECTOR] = name
    return shown


@given(tables(), extents())
def test_every_sector_comes_from_delta_base_or_zeros(table, base):
    pieces = list(merge_plan.pieces(table, base, DISK))
    assert painted(pieces) == expected(table, base)
    assert all(piece.length > 0 for piece in pieces)


@given(tables(), extents(), st.sampled_from([CLUSTER, 2 * CLUSTER]))
def test_runs_cover_all_pieces_and_fit_a_file(table, base, cluster_bytes):
    stretches = list(merge_plan.cluster_runs(merge_plan.pieces(table, base, DISK), cluster_bytes))
    shown = ["ZERO"] * (DISK // SECTOR)
    for run, pieces in stretches:
        assert sum(piece.length for piece in pieces) == run.length
        for piece in pieces:
            for at in range(piece.at, piece.stop, SECTOR):
                shown[at // SECTOR] = owner(piece, at)
        if run.packed_bytes:
            (piece,) = pieces
            assert (piece.origin, piece.length) == (PieceOrigin.COMPRESSED, cluster_bytes)
            assert run.packed_bytes == piece.extent.stored_bytes <= cluster_bytes
        else:
            assert all(piece.origin is not PieceOrigin.COMPRESSED for piece in pieces)
    assert shown == expected(table, base)
    runs = [stretch.run for stretch in stretches]
    plan = qcow2_writer.Plan(DISK, cluster_bytes, DEFLATE, lambda: runs)
    data = plan.iter_parts(lambda run: [bytes(run.packed_bytes or run.length)])
    assert sum(map(len, data)) == plan.file_bytes


def test_only_whole_unchanged_clusters_are_copied_compressed():
    base = [layout.Extent(at, CLUSTER, DEFLATE, 9000 + at, 700) for at in (0, CLUSTER)]
    table = disk_delta.ExtentTable.from_runs(
        [disk_delta.Extent(CLUSTER + SECTOR, SECTOR, DATA)], DISK
    )
    first, second = merge_plan.cluster_runs(merge_plan.pieces(table, base, DISK), CLUSTER)
    assert first == (
        qcow2_writer.DiskRun(0, CLUSTER, 700),
        [merge_plan.DiskPiece(0, CLUSTER, PieceOrigin.COMPRESSED, base[0])],
    )
    assert second.run == qcow2_writer.DiskRun(CLUSTER, CLUSTER)
    origins = [piece.origin for piece in second.pieces]
    assert origins == [PieceOrigin.BASE, PieceOrigin.DELTA, PieceOrigin.BASE]


def test_zero_cluster_is_omitted_and_the_last_one_is_padded():
    table = disk_delta.ExtentTable.from_runs([disk_delta.Extent(0, CLUSTER, ZERO)], DISK)
    base = [layout.Extent(0, 3 * CLUSTER, STORED, 0, 3 * CLUSTER)]
    whole, last = merge_plan.cluster_runs(
        merge_plan.pieces(table, base, 2 * CLUSTER + SECTOR), CLUSTER
    )
    assert whole.run == qcow2_writer.DiskRun(CLUSTER, CLUSTER)
    assert last.run == qcow2_writer.DiskRun(2 * CLUSTER, CLUSTER)
    assert [piece.origin for piece in last.pieces] == [PieceOrigin.BASE, PieceOrigin.ZERO]
    parts = list(merge_plan.cluster_runs(merge_plan.pieces([], [], DISK), CLUSTER))
    assert parts == []


@settings(max_examples=50)
@given(tables(), extents(), st.integers(2 * CLUSTER // SECTOR, 8 * CLUSTER // SECTOR))
def test_batches_keep_all_pieces_and_read_one_bounded_range_each(table, base, most_sectors):
    most_bytes = most_sectors * SECTOR
    batches = list(merge_plan.batches(merge_plan.pieces(table, base, DISK), most_bytes))
    assert painted(piece for batch in batches for piece in batch.pieces) == expected(table, base)
    for offset, length, pieces in batches:
        ranges = [merge_plan.stored_range(piece) for piece in pieces if piece.extent]
        assert length <= most_bytes
        assert bool(length) is bool(ranges)
        for start, stop in ranges:
            assert offset <= start < stop <= offset + length


def test_nearby_extents_share_a_read_and_distant_ones_do_not():
    near = [layout.Extent(at, CLUSTER, STORED, 5 * CLUSTER - at, CLUSTER) for at in (0, CLUSTER)]
    far = [
        layout.Extent(2 * CLUSTER, CLUSTER, STORED, 5 * CLUSTER + 2 * merge_plan.GAP_BYTES, CLUSTER)
    ]
    pieces = merge_plan.pieces([], near + far, DISK)
    reads = [(batch.offset, batch.length) for batch in merge_plan.batches(pieces, 1 << 20)]
    assert reads == [(4 * CLUSTER, 2 * CLUSTER), (far[0].offset, CLUSTER)]


def test_batch_is_limited_in_pieces():
    table = [disk_delta.Extent(at, SECTOR, DATA) for at in range(0, DISK * 64, 2 * SECTOR)]
    batches = list(merge_plan.batches(merge_plan.pieces(table, [], DISK * 64), CLUSTER))
    assert max(len(batch.pieces) for batch in batches) == merge_plan.MAX_PIECES


def test_piece_outside_the_base_has_no_stored_range():
    with pytest.raises(ValueError, match="not part of the base"):
        merge_plan.stored_range(merge_plan.DiskPiece(0, CLUSTER, PieceOrigin.ZERO))
