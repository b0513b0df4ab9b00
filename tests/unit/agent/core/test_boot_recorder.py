# SPDX-License-Identifier: Apache-2.0
"""The boot of each guest is recorded separately; reads that are no boot are dropped."""

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.boot import boot_recorder
from acstor_common.image import boot_trace
from acstor_common.model import geometry

CHUNK = 16 * geometry.KIB
CUT = geometry.Geometry(100 * CHUNK, CHUNK)
WINDOW = boot_trace.Window(longest_s=60.0, idle_s=10.0, limit_chunks=20)


def recorder(least_chunks=2):
    return boot_recorder.BootRecorder(CUT, WINDOW, least_chunks)


def read(made, opener, chunk_nos, now_s):
    for chunk_no in chunk_nos:
        made.record_guest_read(opener, chunk_no * CHUNK, 1, now_s)


def test_two_guests_are_recorded_separately():
    made = recorder()
    one, two = made.open(0.0, thread=7), made.open(5.0, thread=7)
    read(made, one, [1, 2], 6.0)
    read(made, two, [9, 1, 8], 7.0)
    assert one != two
    assert [boot.trace for boot in made.take_finished_traces(16.0)] == [(1, 2)]
    assert not made.is_idle
    assert [boot.trace for boot in made.take_finished_traces(17.0)] == [(9, 1, 8)]
    assert made.is_idle


def test_reads_of_others_and_after_the_window_are_not_recorded():
    made = recorder()
    one = made.open(0.0, thread=7)
    read(made, 0, [3, 4, 5], 1.0)
    read(made, one, [1, 2], 1.0)
    assert [boot.trace for boot in made.take_finished_traces(20.0)] == [(1, 2)]
    read(made, one, [6], 21.0)
    assert made.take_finished_traces(100.0) == []


def test_probes_and_full_copies_of_the_image_yield_no_trace():
    made = recorder()
    looks, copies, waits = (made.open(0.0, thread=7) for _ in range(3))
    read(made, looks, [0], 0.0)
    read(made, copies, range(100), 0.0)
    assert made.take_finished_traces(30.0) == []
    assert not made.is_idle  # the third guest may still boot
    read(made, waits, [], 50.0)
    assert made.take_finished_traces(60.0) == []
    assert made.is_idle


def test_opener_that_closes_after_a_probe_frees_its_number():
    made = recorder()
    for now_s in range(2 * boot_recorder.OPENERS):
        looked = made.open(float(now_s), thread=7)
        read(made, looked, [0], float(now_s))
        made.close(looked)
    guest = made.open(40.0, thread=7)
    read(made, guest, [3, 1], 40.0)
    made.close(guest)
    made.close(guest + 1)
    assert guest
    assert [boot.trace for boot in made.take_finished_traces(1000.0)] == [(3, 1)]


def test_guests_beyond_the_recording_limit_get_no_number():
    made = recorder()
    numbers = [made.open(0.0, thread=7) for _ in range(boot_recorder.OPENERS + 2)]
    assert numbers[-2:] == [0, 0]
    assert sorted(numbers[:-2]) == list(range(1, boot_recorder.OPENERS + 1))
    made.take_finished_traces(60.0)
    assert made.open(61.0, thread=7) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "read", "take"]),
            st.integers(0, 15),
            st.integers(0, 120 * CHUNK),
            st.integers(0, 5 * CHUNK),
            st.floats(0, 20),
        )
    )
)
def test_random_reads_yield_only_valid_boot_traces(events):
    made, now_s = recorder(), 0.0
    for what, opener, offset, length, later_s in events:
        now_s += later_s
        if what == "open":
            assert 0 <= made.open(now_s, thread=7) <= boot_recorder.OPENERS
        elif what == "read":
            made.record_guest_read(opener, offset, length, now_s)
        for boot in made.take_finished_traces(now_s) if what == "take" else []:
            assert boot_trace.why_invalid(boot.trace, CUT.chunk_count) == ""
            assert 2 <= len(boot.trace) < WINDOW.limit_chunks
    assert made.take_finished_traces(now_s + 61.0) is not None
    assert made.is_idle


def test_instance_found_during_its_boot_is_that_of_the_trace():
    made, instances = recorder(), {}
    one = made.open(0.0, thread=7)
    read(made, one, [1, 2], 1.0)
    for instances[7] in ("", "a", "b"):
        made.find_instances(lambda thread: instances[thread])
    [boot] = made.take_finished_traces(100.0)
    assert (boot.instance_id, boot.opened_s) == ("a", 0.0)
