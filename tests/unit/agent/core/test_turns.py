# SPDX-License-Identifier: Apache-2.0
import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core import turns
from acstor_agent.core.disk_scheduling import request as requests

Klass = requests.Klass
A1, A2, B1 = (requests.Stream(Klass.GUEST, name) for name in ("a/8", "a/9", "b/8"))
P1, P2 = (requests.Stream(Klass.PEER, name) for name in ("h1", "h2"))
AHEAD = requests.Stream(Klass.PREFETCH, "read-ahead")


def serve(places: turns.Turns, waiting: list[requests.Stream], count: int) -> list:
    """Let one after the other have a place and give it back."""
    left, served = list(waiting), []
    for _ in range(count):
        number = places.next_of(left)
        if number is None:
            break
        served.append(left.pop(number))
        places.took(served[-1])
        places.gave_back(served[-1])
    return served


def take_all(places: turns.Turns, stream: requests.Stream) -> int:
    """Let one take all that it may have; return how many."""
    for taken in range(100):
        if places.next_of([stream]) is None:
            return taken
        places.took(stream)
    pytest.fail("no end")


def test_one_guests_flood_does_not_delay_anothers_request():
    served = serve(turns.Turns(1), [A1] * 1000 + [B1] * 3, 6)
    assert served == [A1, B1, A1, B1, A1, B1]


def test_images_take_turns_whoever_has_opened_them():
    served = serve(turns.Turns(1), [A1] * 100 + [A2] * 100 + [B1] * 100, 8)
    assert served == [A1, B1, A2, B1, A1, B1, A2, B1]


def test_peers_take_turns_and_come_after_guests():
    served = serve(turns.Turns(1), [P1] * 30 + [P2] * 2 + [A1] * 3, 9)
    assert served == [A1, A1, A1, P1, P2, P1, P2, P1, P1]


def test_peers_are_not_starved_by_guests():
    served = serve(turns.Turns(1), [A1] * 100 + [P1] * 100 + [AHEAD] * 100, 100)
    assert collections.Counter(served) == {A1: 75, P1: 25}


def test_equal_ones_are_served_in_the_order_of_their_coming():
    assert turns.Turns(1).next_of([B1, A1]) == 0
    assert turns.Turns(1).next_of([]) is None


@pytest.mark.parametrize(("places", "most"), [(1, 1), (3, 3), (4, 3), (8, 7)])
def test_one_place_is_left_for_the_next_guest(places, most):
    flooded = turns.Turns(places)
    assert take_all(flooded, A1) == most
    assert take_all(flooded, A2) == 0
    assert take_all(flooded, B1) == places - most
    peers = turns.Turns(places)
    assert take_all(peers, P1) + take_all(peers, P2) + take_all(peers, AHEAD) == most
    assert take_all(peers, B1) == places - most


def test_place_that_was_given_back_can_be_taken():
    places = turns.Turns(1)
    places.took(P1)
    assert places.next_of([A1]) is None
    places.gave_back(P1)
    assert places.next_of([A1]) == 0


def test_work_is_as_urgent_as_the_most_urgent_who_waits_for_it():
    reading, fetching = turns.Asker(P1), turns.Asker(AHEAD)
    fetching.waits_for(reading)
    assert reading.stream == P1
    fetching.hurry(A1)
    assert (fetching.stream, reading.stream) == (A1, A1)
    fetching.hurry(P2)
    assert fetching.stream == A1


def test_what_is_remembered_is_bounded():
    places = turns.Turns(1)
    for number in range(turns.REMEMBERED):
        places.took(requests.Stream(Klass.PEER, str(number)))
    assert len(places._served) <= turns.REMEMBERED


STREAMS = st.sampled_from([A1, A2, B1, P1, P2, AHEAD])


@given(st.lists(STREAMS, max_size=60), st.integers(1, 9))
def test_everybody_is_served_in_the_end_and_places_are_never_exceeded(waiting, number):
    places, left, held = turns.Turns(number), list(waiting), []
    while left or held:
        chosen = places.next_of(left)
        if chosen is None:
            assert held
            places.gave_back(held.pop(0))
        else:
            held.append(left.pop(chosen))
            places.took(held[-1])
        assert len(held) <= number
