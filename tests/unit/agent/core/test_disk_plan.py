# SPDX-License-Identifier: Apache-2.0
"""Read and write plans of a disk, checked against a plain bytearray."""

import random

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from acstor_agent.core.disks import disk_plan
from acstor_agent.core.images import chunk_state
from acstor_common.model import geometry

CHUNK = geometry.MIN_CHUNK_BYTES
Origin, Stretch = disk_plan.StretchOrigin, disk_plan.Stretch
CUT = geometry.Geometry(5 * CHUNK + 100, CHUNK)
IMAGE_BYTES = 2 * CHUNK + 50


def fresh_states(cut=CUT):
    return chunk_state.ChunkStates(cut.chunk_count)


def write(states, offset, length):
    plan = disk_plan.plan_write(CUT, IMAGE_BYTES, states, offset, length)
    disk_plan.note_written(states, plan)
    return plan


def test_new_disk_reads_as_the_image_followed_by_zeros():
    assert disk_plan.plan_read(CUT, IMAGE_BYTES, fresh_states(), 0, 99 * CHUNK) == [
        Stretch(Origin.IMAGE, 0, IMAGE_BYTES),
        Stretch(Origin.ZERO, IMAGE_BYTES, CUT.size_bytes),
    ]


@pytest.mark.parametrize("offset", [CUT.size_bytes, CUT.size_bytes + 1, 10**12])
def test_read_beyond_the_disk_is_empty(offset):
    assert disk_plan.plan_read(CUT, IMAGE_BYTES, fresh_states(), offset, 4096) == []
    assert not disk_plan.chunks_of(CUT, offset, 4096)


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, CHUNK), (CHUNK, 2 * CHUNK), (0, 5 * CHUNK + 100), (5 * CHUNK, 100)],
)
def test_write_of_whole_chunks_fetches_nothing(offset, length):
    plan = disk_plan.plan_write(CUT, IMAGE_BYTES, fresh_states(), offset, length)
    assert (plan.before, plan.after) == ([], [])
    assert plan.fresh == list(plan.chunks)


def test_partial_write_fills_the_rest_of_its_chunk():
    plan = disk_plan.plan_write(CUT, IMAGE_BYTES, fresh_states(), 2 * CHUNK + 10, 20)
    assert plan.before == [Stretch(Origin.IMAGE, 2 * CHUNK, 2 * CHUNK + 10)]
    assert plan.after == [
        Stretch(Origin.IMAGE, 2 * CHUNK + 30, IMAGE_BYTES),
        Stretch(Origin.ZERO, IMAGE_BYTES, 3 * CHUNK),
    ]


def test_write_over_three_chunks_fills_the_first_and_the_last():
    plan = disk_plan.plan_write(CUT, IMAGE_BYTES, fresh_states(), 10, 2 * CHUNK)
    assert plan.before == [Stretch(Origin.IMAGE, 0, 10)]
    assert plan.after[0] == Stretch(Origin.IMAGE, 2 * CHUNK + 10, IMAGE_BYTES)
    assert plan.fresh == [0, 1, 2]


def test_write_beyond_the_image_reads_nothing_from_it():
    plan = disk_plan.plan_write(CUT, IMAGE_BYTES, fresh_states(), 4 * CHUNK + 10, 20)
    assert {stretch.origin for stretch in plan.before + plan.after} == {Origin.ZERO}


def test_written_chunk_is_read_from_the_disk_only():
    states = fresh_states()
    write(states, 10, 20)
    again = disk_plan.plan_write(CUT, IMAGE_BYTES, states, 5, 3)
    assert again == disk_plan.WritePlan([], [], range(1), [])
    assert disk_plan.plan_read(CUT, IMAGE_BYTES, states, 0, CHUNK + 1) == [
        Stretch(Origin.DISK, 0, CHUNK),
        Stretch(Origin.IMAGE, CHUNK, CHUNK + 1),
    ]


def test_written_chunks_have_the_state_written():
    states = fresh_states()
    write(states, 10, 2 * CHUNK)
    assert [state.name for state in states][:4] == ["WRITTEN"] * 3 + ["REMOTE"]


class DiskAgainstBytes(stateful.RuleBasedStateMachine):
    """An in-memory disk that executes the plans."""

    @stateful.initialize(
        image=st.integers(0, 3 * CHUNK + 1), more=st.integers(0, 3 * CHUNK), seed=st.integers(0, 99)
    )
    def make(self, image, more, seed):
        self.image = random.Random(seed).randbytes(image)
        self.cut = geometry.Geometry(image + more, CHUNK)
        self.states = fresh_states(self.cut)
        self.file = bytearray(b"\xee" * (image + more))  # unwritten bytes must not be read
        self.truth = bytearray(self.image + bytes(more))
        self.fetched = 0

    def bring(self, stretches):
        for origin, start, stop in stretches:
            assert start < stop
            if origin is Origin.DISK:
                yield self.file[start:stop]
            else:
                source = self.image if origin is Origin.IMAGE else bytes(self.cut.size_bytes)
                assert len(source) >= stop
                yield source[start:stop]

    ranges = st.tuples(st.integers(0, 6 * CHUNK), st.integers(0, 3 * CHUNK))
    edges = st.tuples(st.integers(0, 6).map(CHUNK.__mul__), st.integers(0, 3).map(CHUNK.__mul__))

    @stateful.rule(where=ranges | edges)
    def read(self, where):
        offset, length = where
        plan = disk_plan.plan_read(self.cut, len(self.image), self.states, offset, length)
        assert b"".join(self.bring(plan)) == self.truth[offset : offset + length]

    @stateful.rule(where=ranges | edges, fill=st.integers(0, 255))
    def write(self, where, fill):
        offset, length = where
        data = bytes([fill]) * min(length, self.cut.size_bytes - offset)
        if not data:
            return
        size = len(data)
        plan = disk_plan.plan_write(self.cut, len(self.image), self.states, offset, size)
        before, after = b"".join(self.bring(plan.before)), b"".join(self.bring(plan.after))
        self.file[offset - len(before) : offset + size + len(after)] = before + data + after
        self.truth[offset : offset + size] = data
        disk_plan.note_written(self.states, plan)

    @stateful.invariant()
    def chunks_in_the_file_are_whole(self):
        for chunk_no in range(self.cut.chunk_count):
            if disk_plan.is_on_disk(self.states, chunk_no):
                at = self.cut.chunk_offset(chunk_no)
                stop = at + self.cut.chunk_length(chunk_no)
                assert self.file[at:stop] == self.truth[at:stop]


DiskAgainstBytes.TestCase.settings = hypothesis.settings(max_examples=60, stateful_step_count=15)
TestDiskAgainstBytes = DiskAgainstBytes.TestCase
