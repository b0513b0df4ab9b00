# SPDX-License-Identifier: Apache-2.0
"""Whom to send a requester to: a tree for each content, bounded, and cheap."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import generational_cache
from acstor_agent.engine import host_interning
from acstor_agent.engine import priority
from acstor_agent.engine.serve import referrals
from acstor_common import ids

PEER, LATER = priority.Priority.PEER, priority.Priority.LATER
OID = ids.Oid(7)


def host(number):
    return ids.HostId(f"h{number}")


def make(**more):
    return referrals.Referrals(host_interning.HostInterning(), **more)


def tree_of(known, hosts, direct=2):
    """Let hosts ask in this order, the first ones served directly; return who was sent to whom."""
    parents = {}
    for number, asker in enumerate(hosts):
        told = () if number < direct else known.refer(OID, asker, PEER)
        if told:
            parents[asker] = told[0]
        else:
            known.gave(OID, asker, PEER)
    return parents


def depth(parents, asker):
    return 1 + depth(parents, parents[asker]) if asker in parents else 0


def test_first_requester_is_sent_to_nobody_and_neither_is_one_that_comes_again():
    known = make()
    assert known.refer(OID, host(1), PEER) == ()
    tree_of(known, [host(n) for n in range(4)])
    assert known.refer(OID, host(3), PEER) == ()


@given(st.permutations([host(n) for n in range(20)]))
def test_nobody_is_sent_to_a_host_that_came_later(hosts):
    parents = tree_of(make(), hosts)
    assert set(parents) == set(hosts[2:])
    assert all(hosts.index(parent) < hosts.index(asker) for asker, parent in parents.items())


def test_tree_of_a_thousand_is_no_deeper_than_it_must_be():
    hosts = [host(n) for n in range(1000)]
    parents = tree_of(make(), hosts)
    assert max(collections.Counter(parents.values()).values()) <= referrals.FAN_OUT
    assert max(depth(parents, asker) for asker in hosts) <= 12


def test_work_is_shared_whoever_comes_first():
    known = make()
    sent = collections.Counter()
    for oid in range(200):
        for n in range(16):
            told = known.refer(ids.Oid(oid), host(n), PEER) if n > 1 else ()
            if told:
                sent[told[0]] += 1
            else:
                known.gave(ids.Oid(oid), host(n), PEER)
    assert max(sent.values()) < 2.5 * sum(sent.values()) / 16


def test_nobody_is_sent_to_one_who_asked_with_less_urgency():
    known = make()
    known.gave(OID, host(1), LATER)
    assert known.refer(OID, host(2), PEER) == ()
    assert known.refer(OID, host(3), LATER) == (host(1),)


def test_nobody_is_sent_to_a_host_that_is_forgotten_until_it_asks_again():
    known = make()
    known.gave(OID, host(1), PEER)
    known._keys.forget(host(1))
    assert known.refer(OID, host(2), PEER) == ()
    known.gave(OID, host(1), PEER)
    assert known.refer(OID, host(3), PEER) == (host(1),)


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=400))
def test_what_is_packed_says_what_a_plain_tree_says(asks):
    """Whoever has room and came first, by number, is found among other bytes that look like it."""
    known, order, below = make(), [], {}
    for n in range(301):
        known._keys.of(host(n))
    for n, is_given in asks:
        told = () if is_given else known.refer(OID, host(n), PEER)
        if n in order:
            assert told == ()
        elif not is_given:
            able = [m for m in order if below[m] < referrals.FAN_OUT]
            assert bool(told) == bool(able) and all(t in map(host, able) for t in told)
            assert len(told) == min(len(able), referrals.CHOICE)
        if told:
            below[int(told[0][1:])] += 1
        if is_given:
            known.gave(OID, host(n), PEER)
        if is_given or told:
            if n in order:
                order.remove(n)
            order.append(n)
            below.setdefault(n, 0)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(1, 5))
def test_copies_over_the_limit_are_told_once_the_one_that_asked_longest_ago_first(asks, limit):
    known, last, told = make(), {}, set()
    for at, n in enumerate(asks):
        known.gave(OID, host(n), PEER)
        last[host(n)] = at
        told.discard(host(n))
        surplus = known.take_surplus(OID, limit)
        keeping = [h for h in last if h not in told]
        assert (surplus is not None) == (len(keeping) > limit)
        if surplus is not None:
            assert surplus == min(keeping, key=last.__getitem__)
            told.add(surplus)


def test_tables_are_bounded_and_keep_what_was_used():
    known = make(limit_bytes=100_000)
    for oid in range(20_000):
        known.gave(ids.Oid(oid), host(oid % 50), PEER)
        known.gave(ids.Oid(0), host(0), PEER)
    assert len(known) <= 100_000 // referrals.OVERHEAD_BYTES
    for number in range(100 * 300):  # a hundred hosts of each take more than one does
        known.gave(ids.Oid(number // 100), host(number % 100), PEER)
    assert len(known) <= 100_000 // (referrals.OVERHEAD_BYTES + 400)
    known.gave(ids.Oid(0), host(0), PEER)
    assert known.refer(ids.Oid(0), host(1), PEER) == (host(0),)
    for n in range(5000):
        known.gave(OID, host(n), PEER)
    assert known.refer(OID, host(referrals.HOSTS - 1), PEER) == ()  # it is in the tree
    assert len(known._known.get(OID)) == (1 + referrals.HOSTS) * 4


def test_keys_go_to_others_when_all_had_their_turn():
    keys = host_interning.HostInterning()
    for n in range(3 * host_interning.HOSTS):
        key = keys.of(host(n))
        assert keys.host(key) == host(n) and len(keys) <= host_interning.HOSTS
    assert keys.get(host(0)) is None and host(n) in keys.known()


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=400), st.integers(2, 20))
def test_generations_keep_the_last_half_of_what_was_used_and_never_more_than_all(uses, limit):
    table = generational_cache.GenerationalCache(limit)
    recent = collections.OrderedDict()
    for key, is_put in uses:
        if is_put:
            table.put(key, key)
        elif table.get(key) is None:
            continue
        recent[key] = None
        recent.move_to_end(key)
        assert len(table) <= max(limit, 2)
        for used in list(recent)[-(limit // 2) :]:
            assert used in table.keys()
