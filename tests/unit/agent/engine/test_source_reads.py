# SPDX-License-Identifier: Apache-2.0
"""Source reads: ranges, slots, fairness and cancellation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import actions
from acstor_agent.engine import priority
from acstor_agent.engine.fetch import source_reads
from tests.fakes.one_machine import CHUNK
from tests.fakes.one_machine import OTHER
from tests.fakes.one_machine import chunk

P = priority.Priority


@pytest.fixture
def out():
    return actions.ActionQueue()


def begun(out, reads):
    reads.start_queued_reads(0.0)
    return [action for action in out.take_all() if isinstance(action, actions.ReadSource)]


def chunks(*numbers):
    return tuple(chunk(number) for number in numbers)


def wants_of(found):
    return [tuple(read.refs) for read in found]


def reported(reads, number, *indices):
    """Let the source deliver chunks of a read; return the reads that end."""
    given = [(index, b"") for index in indices]
    return [read for read, _ in reads.end_answered(number, given, lambda what: None)]


def test_one_image_leaves_a_slot_for_others(out):
    reads = source_reads.SourceReads(out, slots=4)
    for number in range(0, 20, 2):
        reads.queue_read(chunks(number), P.GUEST, "greedy", 0.0)
    assert len(begun(out, reads)) == 3 and reads.is_full
    reads.queue_read(chunks(31), P.GUEST, "modest", 0.0)
    assert wants_of(begun(out, reads)) == [chunks(31)]
    assert not begun(out, reads)


@pytest.mark.parametrize("places", [1, 2, 3])
def test_no_slot_is_reserved_when_slots_are_few(out, places):
    reads = source_reads.SourceReads(out, slots=places)
    for number in range(0, 20, 2):
        reads.queue_read(chunks(number), P.HYDRATE, "image", 0.0)
    assert len(begun(out, reads)) == places


def test_large_reader_does_not_delay_other_guests_of_the_image(out):
    reads = source_reads.SourceReads(out, slots=2)
    for number in range(0, 200, 2):
        reads.queue_read(chunks(number), P.GUEST, "image", 0.0, "image/1")
    for number in (301, 303):
        reads.queue_read(chunks(number), P.GUEST, "image", 0.0, "image/2")
    first = begun(out, reads)
    assert {read.flow: tuple(read.refs) for read in first} == {
        "image/1": chunks(0),
        "image/2": chunks(301),
    }
    for read in first:
        reads.end_range(read.number)
    assert sorted(wants_of(begun(out, reads))) == sorted([chunks(2), chunks(303)])


def test_images_take_equal_turns_whatever_their_number_of_readers(out):
    reads = source_reads.SourceReads(out, slots=3)
    turns = []
    for number in range(0, 60, 2):
        reads.queue_read(chunks(number), P.GUEST, "many", 0.0, f"many/{number}")
        reads.queue_read(chunks(100 + number), P.GUEST, "few", 0.0, "few/1")
    for _ in range(10):
        found = begun(out, reads)
        turns += [read.flow for read in found]
        for read in found:
            reads.end_range(read.number)
    assert turns.count("few/1") == len(turns) / 2


def test_range_is_as_urgent_as_the_most_urgent_read_that_joins_it(out):
    reads, found = source_reads.SourceReads(out, slots=1), []
    for number in range(0, 80, 10):
        reads.queue_read(chunks(number + 2), P.GUEST, "image", 0.0, "image/1")
        reads.queue_read(chunks(70 - number, 71 - number), P.HYDRATE, "image", 0.0)
    while some := begun(out, reads):
        found += some
        reads.end_range(some[0].number)
    joined = [read for read in found if len(read.refs) == 3]
    assert joined and {read.priority for read in joined} == {P.GUEST}


class Steps:
    """Starts, changes and ends source reads in any order."""

    def __init__(self):
        self.out, self.made, self.seen = actions.ActionQueue(), [], []
        self.reads = source_reads.SourceReads(self.out, slots=3)
        self.reads.divide = self.split

    def split(self, read, some):
        self.made.append(self.reads.split(read, some))
        return self.made[-1]

    def read(self, number, opener):
        at, who = 5 * len(self.made), ("image", "h2")[number % 2]
        priority = (P.GUEST, P.PEER, P.READAHEAD)[number % 3]
        wanted = chunks(at, at + 1, at + 3 + number % 2)
        self.made.append(self.reads.queue_read(wanted, priority, who, 0.0, opener))

    def start(self, *_):
        self.seen += [ref for read in begun(self.out, self.reads) for ref in read.refs]

    def end(self, number, *_):
        self.reads.end_range(number)

    def change(self, number, opener):
        waiting = [read for read in self.made if not read.number and self.reads.is_active(read)]
        if not waiting:
            return
        read = waiting[number % len(waiting)]
        if number % 3 == 0:
            self.reads.raise_priority(read, P.GUEST, "image", opener)
        elif number % 3 == 1:
            self.reads.drop_read(read)
        elif len(read.refs) > 1:
            self.split(read, [number % 2])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("read", "change", "start", "end")),
            st.integers(0, 30),
            st.sampled_from((None, "a", "b")),
        ),
        max_size=60,
    )
)
def test_every_source_read_starts_at_most_once_and_leaves_no_state(steps):
    it = Steps()
    for what, number, opener in steps:
        getattr(it, what)(number, opener)
    for _ in range(3 * len(it.made) + 1):
        it.start()
        for number in range(1, 300):
            it.reads.end_range(number)
    assert not len(it.reads) and not any(it.reads._queue._by_priority)
    assert not it.reads._starts and not it.reads._stops and not it.reads._held
    assert len(set(it.seen)) == len(it.seen)
    assert {ref for read in it.made if read.number for ref in read.refs} == set(it.seen)


def test_peers_and_background_reads_leave_a_slot_for_guests(out):
    reads = source_reads.SourceReads(out, slots=4)
    for number in range(10):
        priority = (P.PEER, P.READAHEAD, P.HYDRATE)[number % 3]
        reads.queue_read(chunks(2 * number), priority, f"h{number}", 0.0)
    assert len(begun(out, reads)) == 3
    reads.queue_read(chunks(31), P.GUEST, "image", 0.0)
    assert wants_of(begun(out, reads)) == [chunks(31)]


def test_adjacent_queued_reads_are_merged_into_one_range(out):
    reads = source_reads.SourceReads(out, slots=1)
    for number in (3, 1, 2, 0, 5):
        reads.queue_read(chunks(number), P.READAHEAD, "image", 0.0)
    [first] = begun(out, reads)
    assert tuple(first.refs) == chunks(0, 1, 2, 3)
    assert len(reported(reads, first.number, 0, 1, 2, 3)) == 4
    assert wants_of(begun(out, reads)) == [chunks(5)]


def test_guest_read_is_not_merged_with_lower_priority_neighbours(out):
    reads = source_reads.SourceReads(out, slots=1)
    reads.queue_read(chunks(2), P.PREFETCH, "h2", 0.0)
    reads.queue_read(chunks(1), P.GUEST, "image", 0.0)
    reads.queue_read(chunks(0), P.GUEST, "image", 0.0)
    [first] = begun(out, reads)
    assert (first.priority, tuple(first.refs)) == (P.GUEST, chunks(0, 1))
    reads.end_range(first.number)
    reads.queue_read(chunks(3), P.GUEST, "image", 0.0)
    reads.queue_read(chunks(4), P.PREFETCH, "h2", 0.0)
    assert wants_of(begun(out, reads)) == [chunks(3)]


def test_range_length_is_bounded_except_for_a_single_longer_chunk(out):
    reads = source_reads.SourceReads(out, slots=9, range_bytes=3 * CHUNK)
    for number in range(7):
        reads.queue_read(chunks(number), P.GUEST, "image", 0.0)
    reads.queue_read(chunks(*range(10, 15)), P.GUEST, "image", 0.0)
    reads.queue_read((chunk(40)._replace(length=9 * CHUNK),), P.GUEST, "image", 0.0)
    lengths = [len(read.refs) for read in begun(out, reads)]
    assert lengths == [3, 3, 1, 3, 1, 2]


def test_non_contiguous_chunks_are_separate_ranges(out):
    reads = source_reads.SourceReads(out, slots=9)
    read = reads.queue_read(chunks(0, 1, 5, 6, 8), P.GUEST, "image", 0.0)
    reads.queue_read(chunks(9), P.GUEST, "image", 0.0)
    reads.queue_read((chunk(7)._replace(image_id=OTHER),), P.GUEST, "image", 0.0)
    found = begun(out, reads)
    ranges = [[ref.offset // CHUNK for ref in read.refs] for read in found]
    assert sorted(ranges) == [[0, 1], [5, 6], [7], [8], [9]] and read.refs == chunks(0, 1)


def test_read_with_raised_priority_goes_first_and_is_issued_once(out):
    reads = source_reads.SourceReads(out, slots=1)
    first = reads.queue_read(chunks(1), P.GUEST, "image", 0.0)
    begun(out, reads)
    others = [
        reads.queue_read(chunks(number), P.READAHEAD, "h2", 0.0) for number in range(3, 30, 2)
    ]
    reads.raise_priority(others[-1], P.GUEST, "image")
    reads.raise_priority(others[-1], P.HYDRATE, "h3")  # it is more urgent already
    reads.raise_priority(first, P.GUEST, "other")  # it is in flight
    assert reads.end_range(first.number) == [first]
    (read,) = begun(out, reads)
    assert tuple(read.refs) == chunks(29) and len(reads) == len(others)


def test_slot_is_freed_when_its_range_ends_and_each_chunk_ends_once(out):
    reads = source_reads.SourceReads(out, slots=1)
    found = [reads.queue_read(chunks(n), P.GUEST, "image", 0.0) for n in range(4)]
    reads.queue_read(chunks(9), P.GUEST, "image", 0.0)
    (read,) = begun(out, reads)
    assert reported(reads, read.number, 2) == [found[2]]
    assert reported(reads, read.number, 2, 9) == []
    assert reported(reads, read.number + 1, 0) == [] and not begun(out, reads)
    assert reads.end_range(read.number) == [found[0], found[1], found[3]]
    assert reads.end_range(read.number) == []
    assert wants_of(begun(out, reads)) == [chunks(9)]


def test_range_is_cancelled_when_its_last_read_is_dropped(out):
    reads = source_reads.SourceReads(out, slots=1)
    first, second, third = (reads.queue_read(chunks(n), P.GUEST, "image", 0.0) for n in (0, 1, 5))
    (read,) = begun(out, reads)
    reads.drop_read(third)
    reads.drop_read(first)
    assert not out.take_all() and not begun(out, reads)
    reads.drop_read(second)
    assert out.take_all() == [actions.CancelSourceRead(read.number)]
    assert not len(reads) and reported(reads, read.number, 1) == []


def test_read_with_a_partial_response_is_split(out):
    reads = source_reads.SourceReads(out)
    read = reads.queue_read(chunks(0, 1, 2, 3), P.GUEST, "image", 0.0)
    begun(out, reads)
    what = [(3, b""), (1, "no"), (3, b"again"), (0, b""), (1, b"late"), (0, "no")]
    ended = reads.end_answered(read.number, what, lambda one: one == "no")
    assert [(one.refs, reported) for one, reported in ended] == [
        (chunks(0, 3), [b"", b""]),
        (chunks(1), ["no"]),
    ]
    assert read.refs == chunks(2) and reads.is_active(read)
    assert reads.end_range(read.number) == [read] and not len(reads)


def test_split_part_of_a_queued_read_is_issued(out):
    reads = source_reads.SourceReads(out, slots=1)
    reads.queue_read(chunks(9), P.GUEST, "image", 0.0)
    begun(out, reads)
    read = reads.queue_read(chunks(0, 1, 2), P.GUEST, "image", 0.0)
    part = reads.split(read, [1])
    reads.drop_read(read)
    reads.end_range(1)
    assert wants_of(begun(out, reads)) == [chunks(1)] and reads.is_active(part)


def test_recount_repairs_counters_after_a_fault(out):
    reads = source_reads.SourceReads(out, slots=4)
    for number in range(0, 20, 2):
        reads.queue_read(chunks(number), P.PEER, "h2", 0.0)
    found = begun(out, reads)
    reads._held["nobody"] = reads._held_by_background = 9
    reads._ranges[found[0].number].reads.clear()
    reads._starts.clear()
    reads.recount_reads()
    assert (len(reads._ranges), dict(reads._held), reads._held_by_background) == (2, {"h2": 2}, 2)
    assert len(begun(out, reads)) == 1 and len(reads._starts) == len(reads._queue)
