# SPDX-License-Identifier: Apache-2.0
"""Figures of the collective benchmarks are computed as documented."""

import pathlib
from collections.abc import Mapping

import pytest
from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import patterns
from evaluation.bench import pictures

MIB = geometry.MIB
MBIT = 8 * MIB / 1e6
"""A link of this rate carries a MiB in a second."""


def seen(*spans_s: tuple[float, float], length: int = MIB) -> list[collective.Seen]:
    return [collective.Seen(began, ended, length) for began, ended in spans_s]


def status(source: int = 0, home: int = 0, peer: int = 0, cache: int = 0) -> Mapping[str, object]:
    moved = {"zero": 0, "cache": cache, "peer": peer, "home": home, "source": source}
    return {"fetched": {origin: {"requests": 1, "bytes": n} for origin, n in moved.items()}}


def test_limit_of_one_region_is_its_transfer_time_on_one_link() -> None:
    assert patterns.sync_same(16, MBIT, 4 * MIB, 5 * MIB).limit_s == pytest.approx(4)


def test_limit_of_shifted_hosts_is_that_of_the_last() -> None:
    assert patterns.shifted_same(3, MBIT, 4 * MIB, 5 * MIB, 1.5).limit_s == pytest.approx(7)


def test_limit_of_disjoint_regions_is_the_time_of_the_source_for_all() -> None:
    pattern = patterns.sync_disjoint(4, MBIT, 2 * MIB)
    assert pattern.limit_s == pytest.approx(8)
    assert [reading.spans[0][0] for reading in pattern.readings] == [0, 2 * MIB, 4 * MIB, 6 * MIB]
    assert pattern.image_bytes == 8 * MIB


@pytest.mark.parametrize(
    "pattern",
    [
        patterns.sync_same(4, MBIT, 4 * MIB, 8 * MIB),
        patterns.shifted_same(4, MBIT, 4 * MIB, 8 * MIB, 2.0),
        patterns.sync_disjoint(4, MBIT, 4 * MIB),
    ],
    ids=lambda pattern: pattern.name,
)
def test_smaller_copy_of_a_pattern_has_the_same_proportions(pattern: patterns.Pattern) -> None:
    small = patterns.scaled(pattern, 4)
    assert small.limit_s == pytest.approx(pattern.limit_s / 4)
    assert small.image_bytes == pattern.image_bytes / 4
    last = pattern.readings[-1], small.readings[-1]
    assert last[1].spans[0][0] == last[0].spans[0][0] / 4


def test_completion_counts_from_the_common_start_throughput_from_own_ones() -> None:
    pattern = patterns.shifted_same(2, MBIT, MIB, MIB, 1.0)
    found = patterns.outcome(pattern, seen((0, 1), (1, 5)), source_bytes=2 * MIB)
    assert found["completion"] == pytest.approx(5 / 2)
    assert found["rate_over_link"]["each"] == pytest.approx([1, 1 / 4])
    assert found["rate_over_link"]["min"] == pytest.approx(1 / 4)
    assert found["slowest_over_fastest"] == pytest.approx(4)
    assert found["source_ratio"] == pytest.approx(2)


def test_fetched_unread_bytes_are_waste_and_cache_hits_are_not() -> None:
    assert collective.unread_bytes(status(source=5, home=6, peer=7, cache=100), 15) == 3
    assert collective.unread_bytes(status(source=5), 15) == 0


def test_bytes_that_a_home_reads_for_others_are_not_waste() -> None:
    home = {**status(home=2, peer=3), "exchange": {"source_bytes": 10}}
    idle = {**status(), "exchange": {"source_bytes": 0}}
    assert collective.received_bytes([home, idle]) == {"source": 5, "home": 1, "peer": 1.5}
    assert collective.unread_bytes(home, 5) == 0


def test_long_spans_are_read_in_pieces_that_cover_them_once() -> None:
    spans = [(100, 2 * collective.READ_BYTES + 5), (7, 1)]
    cut = list(collective.pieces(spans))
    assert sum(length for _, length in cut) == sum(length for _, length in spans)
    assert max(length for _, length in cut) == collective.READ_BYTES
    assert cut[0][0] == 100 and cut[-1] == (7, 1)


def test_wrong_bytes_are_located(tmp_path: pathlib.Path) -> None:
    data = bytes(range(256)) * 8192
    path = tmp_path / "image"
    path.write_bytes(data[: MIB + 5] + b"!" + data[MIB + 6 :])
    whole = collective.Reading(((0, len(data)),))
    assert collective.compare(path, data, whole, is_direct=False) == [MIB]
    path.write_bytes(data)
    assert collective.compare(path, data, whole, is_direct=False) == []


def test_truncated_file_counts_as_wrong(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"abc")
    reading = collective.Reading(((0, 6),))
    assert collective.compare(path, b"abcdef", reading, is_direct=False) == [0]


def outcome() -> patterns.Outcome:
    pattern = patterns.sync_same(2, MBIT, MIB, MIB)
    found = patterns.outcome(pattern, seen((0, 2), (0, 4)), source_bytes=MIB)
    found["transfers_bytes"] = {"source": MIB / 2, "home": MIB / 4, "peer": MIB / 2}
    return found


def test_picture_of_methods_shows_completion_spread_and_origins() -> None:
    picture = figure.Figure()
    pictures.compare(picture, "title", {"a": outcome(), "b": outcome()}, 1.15)
    left, middle, right = picture.axes
    assert [bar.get_height() for bar in left.patches] == pytest.approx([4, 4])
    assert [bar.get_height() for bar in middle.patches] == pytest.approx([3 / 8, 3 / 8])
    tops = [bar.get_y() + bar.get_height() for bar in right.patches]
    assert max(tops) == pytest.approx(5 / 4)


def test_picture_over_hosts_has_a_line_for_each_method_and_bound() -> None:
    picture = figure.Figure()
    sweep = {way: {"1": outcome(), "4": outcome()} for way in ("acstor", "direct")}
    pictures.over_hosts(picture, "title", sweep)
    left, middle, _ = picture.axes
    assert [len(panel.lines) for panel in (left, middle)] == [2, 4]
