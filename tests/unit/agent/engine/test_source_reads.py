# SPDX-License-Identifier: Apache-2.0
"""Reads of the source: so many at a time, a share for others, and none that nobody wants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import actions
from acstor_agent.engine import priority as priority_
from acstor_agent.engine.fetch import source_reads
from tests.fakes.one_machine import chunk

P = priority_.Priority


@pytest.fixture
def out():
    return actions.Out()


def begun(out, reads):
    reads.start(0.0)
    return [action for action in out.take() if isinstance(action, actions.ReadSource)]


def told(reads, number, *indices):
    """Let the source give chunks of a read; return the reads that end."""
    given = [(index, b"") for index in indices]
    return [read for read, _ in reads.take(number, given, lambda what: None, reads.split)]


def test_one_image_leaves_a_share_for_others(out):
    reads = source_reads.SourceReads(out, chunks=4, spared=1)
    for number in range(10):
        reads.read((chunk(number),), P.GUEST, "greedy", 0.0)
    assert [len(read.wants) for read in begun(out, reads)] == [3]
    reads.read((chunk(31),), P.GUEST, "modest", 0.0)
    assert [read.wants for read in begun(out, reads)] == [[chunk(31)]]
    assert not begun(out, reads) and reads.under_way == 4


def test_who_reads_much_of_an_image_keeps_no_other_guest_of_it_waiting(out):
    reads = source_reads.SourceReads(out, chunks=4, spared=0)
    for number in range(100):
        reads.read((chunk(number),), P.GUEST, "image", 0.0, "image/1")
    for number in range(200, 203):
        reads.read((chunk(number),), P.GUEST, "image", 0.0, "image/2")
    first = begun(out, reads)
    assert {read.who: read.wants for read in first} == {
        "image/1": [chunk(0), chunk(1)],
        "image/2": [chunk(200), chunk(201)],
    }
    for read in first:
        reads.ended(read.number)
    wants = [want for read in begun(out, reads) for want in read.wants]
    assert sorted(wants) == sorted([chunk(2), chunk(3), chunk(4), chunk(202)])


def test_image_with_many_openers_has_no_more_turns_than_one_with_few(out):
    reads = source_reads.SourceReads(out, chunks=20, spared=0)
    for number in range(50):
        reads.read((chunk(number),), P.GUEST, "many", 0.0, f"many/{number}")
        reads.read((chunk(100 + number),), P.GUEST, "few", 0.0, "few/1")
    read = [(found.who, len(found.wants)) for found in begun(out, reads)]
    assert dict(read).pop("few/1") == 10 and len(read) == 11


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("read", "hurry", "forget", "start", "end")),
            st.integers(0, 30),
            st.sampled_from((None, "a", "b")),
        ),
        max_size=60,
    )
)
def test_every_read_is_begun_once_or_forgotten_whoever_has_the_image_open(steps):
    out = actions.Out()
    reads, made, seen = source_reads.SourceReads(out, chunks=3, spared=1), [], []
    for what, number, opener in steps:
        if what == "read":
            who = ("image", "h2")[number % 2]
            priority = (P.GUEST, P.PEER, P.SOON)[number % 3]
            made.append(reads.read((chunk(len(made)),), priority, who, 0.0, opener))
        elif what == "start":
            seen += [want for read in begun(out, reads) for want in read.wants]
        elif what == "end":
            reads.ended(number)
        elif number < len(made) and what == "hurry" and not made[number].number:
            reads.hurry(made[number], P.GUEST, "image", opener)
        elif number < len(made) and what == "forget":
            reads.forget(made[number])
            out.take()
    for _ in range(len(made) + 1):
        seen += [want for read in begun(out, reads) for want in read.wants]
        for number in range(1, 100):
            reads.ended(number)
    assert not len(reads) and not any(reads._turns._lines)
    assert len(set(seen)) == len(seen)
    assert {read.want for read in made if read.number} == set(seen)


def test_peers_and_background_leave_a_share_for_guests(out):
    reads = source_reads.SourceReads(out, chunks=4, spared=1)
    for number in range(10):
        reads.read((chunk(number),), (P.PEER, P.SOON, P.WHOLE)[number % 3], f"h{number}", 0.0)
    assert len(begun(out, reads)) == 3
    reads.read((chunk(31),), P.GUEST, "image", 0.0)
    assert [read.wants for read in begun(out, reads)] == [[chunk(31)]]


def test_what_is_less_urgent_or_of_another_is_no_part_of_a_guests_read(out):
    reads = source_reads.SourceReads(out)
    for number in range(1, 16):
        reads.read((chunk(number),), P.LATER, "h2", 0.0)
    reads.read((chunk(0),), P.GUEST, "image", 0.0)
    found = begun(out, reads)
    assert [read.wants for read in found if read.priority is P.GUEST] == [[chunk(0)]]


def test_read_that_becomes_urgent_goes_before_others_and_is_made_once(out):
    reads = source_reads.SourceReads(out, chunks=1, spared=0)
    first = reads.read((chunk(1),), P.GUEST, "image", 0.0)
    begun(out, reads)
    others = [reads.read((chunk(number),), P.SOON, "h2", 0.0) for number in range(3, 30, 2)]
    reads.hurry(others[-1], P.GUEST, "image")
    reads.hurry(others[-1], P.WHOLE, "h3")  # it is more urgent already
    reads.hurry(first, P.GUEST, "other")  # it is under way
    assert reads.ended(first.number) == [first]
    (read,) = begun(out, reads)
    assert read.wants == [chunk(29)] and len(reads) == len(others)


def test_read_under_way_is_said_to_be_urgent_once_for_each_reason_that_is_more_so(out):
    reads = source_reads.SourceReads(out)
    read = reads.read((chunk(1),), P.LATER, "h2", 0.0)
    begun(out, reads)
    for priority, who in ((P.WHOLE, "i"), (P.LATER, "h3"), (P.PEER, "h3"), (P.PEER, "h4")):
        reads.hurry(read, priority, who)
    assert out.take() == [
        actions.HurryRead(read.number, P.WHOLE, "i"),
        actions.HurryRead(read.number, P.PEER, "h3"),
    ]
    assert told(reads, read.number, 0) == [read] and reads._held_by_others == 0


def test_what_is_told_piece_by_piece_frees_its_places_and_is_told_once(out):
    reads = source_reads.SourceReads(out, chunks=4, spared=0)
    found = [reads.read((chunk(n),), P.GUEST, "image", 0.0) for n in range(6)]
    (read,) = begun(out, reads)
    assert told(reads, read.number, 2) == [found[2]]
    assert told(reads, read.number, 2, 9) == []
    assert told(reads, read.number + 1, 0) == [] and reads.under_way == 3
    (second,) = begun(out, reads)
    assert second.wants == [chunk(4)]
    assert reads.ended(read.number) == [found[0], found[1], found[3]]
    assert reads.ended(read.number) == []
    assert [read.wants for read in begun(out, reads)] == [[chunk(5)]]


def test_what_nobody_wants_is_not_read_or_cancelled_when_nothing_of_it_is_wanted(out):
    reads = source_reads.SourceReads(out, chunks=2, spared=0)
    first, second, third = (reads.read((chunk(n),), P.GUEST, "image", 0.0) for n in range(3))
    (read,) = begun(out, reads)
    reads.forget(third)
    reads.forget(first)
    assert not out.take() and not begun(out, reads)
    reads.forget(second)
    assert out.take() == [actions.CancelRead(read.number)]
    assert not len(reads) and told(reads, read.number, 1) == []


def test_chunks_of_one_read_are_read_together_and_count_each(out):
    reads = source_reads.SourceReads(out, chunks=4, spared=1)
    first = reads.read(tuple(chunk(n) for n in range(3)), P.GUEST, "image", 0.0)
    second = reads.read((chunk(3), chunk(4)), P.GUEST, "other", 0.0)
    found = begun(out, reads)
    assert [read.wants for read in found] == [[chunk(0), chunk(1), chunk(2)], [chunk(3), chunk(4)]]
    assert (first.indices, second.indices, reads.under_way) == ((0, 1, 2), (0, 1), 5)
    assert told(reads, first.number, 2, 0, 1) == [first] and reads.under_way == 2


def test_read_of_which_the_source_tells_a_part_is_split(out):
    reads = source_reads.SourceReads(out)
    read = reads.read(tuple(chunk(n) for n in range(4)), P.GUEST, "image", 0.0)
    begun(out, reads)
    what = [(3, b""), (1, "no"), (3, b"again"), (0, b""), (1, b"late"), (0, "no")]
    ended = reads.take(read.number, what, lambda one: one == "no", reads.split)
    assert [(one.refs, told) for one, told in ended] == [
        ((chunk(0), chunk(3)), [b"", b""]),
        ((chunk(1),), ["no"]),
    ]
    assert read.refs == (chunk(2),) and reads.holds(read) and reads.under_way == 1
    assert reads.ended(read.number) == [read] and not reads.under_way


def test_part_of_a_read_that_waits_has_its_turn(out):
    reads = source_reads.SourceReads(out, chunks=2, spared=0)
    reads.read((chunk(9), chunk(10)), P.GUEST, "image", 0.0)
    begun(out, reads)
    read = reads.read(tuple(chunk(n) for n in range(3)), P.GUEST, "image", 0.0)
    part = reads.split(read, [1])
    reads.forget(read)
    reads.ended(1)
    assert [read.wants for read in begun(out, reads)] == [[chunk(1)]] and reads.holds(part)
