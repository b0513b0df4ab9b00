# SPDX-License-Identifier: Apache-2.0
"""A boot trace is bounded and has no duplicates; recording always ends."""

import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.formats import boot_image
from acstor_common.image import boot_trace
from acstor_common.model import geometry
from acstor_common.model import ids

CHUNK = 16 * geometry.KIB
CUT = geometry.Geometry(20 * CHUNK + 5, CHUNK)
WINDOW = boot_trace.Window(longest_s=60.0, idle_s=10.0, limit_chunks=5)


def test_boot_ends_when_no_new_chunk_is_read():
    recorder = boot_trace.Recorder(CUT, WINDOW)
    assert not recorder.is_over(1000.0)
    recorder.record_read(0, 1, 0.0)
    recorder.record_read(CHUNK, 1, 5.0)
    recorder.record_read(0, 1, 14.0)
    assert not recorder.is_over(14.9)
    assert recorder.is_over(15.0)


def test_boot_ends_after_the_maximum_time_despite_new_reads():
    recorder = boot_trace.Recorder(CUT, WINDOW._replace(idle_s=100.0))
    recorder.record_read(0, 1, 0.0)
    recorder.record_read(CHUNK, 1, 59.0)
    assert not recorder.is_over(59.9)
    assert recorder.is_over(60.0)


def test_boot_ends_when_the_chunk_limit_is_reached():
    recorder = boot_trace.Recorder(CUT, WINDOW)
    recorder.record_read(3 * CHUNK, 17 * CHUNK, 0.0)
    assert recorder.trace == (3, 4, 5, 6, 7)
    assert recorder.is_full and recorder.is_over(0.0)


@given(
    st.lists(st.tuples(st.integers(0, 30 * CHUNK), st.integers(0, 5 * CHUNK)), max_size=40),
    st.integers(1, 30),
)
def test_recorded_trace_is_always_valid(reads, limit_chunks):
    recorder = boot_trace.Recorder(CUT, WINDOW._replace(limit_chunks=limit_chunks))
    for offset, length in reads:
        recorder.record_read(offset, length, 0.0)
    assert recorder.chunk_count == len(recorder.trace) <= limit_chunks
    assert boot_trace.why_invalid(recorder.trace, CUT.chunk_count) in ("", "it is empty")


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        ([], "it is empty"),
        ([0, 21], "the image lacks"),
        ([-1], "the image lacks"),
        ([5, 5], "twice"),
        (list(range(22)), "22 chunks are too many"),
        ([20, 0], ""),
    ],
)
def test_invalid_trace_is_refused_with_a_reason(trace, why):
    fault = boot_trace.why_invalid(trace, CUT.chunk_count)
    assert why in fault and bool(fault) == bool(why)


TRACES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True), min_size=1)


@given(TRACES)
def test_share_0_merges_to_the_union_and_share_1_to_the_intersection(traces):
    assert set(boot_trace.merge(traces, 0.0)) == set().union(*traces)
    assert set(boot_trace.merge(traces, 1.0)) == set(traces[0]).intersection(*traces)


@given(TRACES, st.floats(0, 1), st.integers(1, 10))
def test_merged_trace_is_valid_and_within_its_limit(traces, share, limit_chunks):
    merged = boot_trace.merge(traces, share, limit_chunks)
    assert len(merged) <= limit_chunks
    assert boot_trace.why_invalid(merged, 10) in ("", "it is empty")


@given(st.lists(st.integers(0, 9), min_size=1, unique=True), st.integers(1, 4))
def test_equal_boots_merge_to_themselves(trace, boots):
    assert boot_trace.merge([trace] * boots, 0.5) == tuple(trace)


def test_chunks_of_most_boots_are_kept_above_the_limit():
    assert boot_trace.merge([[1, 2, 3], [3, 4], [3, 2]], 0.0, limit_chunks=2) == (3, 2)


DB, WEB = ids.profile_key_of("db"), ids.profile_key_of("web")
PROFILES = st.sampled_from([ids.NO_PROFILE, DB, WEB])
BOOTS = st.lists(
    st.tuples(PROFILES, st.lists(st.integers(0, 9), min_size=1, unique=True)), min_size=1
)


@given(BOOTS, st.floats(0.1, 1), st.integers(1, 10))
def test_profiles_repeat_no_common_chunk_and_stay_within_the_limit(boots, share, limit):
    merged = boot_trace.merge_profiles(boots, share, limit)
    assert len(merged.common) <= limit
    assert sum(map(len, merged.of_profiles.values())) <= limit
    for part in merged.of_profiles.values():
        assert part and len({*merged.common, *part}) == len(merged.common) + len(part)


