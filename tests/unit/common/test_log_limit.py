# SPDX-License-Identifier: Apache-2.0
from acstor_common.util import log_limit


def test_one_line_in_a_while_is_written_with_the_number_of_those_left_out():
    limit = log_limit.LogLimit(10.0)
    said = [limit.take_line("a", now_s) for now_s in (5.0, 6.0, 14.9, 15.0, 16.0, 30.0, 50.0)]
    assert said == [0, None, None, 2, None, 1, 0]


def test_lines_that_differ_do_not_wait_for_each_other():
    limit = log_limit.LogLimit(10.0)
    assert [limit.take_line(key, 0.0) for key in ("a", "b", "a")] == [0, 0, None]


def test_what_is_remembered_is_bounded():
    limit = log_limit.LogLimit(10.0)
    for key in range(3 * log_limit.MAX_KEYS):
        assert limit.take_line(key, 0.0) == 0
    assert limit.take_line(3 * log_limit.MAX_KEYS - 1, 0.0) is None
    assert len(limit._lines) == log_limit.MAX_KEYS
