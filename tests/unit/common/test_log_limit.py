# SPDX-License-Identifier: Apache-2.0
from acstor_common.util import log_limit


def test_log_limit_passes_one_line_per_interval_with_the_skipped_count():
    limit = log_limit.LogLimit(10.0)
    said = [limit.take_line("a", now_s) for now_s in (5.0, 6.0, 14.9, 15.0, 16.0, 30.0, 50.0)]
    assert said == [0, None, None, 2, None, 1, 0]


def test_different_lines_are_limited_separately():
    limit = log_limit.LogLimit(10.0)
    assert [limit.take_line(key, 0.0) for key in ("a", "b", "a")] == [0, 0, None]


def test_remembered_lines_are_bounded():
    limit = log_limit.LogLimit(10.0)
    for key in range(3 * log_limit.MAX_KEYS):
        assert limit.take_line(key, 0.0) == 0
    assert limit.take_line(3 * log_limit.MAX_KEYS - 1, 0.0) is None
    assert len(limit._lines) == log_limit.MAX_KEYS
