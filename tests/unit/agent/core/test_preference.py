# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.exchange import preference

seconds = st.floats(0.0001, 10.0)


def told(peers_s, source_s, count=preference.LATEST, now=0.0):
    made = preference.Preference()
    for _ in range(count):
        made.peer_answered(peers_s, now)
        made.source_answered(source_s, now)
    return made


@given(seconds, seconds)
def test_source_goes_first_where_peers_are_clearly_slower_and_only_there(peers_s, source_s):
    made = told(peers_s, source_s)
    made.decide(now=1.0)
    is_slower = peers_s > preference.CLEARLY * source_s
    assert made.is_source_first == (is_slower and peers_s > source_s + preference.LEAST_S)


@given(st.integers(0, preference.ENOUGH - 1))
def test_nothing_is_decided_where_too_little_is_known(count):
    made = told(10.0, 0.001, count)
    assert not any(made.decide(now=1.0) for _ in range(100))


def test_what_is_old_tells_nothing():
    made = told(1.0, 0.001)
    assert made.decide(now=preference.RECENT_S)
    assert not made.decide(now=preference.RECENT_S + 1)
    assert not made.is_source_first


def test_peers_are_probed_and_go_first_again_when_they_are_fast_again():
    made = told(1.0, 0.01)
    peers = 0
    for guest in range(20 * preference.PROBE):
        if made.decide(now=guest / 100):
            made.source_answered(0.01, now=guest / 100)
        else:
            peers += 1
            made.peer_answered(0.012, now=guest / 100)
    assert not made.is_source_first
    assert peers >= 8 * preference.PROBE


def test_one_slow_answer_changes_nothing():
    made = told(0.01, 0.01)
    made.peer_answered(30.0, now=0.0)
    assert not made.decide(now=0.0)


@pytest.mark.parametrize(("peers_s", "probes"), [(0.5, 10), (0.01, 0)])
def test_source_of_which_nothing_is_known_is_probed_where_peers_are_slow(peers_s, probes):
    made = preference.Preference()
    for _ in range(preference.LATEST):
        made.peer_answered(peers_s, now=0.0)
    guests = 10 * preference.PROBE_SOURCE
    assert sum(made.decide(now=1.0) for _ in range(guests)) == probes == made.source_firsts
