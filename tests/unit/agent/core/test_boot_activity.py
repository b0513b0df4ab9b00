# SPDX-License-Identifier: Apache-2.0
from acstor_agent.core.boot import boot_activity


def activity() -> boot_activity.BootActivity:
    return boot_activity.BootActivity(idle_s=10.0, longest_s=60.0)


def test_boot_is_only_expected_before_the_first_guest():
    assert activity().is_on(5.0, is_expected=True)
    assert not activity().is_on(5.0, is_expected=False)


def test_boots_back_to_back_count_as_one_that_ends_by_its_longest_time():
    boots = activity()
    for begin_s in (100.0, 108.0, 116.0):
        boots.last_begin(begin_s)
    assert boots.is_on(125.0, is_expected=False)
    for begin_s in range(124, 160, 8):
        boots.last_begin(float(begin_s))
    assert not boots.is_on(160.0, is_expected=True)


def test_pause_of_exactly_the_idle_time_begins_another_boot():
    boots = activity()
    boots.last_begin(100.0)
    boots.last_begin(110.0)
    assert boots.is_on(165.0, is_expected=True)


def test_boot_after_a_pause_is_another_one():
    boots = activity()
    boots.last_begin(100.0)
    boots.last_begin(155.0)
    assert boots.is_on(161.0, is_expected=False)
    boots.last_begin(155.0)  # told again
    assert not boots.is_on(165.0, is_expected=False)


def test_fetches_and_waiting_guests_prolong_a_boot_and_a_known_count_does_not():
    boots = activity()
    boots.last_begin(100.0)
    boots.note_fetches(7, is_waited_for=False, now_s=109.0)
    boots.note_fetches(7, is_waited_for=False, now_s=118.0)
    assert boots.is_on(118.0, is_expected=False)
    assert not boots.is_on(119.0, is_expected=False)
    boots.note_fetches(7, is_waited_for=True, now_s=118.0)
    assert boots.is_on(127.0, is_expected=False)
