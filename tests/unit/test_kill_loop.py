# SPDX-License-Identifier: Apache-2.0
"""When the loop that kills workers says that all went well."""

import pytest

from tests.chaos import kill_loop
from tests.fakes import guest_readers


def outcome(kills=5, **seen):
    return kill_loop.Outcome(kills, guest_readers.Tally(**seen))


def test_all_that_was_asked_for_and_nothing_seen_is_fine():
    said = kill_loop.summary([outcome(reads=3), outcome(reads=4)])
    assert (said["kills"], said["reads"]) == (10, 7)
    assert kill_loop.is_fine(said, 10)


@pytest.mark.parametrize(
    "seen",
    [
        {"reads": 3, "kills": 4},
        {"reads": 0},
        {"reads": 3, "errors": ["EIO"]},
        {"reads": 3, "wrong": ["at 0"]},
    ],
)
def test_too_few_kills_no_reads_an_error_or_a_wrong_byte_is_not(seen):
    assert not kill_loop.is_fine(kill_loop.summary([outcome(**seen)]), 5)
