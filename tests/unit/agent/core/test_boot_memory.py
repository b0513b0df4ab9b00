# SPDX-License-Identifier: Apache-2.0
"""Boot images take no more memory than the limit, and release it after the boot."""

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.boot import boot_memory
from acstor_common.model import ids

ONE, TWO, THREE = (ids.ImageId(name) for name in ("one", "two", "three"))


def memory(limit_bytes=100):
    return boot_memory.BootMemory(limit_bytes, idle_s=60.0, longest_s=600.0)


def test_boot_image_that_does_not_fit_is_refused_and_changes_nothing():
    made = memory()
    assert made.reserve(ONE, 70, 0.0) == []
    assert made.reserve(TWO, 31, 1.0) is None
    assert made.reserve(THREE, 101, 100.0) is None
    assert made.used_bytes == 70


def test_least_recently_used_boot_images_are_evicted_as_needed():
    made = memory()
    for image_id in (ONE, TWO, THREE):
        made.reserve(image_id, 30, 0.0)
    made.note_use(ONE, 7.0)
    made.note_use(TWO, 5.0)
    made.note_use(THREE, 6.0)
    assert made.reserve(ids.ImageId("four"), 40, 11.0) == [TWO]
    assert made.used_bytes == 100


def test_recently_read_boot_image_is_not_evicted():
    made = memory()
    made.reserve(ONE, 100, 0.0)
    made.note_use(ONE, 96.0)
    assert made.reserve(TWO, 1, 100.0) is None


def test_repeated_reservation_replaces_the_former_one():
    made = memory()
    made.reserve(ONE, 100, 0.0)
    assert made.reserve(ONE, 90, 1.0) == []
    assert made.used_bytes == 90
    made.release_bytes(ONE)
    made.release_bytes(ONE)
    assert made.used_bytes == 0


def test_idle_boot_image_is_released_after_the_idle_time():
    made = memory()
    made.reserve(ONE, 10, 0.0)
    made.note_use(ONE, 30.0)
    assert made.take_due(89.0) == []
    assert made.take_due(90.0) == [ONE]
    assert made.take_due(90.0) == []
    assert made.used_bytes == 0


def test_boot_image_in_constant_use_is_released_after_the_longest_time():
    made = memory()
    made.reserve(ONE, 10, 0.0)
    made.note_boot(ONE, 100.0)
    made.note_use(ONE, 699.0)
    assert made.take_due(699.0) == []
    made.note_use(ONE, 700.0)
    assert made.take_due(700.0) == [ONE]


def test_events_of_a_boot_image_not_in_memory_are_ignored():
    made = memory()
    made.note_boot(ONE, 1.0)
    made.note_use(ONE, 1.0)
    assert made.take_due(1000.0) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "free", "begun", "used", "due"]),
            st.sampled_from([ONE, TWO, THREE]),
            st.integers(0, 120),
            st.floats(0, 200),
        )
    )
)
def test_memory_limit_holds_under_random_events(events):
    made, now_s = memory(), 0.0
    for what, image_id, size_bytes, later_s in events:
        now_s += later_s
        before = made.used_bytes
        if what == "reserve" and made.reserve(image_id, size_bytes, now_s) is None:
            assert made.used_bytes == before
        elif what == "free":
            made.release_bytes(image_id)
        elif what == "due":
            made.take_due(now_s)
        elif what == "begun":
            made.note_boot(image_id, now_s)
        elif what == "used":
            made.note_use(image_id, now_s)
        assert made.used_bytes <= made.limit_bytes
