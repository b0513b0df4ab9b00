# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.images import read_plan
from acstor_common.model import geometry
from acstor_common.model import ids

CHUNK = 16 * 1024
SIZE = 20 * CHUNK + 777
CUT = geometry.Geometry(SIZE, CHUNK)
KINDS = st.lists(
    st.sampled_from(read_plan.StepKind), min_size=CUT.chunk_count, max_size=CUT.chunk_count
)


def cid_of(kinds, chunk_no):
    return (
        ids.ZERO_CID if kinds[chunk_no] is read_plan.StepKind.ZERO else bytes([chunk_no + 1]) * 32
    )


def content(chunk_no):
    return bytes([chunk_no + 1]) * CUT.chunk_length(chunk_no)


def plan(kinds, offset, length):
    cached = {
        cid_of(kinds, n): f"slot {n}"
        for n, kind in enumerate(kinds)
        if kind is read_plan.StepKind.CACHE
    }
    in_memory = {
        cid_of(kinds, n): memoryview(content(n))
        for n, kind in enumerate(kinds)
        if kind is read_plan.StepKind.MEMORY
    }
    length = max(0, min(length, SIZE - offset))
    numbers = [piece.chunk_no for piece in CUT.split_range(offset, length)]
    cids = [cid_of(kinds, n) for n in numbers]
    return read_plan.plan(offset, length, CHUNK, cids, [*map(cached.get, cids)], in_memory)


@given(KINDS, st.integers(0, SIZE), st.integers(0, SIZE))
def test_steps_cover_the_read_without_gap_or_overlap(kinds, offset, length):
    steps = plan(kinds, offset, length)
    at = 0
    for step in steps:
        assert step.start == at < step.stop
        at = step.stop
    assert at == max(0, min(length, SIZE - offset))


@given(KINDS, st.integers(0, SIZE), st.integers(0, SIZE))
def test_every_chunk_is_in_a_step_of_its_kind(kinds, offset, length):
    for step in plan(kinds, offset, length):
        first = (offset + step.start) // CHUNK
        last = (offset + step.stop - 1) // CHUNK
        assert {kinds[n] for n in range(first, last + 1)} == {step.kind}
        if step.kind is read_plan.StepKind.FETCH:
            fetches = [(n, cid_of(kinds, n)) for n in range(first, last + 1)]
            assert list(step.fetches()) == fetches
        if step.kind is read_plan.StepKind.CACHE:
            assert [part[0] for part in step.parts] == [f"slot {n}" for n in range(first, last + 1)]
            assert sum(stop - start for _, start, stop in step.parts) == step.stop - step.start


@given(KINDS, st.integers(0, SIZE), st.integers(0, SIZE))
def test_memory_steps_contain_the_bytes_of_the_read(kinds, offset, length):
    whole = b"".join(map(content, range(CUT.chunk_count)))
    for step in plan(kinds, offset, length):
        if step.kind is read_plan.StepKind.MEMORY:
            assert bytes(step.data) == whole[offset + step.start : offset + step.stop]


def test_adjacent_chunks_of_one_kind_form_one_step():
    of_kinds = read_plan.StepKind.ZERO, read_plan.StepKind.CACHE, read_plan.StepKind.FETCH
    kinds = [kind for kind in of_kinds for _ in range(7)]
    assert [step.kind for step in plan(kinds, 0, SIZE)] == list(of_kinds)
