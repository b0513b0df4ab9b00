# SPDX-License-Identifier: Apache-2.0
"""A moment has an end, soon or, for who never comes to one, late."""

import pytest

from acstor_checkpoint import patience


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def looks(clock: Clock, is_late: patience.IsLate) -> float:
    """Return after how many seconds it is late."""
    began_s = clock.now_s
    while not is_late():
        clock.now_s += 1.0
    return clock.now_s - began_s


def test_moments_are_short_until_some_parts_were_of_no_use(clock: Clock) -> None:
    it = patience.Patience(10.0, 100.0, clock)
    assert [it.is_due(stuck) for stuck in range(5)] == [False, False, False, True, True]
    with it.short() as is_late:
        assert looks(clock, is_late) == 11


def test_others_have_turns_while_a_long_one_is_on_and_no_other_long_one(clock: Clock) -> None:
    it = patience.Patience(10.0, 100.0, clock)
    turns = []

    def others() -> None:
        turns.append(clock.now_s)
        clock.now_s += 5.0
        assert not it.is_due(9)
        with it.short() as is_late:
            assert not is_late()

    with it.long(others) as is_late:
        assert 100 < looks(clock, is_late) < 110
    assert turns == [11, 27, 43, 59, 75, 91]
    assert it.is_due(patience.PARTS)


def test_who_fails_in_a_long_one_lets_others_have_theirs(clock: Clock) -> None:
    it = patience.Patience(10.0, 100.0, clock)
    with pytest.raises(KeyError), it.long(lambda: None):
        raise KeyError
    assert it.is_due(patience.PARTS)
