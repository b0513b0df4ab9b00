# SPDX-License-Identifier: Apache-2.0
"""Check intervals of a broken cache folder."""

from acstor_agent.core.cache import folder_health


def test_check_intervals_double_up_to_a_maximum():
    patience = folder_health.FolderHealth()
    now_s, waits = 100.0, []
    for number in range(9):
        assert patience.record_fault(f"fault {number}", now_s, 5000.0 + number) == (number == 0)
        waits.append(patience.next_check_s - now_s)
        now_s = patience.next_check_s
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert patience.fault == folder_health.FolderFault("fault 8", 5000.0)


def test_failures_before_the_next_check_do_not_lengthen_its_interval():
    patience = folder_health.FolderHealth()
    for later_s in range(8):
        patience.record_fault("x", 100.0 + 0.1 * later_s, 0.0)
    assert patience.next_check_s == 101.0
    patience.record_fault("x", 101.0, 0.0)
    assert patience.next_check_s == 103.0


def test_check_interval_continues_for_a_folder_that_breaks_again_soon():
    patience = folder_health.FolderHealth()
    for now_s in (0.0, 1.0, 3.0):
        patience.record_fault("x", now_s, 0.0)
    assert patience.is_over(7.0) and not patience.is_over(7.0)
    assert patience.fault is None and patience.next_check_s == float("inf")
    assert patience.record_fault("x", 8.0, 0.0)
    assert patience.next_check_s == 8.0 + 8.0
    assert patience.is_over(10.0)
    longest_s = folder_health.CHECK_INTERVALS.longest_s
    assert patience.record_fault("x", 10.0 + longest_s, 0.0)  # exactly as long is not enough
    assert patience.next_check_s == 10.0 + longest_s + 16.0
    assert patience.is_over(16.0)
    assert patience.record_fault("x", 17.0 + folder_health.CHECK_INTERVALS.longest_s, 0.0)
    assert patience.next_check_s == 18.0 + folder_health.CHECK_INTERVALS.longest_s
