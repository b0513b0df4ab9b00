# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.engine.gossip import announcements
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.util import token_buckets
from tests.fakes.announced import alone

FAST = token_buckets.Rate(20_000.0, 20_000.0)


@pytest.mark.parametrize("peers", [1, 100])
@pytest.mark.parametrize("lookups", [1, 2, 51, 1000])
def test_lookups_for_all_peers_are_bounded(peers, lookups):
    listens = announcements.AnnouncementLimits(FAST, peers=1000)
    spent, longest_s, some = 0, 10.0, alone(*range(1, 4097))
    for turn in range(int(10 * longest_s)):
        for peer in range(peers):
            accepted = listens.admit_chunks(f"h{peer}", some, turn / 10, lookups)
            spent += lookups * len(accepted)
    of_all, of_peer = announcements.LOOKUPS_OF_ALL, announcements.LOOKUPS_OF_PEER
    assert spent <= of_all.burst + of_all.per_s * longest_s
    assert spent <= peers * (of_peer.burst + of_peer.per_s * longest_s)
    assert spent >= (of_peer.per_s / 2 if peers == 1 else of_all.per_s) * longest_s * 0.9


def test_flooding_peer_leaves_allowance_for_others():
    listens = announcements.AnnouncementLimits(FAST, peers=1000)
    many, some = alone(*range(1, 100_001)), alone(*range(1, 101))
    for turn in range(100):
        listens.admit_chunks("flood", many, turn / 10, lookups=50)
    assert listens.admit_chunks("other", some, 10.0, lookups=50) == some


def test_lookups_are_charged_for_segments_and_not_for_their_chunks():
    listens = announcements.AnnouncementLimits(FAST, peers=10)
    some = [(ids.Oid(number), 0xFFFF) for number in range(1, 1000)]
    accepted, most = [], announcements.LOOKUPS_OF_PEER.burst / 50
    for _ in range(2):
        accepted += listens.admit_chunks("h1", some[:250], 0.0, lookups=50)
    assert len(accepted) == most and segments.count(accepted) == 16 * most


def test_peer_that_caused_lookups_is_ignored_until_its_allowance_refills():
    listens, rate = announcements.AnnouncementLimits(FAST, peers=10), announcements.LOOKUPS_OF_PEER
    listens.charge_lookups("h1", rate.burst + 1000, 0.0)
    assert listens.lookups_left("h1", 0.0) == 0 < listens.lookups_left("h2", 0.0)
    left = [len(listens.admit_chunks("h1", alone(7), now)) for now in (0.0, 0.02, 0.03)]
    assert left == [0, 0, 1]


def test_number_of_remembered_peers_is_bounded():
    listens = announcements.AnnouncementLimits(FAST, peers=10)
    for number in range(100):
        assert len(listens.admit_chunks(f"h{number}", alone(1, 2, 3), 0.0)) == 3
        assert len(listens) <= 10


def test_clock_that_jumps_back_gives_no_allowance():
    listens = announcements.AnnouncementLimits(token_buckets.Rate(10.0, 20.0), peers=10)
    some, times = alone(*range(1, 21)), (1000.0, 0.0, 1000.0, 1001.0)
    assert [len(listens.admit_chunks("h1", some, now)) for now in times] == [20, 0, 0, 10]


def test_penalized_peer_is_ignored_until_its_allowance_refills():
    listens = announcements.AnnouncementLimits(token_buckets.Rate(10.0, 20.0), peers=10)
    listens.penalize_peer("h1", 1000, 0.0)
    times = 0.0, 2.0, 2.5
    assert [len(listens.admit_chunks("h1", alone(1, 2, 3), now)) for now in times] == [0, 0, 3]
