# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.engine.gossip import announcements
from acstor_common.util import token_buckets

FAST = token_buckets.Rate(20_000.0, 20_000.0)


@pytest.mark.parametrize("peers", [1, 100])
@pytest.mark.parametrize("lookups", [1, 2, 51, 1000])
def test_lookups_for_all_peers_are_bounded(peers, lookups):
    listens = announcements.AnnouncementLimits(FAST, peers=1000)
    spent, longest_s = 0, 10.0
    for turn in range(int(10 * longest_s)):
        for peer in range(peers):
            spent += lookups * listens.admit_chunks(f"h{peer}", 4096, turn / 10, lookups)
    of_all, of_peer = announcements.LOOKUPS_OF_ALL, announcements.LOOKUPS_OF_PEER
    assert spent <= of_all.burst + of_all.per_s * longest_s
    assert spent <= peers * (of_peer.burst + of_peer.per_s * longest_s)
    assert spent >= (of_peer.per_s / 2 if peers == 1 else of_all.per_s) * longest_s * 0.9


def test_flooding_peer_leaves_allowance_for_others():
    listens = announcements.AnnouncementLimits(FAST, peers=1000)
    for turn in range(100):
        listens.admit_chunks("flood", 100_000, turn / 10, lookups=50)
    assert listens.admit_chunks("other", 100, 10.0, lookups=50) == 100


def test_number_of_remembered_peers_is_bounded():
    listens = announcements.AnnouncementLimits(FAST, peers=10)
    for number in range(100):
        assert listens.admit_chunks(f"h{number}", 5, 0.0) == 5
        assert len(listens) <= 10


def test_clock_that_jumps_back_gives_no_allowance():
    listens = announcements.AnnouncementLimits(token_buckets.Rate(10.0, 20.0), peers=10)
    received = [listens.admit_chunks("h1", 20, now) for now in (1000.0, 0.0, 1000.0, 1001.0)]
    assert received == [20, 0, 0, 10]


def test_penalized_peer_is_ignored_until_its_allowance_refills():
    listens = announcements.AnnouncementLimits(token_buckets.Rate(10.0, 20.0), peers=10)
    listens.penalize_peer("h1", 1000, 0.0)
    assert [listens.admit_chunks("h1", 5, now) for now in (0.0, 2.0, 2.5)] == [0, 0, 5]
