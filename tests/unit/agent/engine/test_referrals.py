# SPDX-License-Identifier: Apache-2.0
"""Referrals: a bounded tree of hosts for each chunk."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import priority
from acstor_agent.engine.data_structures import generational_cache
from acstor_agent.engine.data_structures import host_interning
from acstor_agent.engine.serve import referrals
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from tests.fakes import one_machine

PEER, READAHEAD, PREFETCH = (
    priority.Priority.PEER,
    priority.Priority.READAHEAD,
    priority.Priority.PREFETCH,
)


def numbered(oid):
    """Return a chunk with this OID."""
    return one_machine.chunk(1)._replace(oid=ids.Oid(oid))


REF = numbered(7)


def host(number):
    return ids.HostId(f"h{number}")


def make(**more):
    return referrals.Referrals(host_interning.HostInterning(), **more)


def tree_of(known, hosts, direct=2):
    """Let hosts ask in this order, the first served directly; return the referral of each other."""
    parents = {}
    for number, requester in enumerate(hosts):
        reported = () if number < direct else known.referrals_for(REF, requester, PEER)
        if reported:
            parents[requester] = reported[0]
        else:
            known.record_served([REF], requester, PEER)
    return parents


def depth(parents, requester):
    return 1 + depth(parents, parents[requester]) if requester in parents else 0


def test_first_and_repeated_requesters_get_no_referral():
    known = make()
    assert known.referrals_for(REF, host(1), PEER) == ()
    tree_of(known, [host(n) for n in range(4)])
    assert known.referrals_for(REF, host(3), PEER) == ()


@given(st.permutations([host(n) for n in range(20)]))
def test_referral_names_only_earlier_requesters(hosts):
    parents = tree_of(make(), hosts)
    assert set(parents) == set(hosts[2:])
    assert all(
        hosts.index(parent) < hosts.index(requester) for requester, parent in parents.items()
    )


def test_tree_of_a_thousand_hosts_has_bounded_fan_out_and_depth():
    hosts = [host(n) for n in range(1000)]
    parents = tree_of(make(), hosts)
    assert max(collections.Counter(parents.values()).values()) <= referrals.FAN_OUT
    assert max(depth(parents, requester) for requester in hosts) <= 12


def test_referrals_spread_load_over_hosts():
    known = make()
    sent = collections.Counter()
    for oid in range(200):
        for n in range(16):
            reported = known.referrals_for(numbered(oid), host(n), PEER) if n > 1 else ()
            if reported:
                sent[reported[0]] += 1
            else:
                known.record_served([numbered(oid)], host(n), PEER)
    assert max(sent.values()) < 2.5 * sum(sent.values()) / 16


def test_referral_never_names_a_host_with_a_lower_priority():
    known = make()
    known.record_served([REF], host(1), PREFETCH)
    assert known.referrals_for(REF, host(2), PEER) == ()
    assert known.referrals_for(REF, host(3), PREFETCH) == (host(1),)


def test_referral_omits_a_forgotten_host_until_it_asks_again():
    known = make()
    known.record_served([REF], host(1), PEER)
    known._keys.forget_host(host(1))
    assert known.referrals_for(REF, host(2), PEER) == ()
    known.record_served([REF], host(1), PEER)
    assert known.referrals_for(REF, host(3), PEER) == (host(1),)


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=400))
def test_packed_tree_agrees_with_a_reference_model(asks):
    """Other bytes that look alike do not confuse the search in the packed table."""
    known, order, below = make(), [], {}
    for n in range(301):
        known._keys.key_of(host(n))
    for n, is_given in asks:
        reported = () if is_given else known.referrals_for(REF, host(n), PEER)
        if n in order:
            assert reported == ()
        elif not is_given:
            able = [m for m in order if below[m] < referrals.FAN_OUT]
            assert bool(reported) == bool(able) and all(t in map(host, able) for t in reported)
            assert len(reported) == min(len(able), referrals.CHOICE)
        if reported:
            below[int(reported[0][1:])] += 1
        if is_given:
            known.record_served([REF], host(n), PEER)
        if is_given or reported:
            if n in order:
                order.remove(n)
            order.append(n)
            below.setdefault(n, 0)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(1, 5))
def test_surplus_copies_are_reported_once_least_recent_requester_first(asks, limit):
    known, last, reported = make(), {}, set()
    for at, n in enumerate(asks):
        known.record_served([REF], host(n), PEER)
        last[host(n)] = at
        reported.discard(host(n))
        surplus = known.take_surplus(REF, limit)
        keeping = [h for h in last if h not in reported]
        assert (surplus is not None) == (len(keeping) > limit)
        if surplus is not None:
            assert surplus == min(keeping, key=last.__getitem__)
            reported.add(surplus)


# Segments

LENGTH = 4


def segment(name=7, length=LENGTH):
    """Return the chunks of a segment."""
    return [
        one_machine.chunk(at)._replace(segment=ids.Oid(name), bit=1 << at) for at in range(length)
    ]


def test_referral_names_only_hosts_that_got_that_chunk():
    known, some = make(), segment()
    known.record_served(some[:2], host(1), PEER)
    reported = [known.referrals_for(ref, host(2), PEER) for ref in some]
    assert reported == [(host(1),), (host(1),), (), ()]
    assert [known.referrals_for(ref, host(2), PEER) for ref in some] == [()] * LENGTH


def test_record_served_returns_chunks_served_before():
    known, some = make(), segment()
    assert known.record_served(some[:2], host(1), PEER) == []
    assert known.record_served(some[1:], host(2), PEER) == [some[1].oid]
    assert known.record_served(some, host(3), PEER) == [ref.oid for ref in some]


def test_chunk_of_a_host_keeps_the_priority_of_its_first_request():
    known, some = make(), segment()
    for ref, asked in zip(some, (PEER, READAHEAD, PREFETCH), strict=False):
        known.record_served([ref], host(1), asked)
        known.record_served([ref], host(1), PEER)
    for requester, asked in enumerate((PEER, READAHEAD, PREFETCH), start=2):
        reported = [known.referrals_for(ref, host(requester), asked) for ref in some[:3]]
        assert [bool(hosts) for hosts in reported] == [requester > at for at in (1, 2, 3)]


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 15), st.booleans()), min_size=1, max_size=150
    )
)
def test_each_chunk_has_a_tree_of_the_hosts_that_have_it(asks):
    known, some = make(), segment()
    had_at = [{} for _ in some]  # when a host came to have a chunk
    children = collections.Counter()
    for now, (n, bits, is_given) in enumerate(asks):
        wanted = [(ref, times) for ref, times in zip(some, had_at, strict=True) if ref.bit & bits]
        for ref, times in wanted:
            reported = () if is_given else known.referrals_for(ref, host(n), PEER)
            assert all(times[one] < now for one in reported)
            assert host(n) not in reported and not (reported and host(n) in times)
            children[reported[:1], ref.bit] += 1
            if reported:
                times[host(n)] = now
        if is_given:
            known.record_served([ref for ref, _ in wanted], host(n), PEER)
            for _, times in wanted:
                times.setdefault(host(n), now)
    assert all(
        not reported or count <= referrals.FAN_OUT for (reported, _), count in children.items()
    )


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 15)), min_size=1, max_size=100),
    st.integers(1, 3),
)
def test_surplus_copies_are_reported_once_for_each_chunk(asks, limit):
    known, some = make(), segment()
    order, copies = [], collections.defaultdict(set)
    for n, bits in asks:
        refs = [ref for ref in some if ref.bit & bits]
        known.record_served(refs, host(n), PEER)
        order = [one for one in order if one != host(n)] + [host(n)]
        for ref in refs:
            copies[ref.bit].add(host(n))
        for ref in some:
            surplus = known.take_surplus(ref, limit)
            keeping = [one for one in order if one in copies[ref.bit]]
            assert surplus == (keeping[0] if len(keeping) > limit else None)
            copies[ref.bit].discard(surplus)


def test_new_segment_length_clears_the_referrals():
    hosts = one_machine.table(8).hosts
    machine = one_machine.Machine(table=hash_ring.Ring(1, hosts, segment_chunks=LENGTH))
    known = machine.core.requests.copies.referrals
    known.record_served(segment(), host(2), PEER)
    machine.table_changed(hash_ring.Ring(2, hosts, segment_chunks=LENGTH), machine.table)
    assert len(known) == 1
    machine.table_changed(hash_ring.Ring(3, hosts), machine.table)
    assert not len(known)


def test_referral_tables_are_bounded_and_keep_used_entries():
    known = make(limit_bytes=100_000)
    for oid in range(20_000):
        known.record_served([numbered(oid)], host(oid % 50), PEER)
        known.record_served([numbered(0)], host(0), PEER)
    assert len(known) <= 100_000 // referrals.OVERHEAD_BYTES
    for number in range(100 * 300):  # entries with a hundred hosts take more memory
        known.record_served([numbered(number // 100)], host(number % 100), PEER)
    assert len(known) <= 100_000 // (referrals.OVERHEAD_BYTES + 400)
    known.record_served([numbered(0)], host(0), PEER)
    assert known.referrals_for(numbered(0), host(1), PEER) == (host(0),)
    for n in range(5000):
        known.record_served([REF], host(n), PEER)
    assert known.referrals_for(REF, host(referrals.HOSTS - 1), PEER) == ()  # it is in the tree
    assert len(known._known.get(REF.ring_position)) == 4 + referrals.HOSTS * 15


def test_interned_host_keys_are_bounded_and_reused():
    keys = host_interning.HostInterning()
    for n in range(3 * host_interning.HOSTS):
        key = keys.key_of(host(n))
        assert keys.host_of(key) == host(n) and len(keys) <= host_interning.HOSTS
    assert keys.get(host(0)) is None and host(n) in keys.list_hosts()


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=400), st.integers(2, 20))
def test_generational_cache_keeps_the_most_recent_half_of_its_limit(uses, limit):
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
