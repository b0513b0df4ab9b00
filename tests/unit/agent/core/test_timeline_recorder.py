# SPDX-License-Identifier: Apache-2.0
"""Boot timelines: waiting times by source and by slice, in bounded memory."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies

from acstor_agent.core.boot import timeline_recorder
from acstor_agent.images.boot import boot_timelines
from acstor_common.model import boot_timeline

OPENED_S = 1000.0
Recorder = timeline_recorder.TimelineRecorder
Via = boot_timeline.Via


def read(recorder, from_s, to_s, *got, offset=0):
    """Record a read from one time to another, both after the opening."""
    one = recorder.begin_read(offset, sum(length for _, length in got), OPENED_S + from_s)
    for via, length in got:
        one.add(via, length)
    recorder.end_read(one, OPENED_S + to_s)


def in_all(recorder, now_s):
    return sum(recorder.waited_s(OPENED_S + now_s).values())


def test_read_is_attributed_to_its_slowest_source():
    recorder = Recorder(OPENED_S)
    read(recorder, 1, 2, (Via.SOURCE, 10), (Via.CACHE, 30))
    read(recorder, 3, 3.5, (Via.ZERO, 10), (Via.BOOT, 1))
    assert recorder.waited_s(OPENED_S + 9) == {"source": 1.0, "boot": 0.5}
    assert recorder.bytes == {"source": 10, "cache": 30, "zero": 10, "boot": 1}
    assert recorder.last_s == OPENED_S + 3.5


def test_failed_read_counts_as_failed_only():
    recorder = Recorder(OPENED_S)
    one = recorder.begin_read(0, 10, OPENED_S)
    one.add(Via.BOOT, 5)
    one.is_failed = True
    recorder.end_read(one, OPENED_S + 2)
    assert recorder.waited_s(OPENED_S + 2) == {"failed": 2.0}


def test_read_in_flight_is_reported_as_pending():
    recorder = Recorder(OPENED_S)
    recorder.begin_read(0, 10, OPENED_S + 1)
    assert recorder.waited_s(OPENED_S + 4) == {"pending": 3.0}
    assert not recorder.is_over(OPENED_S + 100, idle_s=20, longest_s=600)
    assert recorder.is_over(OPENED_S + 600, idle_s=20, longest_s=600)


def test_boot_is_over_after_the_idle_time():
    recorder = Recorder(OPENED_S)
    read(recorder, 1, 5, (Via.BOOT, 1))
    assert not recorder.is_over(OPENED_S + 24.9, idle_s=20, longest_s=600)
    assert recorder.is_over(OPENED_S + 25, idle_s=20, longest_s=600)


def test_boot_is_not_over_after_a_minute_without_reads():
    recorder = Recorder(OPENED_S)
    read(recorder, 1, 11, (Via.BOOT, 1))
    limits = boot_timelines.IDLE_S, boot_timelines.LONGEST_S
    assert not recorder.is_over(OPENED_S + 71, *limits)
    read(recorder, 71, 72, (Via.SOURCE, 9))
    assert recorder.bytes == {"boot": 1, "source": 9}
    assert recorder.is_over(OPENED_S + boot_timelines.LONGEST_S, *limits)


def test_time_after_the_last_read_adds_no_slices():
    recorder = Recorder(OPENED_S)
    read(recorder, 1, 12, (Via.BOOT, 1))
    before = recorder.slice_s, recorder.time_slices()
    assert in_all(recorder, 500) == 11
    assert (recorder.slice_s, recorder.time_slices()) == before


def test_longest_reads_are_kept_in_time_order():
    recorder = Recorder(OPENED_S)
    at_s = 0.0
    for number in range(100):
        took_s = 1 + (number * 37) % 100  # each duration once
        read(recorder, at_s, at_s + took_s, (Via.SOURCE, 4096), offset=number)
        at_s += took_s + 1
    found = recorder.longest_reads(OPENED_S - 5)
    assert sorted(round(one.took_s) for one in found) == list(range(91, 101))
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)
    assert found[0].at_s >= 5


@pytest.mark.parametrize("stop_s", [10.0, 16.0, 16.1, 599.0, 5000.0])
def test_slices_cover_all_reads_and_waits_of_a_long_boot(stop_s):
    recorder = Recorder(OPENED_S)
    reads = 300
    for number in range(reads):
        at_s = stop_s * number / reads
        read(recorder, at_s, at_s + stop_s / reads / 2, (Via.PEER, 7))
    slices = recorder.time_slices()
    assert len(slices) <= boot_timeline.MAX_SLICES
    assert sum(one.reads for one in slices) == reads
    assert sum(one.bytes.get("peer", 0) for one in slices) == 7 * reads
    assert sum(one.waited_s for one in slices) == pytest.approx(stop_s / 2)
    assert all(one.waited_s <= recorder.slice_s * 1.001 for one in slices)
    assert len(slices) * recorder.slice_s >= stop_s * (1 - 1 / reads)


MOMENTS = strategies.lists(
    strategies.tuples(
        strategies.floats(0, 700), strategies.floats(0, 40), strategies.sampled_from(list(Via))
    ),
    max_size=40,
)


@given(MOMENTS)
def test_waits_add_up_to_the_time_with_a_read_in_flight(wanted):
    """Concurrent reads count as one wait: each moment counts once."""
    recorder = Recorder(OPENED_S)
    events = []
    for number, (from_s, took_s, via) in enumerate(wanted):
        events += [(from_s, 0, number, via), (from_s + took_s, 1, number, via)]
    in_flight = {}
    for at_s, is_end, number, via in sorted(events, key=lambda one: one[:3]):
        if is_end:
            in_flight[number].add(via, 1)
            recorder.end_read(in_flight.pop(number), OPENED_S + at_s)
        else:
            in_flight[number] = recorder.begin_read(0, 1, OPENED_S + at_s)
    covered_s = until_s = 0.0
    for from_s, took_s, _ in sorted(wanted):
        covered_s += max(0.0, from_s + took_s - max(from_s, until_s))
        until_s = max(until_s, from_s + took_s)
    assert in_all(recorder, 1000) == pytest.approx(covered_s, abs=1e-6)
    assert sum(one.waited_s for one in recorder.time_slices()) == pytest.approx(covered_s, abs=1e-6)


def test_timeline_of_very_many_reads_is_small():
    recorder = Recorder(OPENED_S)
    for number in range(100_000):
        at_s = number / 200
        read(recorder, at_s, at_s + 0.001, *((via, 1 << 40) for via in Via), offset=1 << 60)
    reported = boot_timeline.Timeline(
        image_id="7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11",
        began_at_s=1.8e9,
        opened_s=0.0,
        reads=recorder.reads,
        waited_s=recorder.waited_s(OPENED_S + 600),
        bytes=dict(recorder.bytes),
        slice_s=recorder.slice_s,
        slices=recorder.time_slices(),
        longest=recorder.longest_reads(OPENED_S),
    )
    raw = msgspec.json.encode(reported)
    assert len(raw) < 20_000
    assert msgspec.json.decode(raw, type=boot_timeline.Timeline) == reported
