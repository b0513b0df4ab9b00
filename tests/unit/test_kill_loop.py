# SPDX-License-Identifier: Apache-2.0
"""The verdict of the loop that kills workers."""

import pytest

from tests.chaos import kill_loop
from tests.fakes import guest_readers


def outcome(kills=5, **seen):
    return kill_loop.Outcome(kills, guest_readers.Tally(**seen))


def test_all_kills_without_an_effect_on_readers_is_success():
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
def test_too_few_kills_or_reads_or_any_error_is_a_failure(seen):
    assert not kill_loop.is_fine(kill_loop.summary([outcome(**seen)]), 5)