@given(BOOTS, st.floats(0.1, 1))
def test_each_group_of_two_boots_finds_its_own_merged_trace(boots, share):
    merged = boot_trace.merge_profiles(boots, share)
    for profile in (ids.NO_PROFILE, DB, WEB):
        traces = [trace for its, trace in boots if its == profile]
        if len(traces) >= 2:
            wanted = set(boot_trace.merge(traces, share))
            assert wanted <= {*merged.common, *merged.of_profiles.get(profile, ())}


@given(BOOTS, st.floats(0.1, 1))
def test_boots_of_profiles_change_nothing_for_others(boots, share):
    without = [(profile, trace) for profile, trace in boots if profile != DB]
    merged = boot_trace.merge_profiles(boots, share)
    if sum(profile == ids.NO_PROFILE for profile, _ in boots) >= 2:
        others = boot_trace.merge_profiles(without, share)
        assert merged.common == others.common
        assert merged.of_profiles.get(WEB) == others.of_profiles.get(WEB)


def test_chunks_of_a_profile_are_its_own_however_often_it_boots():
    others, db = [(ids.NO_PROFILE, (1, 2))], [(DB, (1, 9))]
    for times in (2, 8):
        assert boot_trace.merge_profiles([*others * 8, *db * times], 0.5) == ((1, 2), {DB: (9,)})
        assert boot_trace.merge_profiles([*others * 2, *db * times], 0.5) == ((1, 2), {DB: (9,)})
    assert boot_trace.merge_profiles([*others * 8, *db], 0.5) == ((1, 2), {})
    assert boot_trace.merge_profiles(db, 0.5, least_boots=1) == ((1, 9), {})


def test_all_boots_have_what_most_profiles_have_if_none_is_without():
    db, web = [(DB, (1, 9))] * 8, [(WEB, (1, 8))] * 2
    assert boot_trace.merge_profiles([*db, *web], 0.5) == ((1,), {DB: (9,), WEB: (8,)})
    odd = [(OTHER, (7,))] * 2
    merged = boot_trace.merge_profiles([*db, *web, *odd], 0.5)
    assert merged == ((1,), {DB: (9,), WEB: (8,), OTHER: (7,)})


OTHER = ids.profile_key_of("other")
BEFORE = boot_image.ProfiledTrace((1, 2), {WEB: (5,)})


@pytest.mark.parametrize(
    "boots", [[(ids.NO_PROFILE, (7,))], [(DB, (7,))], [(WEB, (7,)), (ids.NO_PROFILE, (8,))], []]
)
def test_single_boots_change_nothing(boots):
    assert boot_trace.merge_profiles(boots, 0.5, before=BEFORE) == BEFORE
    assert boot_trace.merge_profiles(boots, 0.5) == ((), {})


def test_parts_without_new_boots_stay():
    db = [(DB, (1, 2, 5, 9))] * 2
    merged = boot_trace.merge_profiles(db, 0.5, before=BEFORE)
    assert merged == ((1, 2), {DB: (5, 9), WEB: (5,)})
    without = [(ids.NO_PROFILE, (1, 5))] * 2
    merged = boot_trace.merge_profiles([*db, *without], 0.5, before=BEFORE)
    assert merged == ((1, 5), {DB: (2, 9), WEB: (2,)})


def test_new_profiles_displace_former_ones_beyond_the_limit():
    keys = [ids.profile_key_of(str(number)) for number in range(8)]
    before = boot_image.ProfiledTrace((1,), {key: (2,) for key in keys[:4]})
    boots = [(key, (1, 3)) for key in keys[3:6] for _ in range(2)]
    merged = boot_trace.merge_profiles([*boots, *[(ids.NO_PROFILE, (1,))] * 2], 0.5, before=before)
    assert merged.of_profiles.keys() >= {*keys[3:6]} and len(merged.of_profiles) == 4


@given(BOOTS, st.integers(1, 10))
@example([(DB, (1, 7)), (DB, (1, 7)), (WEB, (7, 1)), (WEB, (7, 1))], 2)
@example([(WEB, (7, 1)), (WEB, (7, 1)), (DB, (1, 7)), (DB, (1, 7))], 2)
def test_merging_again_changes_nothing(boots, limit):
    merged = boot_trace.merge_profiles(boots, 0.5, limit)
    assert boot_trace.merge_profiles(boots, 0.5, limit, before=merged) == merged
    order = sorted(boots, key=lambda boot: boot[0])
    assert boot_trace.merge_profiles(order, 0.5, limit) == merged


def test_boots_without_profiles_merge_as_before():
    traces = [(1, 2, 3), (3, 2, 9), (2, 3)]
    merged = boot_trace.merge_profiles([(ids.NO_PROFILE, trace) for trace in traces], 0.5)
    assert merged == (boot_trace.merge(traces, 0.5), {})
