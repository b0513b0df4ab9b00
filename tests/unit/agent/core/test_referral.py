# SPDX-License-Identifier: Apache-2.0
import collections
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.exchange import gossip
from acstor_agent.core.exchange import referral
from acstor_common import ids


def cid(number):
    return ids.cid_of(number.to_bytes(4, "big"))


def tree_of(referrals, chunk, hosts, direct=2):
    """Let hosts ask in this order, the first ones served directly; return who was sent to whom."""
    parents = {}
    for number, host in enumerate(hosts):
        told = () if number < direct else referrals.refer(chunk, host)
        if told:
            parents[host] = told[0]
        else:
            referrals.served(chunk, host)
    return parents


def depth(parents, host):
    return 1 + depth(parents, parents[host]) if host in parents else 0


def test_first_requester_is_sent_to_nobody():
    assert referral.Referrals().refer(cid(1), "h1") == ()


def test_requester_that_comes_again_was_let_down_and_is_sent_to_nobody():
    referrals = referral.Referrals()
    tree_of(referrals, cid(1), ["h1", "h2", "h3", "h4"])
    assert referrals.refer(cid(1), "h4") == ()


@given(st.permutations([f"h{n}" for n in range(20)]))
def test_nobody_is_sent_to_a_host_that_came_later(hosts):
    parents = tree_of(referral.Referrals(), cid(1), hosts)
    assert set(parents) == set(hosts[2:])
    assert all(hosts.index(parent) < hosts.index(host) for host, parent in parents.items())


def test_tree_of_one_chunk_is_no_deeper_than_it_must_be():
    hosts = [f"h{n}" for n in range(31)]
    parents = tree_of(referral.Referrals(), cid(1), hosts)
    below = collections.Counter(parents.values())
    assert max(below.values()) <= referral.FAN_OUT
    assert max(depth(parents, host) for host in hosts) <= 6


def test_work_is_shared_evenly_whoever_comes_first():
    referrals = referral.Referrals()
    hosts = [f"h{n}" for n in range(15)]
    work = collections.Counter()
    for number in range(200):  # always in the same order: the worst case
        work.update(tree_of(referrals, cid(number), hosts).values())
    givers = [work[host] for host in hosts[:-1]]  # the last to come can never give
    assert max(givers) <= 1.6 * sum(givers) / len(givers)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(referral, "CHUNKS", 10)
    monkeypatch.setattr(referral, "HOLDERS", 20)
    referrals = referral.Referrals()
    for number in range(50):
        tree_of(referrals, cid(number), [f"h{n}" for n in range(100)])
    assert len(referrals._holders) == 10
    assert max(map(len, referrals._holders.values())) == referral.HOLDERS
    assert sum(referrals._load.values()) == len(referrals._recent) <= referral.RECENT


@pytest.mark.parametrize("seed", range(3))
def test_present_load_forgets_what_was_long_ago(seed):
    rng = random.Random(seed)
    referrals = referral.Referrals()
    for number in range(referral.RECENT):
        tree_of(referrals, cid(number), ["old", "h2", "h3"], direct=1)
    for number in range(referral.RECENT, 3 * referral.RECENT):
        tree_of(referrals, cid(number), rng.sample(["a", "b", "c", "d"], 4), direct=1)
    assert "old" not in referrals._load


def test_nobody_is_sent_to_a_host_that_may_have_to_wait_longer():
    referrals = referral.Referrals()
    referrals.served(cid(1), "prefetches", urgency=gossip.Urgency.PREFETCH)
    assert referrals.refer(cid(1), "reads", gossip.Urgency.READ_AHEAD) == ()
    referrals.served(cid(1), "reads", urgency=gossip.Urgency.READ_AHEAD)
    assert referrals.refer(cid(1), "waits", gossip.Urgency.DEMAND) == ()
    assert referrals.refer(cid(1), "reads too", gossip.Urgency.READ_AHEAD) == ("reads",)
