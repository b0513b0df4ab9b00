# SPDX-License-Identifier: Apache-2.0
"""Announcements and eviction hints: their contents, recipients and limits."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine.data_structures import host_interning
from acstor_agent.engine.gossip import announcements
from acstor_agent.engine.gossip import location_index
from acstor_common.model import ids
from acstor_policies import topologies
from tests.fakes import one_machine
from tests.fakes.one_machine import announced
from tests.fakes.one_machine import chunk

Priority = priority.Priority
OID = ids.Oid(7)
SEVEN = (OID, 1)
H2, H3, H5 = map(ids.HostId, ("h2", "h3", "h5"))


def host(number):
    return ids.HostId(f"h{number}")


def numbered(*oids):
    """Return chunks with these OIDs."""
    return [chunk(1)._replace(oid=ids.Oid(oid)) for oid in oids]


REF = numbered(OID)[0]


def arrived(number, giver=None):
    one = chunk(number)
    how = None, False, True, Priority.GUEST
    return actions.ArrivedRun((one,), (one.key,), (b"",), giver, *how)


@pytest.fixture
def machine():
    return one_machine.Machine(topology=topologies.all_hosts, copies_limit=1)


def backoff(machine, name):
    """Put a host in backoff for invalid data."""
    machine.request_chunks([chunk(machine.chunk_of(name))], Priority.GUEST, "t")
    machine.peer_refused(ids.HostId(name), [(machine.attempt().number, failure.Failure.INVALID)])
    assert machine.core.context.peers.is_in_backoff(ids.HostId(name), machine.now)


def announced_to(machine, seconds=0.2):
    """Return the announcements of the next seconds by host: held, evicted, evictable."""
    machine.wait(seconds)
    return {tell.host: tell[1:4] for tell in machine.got(actions.SendAnnouncement)}


# Location index


def test_only_the_announcing_host_can_withdraw_or_deny_a_chunk():
    known = location_index.LocationIndex(host_interning.HostInterning())
    known.add_holder(host(1), [SEVEN])
    known.remove_holder(host(2), [SEVEN])
    assert not known.record_denial(host(2), REF) and known.holders_of_chunk(REF) == [host(1)]
    assert (
        known.record_denial(host(1), REF) and known.holders_of_chunk(REF) == [] and not len(known)
    )


def test_location_index_keeps_the_latest_holders():
    known = location_index.LocationIndex(host_interning.HostInterning())
    for n in range(9):
        known.add_holder(host(n), [SEVEN])
    assert known.holders_of_chunk(REF) == [host(n) for n in range(5, 9)]


def test_forgotten_host_holds_only_what_it_announces_again():
    keys = host_interning.HostInterning()
    known = location_index.LocationIndex(keys)
    known.add_holder(host(1), announced(*numbered(7, 8)))
    keys.forget_host(host(1))
    assert known.holders_of_chunk(REF) == []
    known.add_holder(host(1), [SEVEN])
    assert known.holders_of_chunk(REF) == [host(1)] and known.holders_of_chunk(*numbered(8)) == []


def test_announcements_of_one_host_add_up():
    keys = host_interning.HostInterning()
    known = location_index.LocationIndex(keys)
    segment = ids.Oid(3)
    first, second, third = (REF._replace(segment=segment, bit=bit) for bit in (1, 2, 4))
    for bits in (1, 1, 2):
        known.add_holder(host(1), [(segment, bits)])
    known.add_holder(host(2), [(segment, 4)])
    assert known.holders_of_segment(segment) == [(host(1), 3), (host(2), 4)]
    assert [*map(known.holders_of_chunk, (first, second, third))] == [
        [host(1)],
        [host(1)],
        [host(2)],
    ]
    assert known.list_announced() == [(segment, 7)]
    keys.forget_host(host(1))
    assert known.holders_of_segment(segment) == [(host(2), 4)]
    known.clear()
    assert known.list_announced() == []


def test_shared_entries_of_single_holders_are_bounded():
    known = location_index.LocationIndex(host_interning.HostInterning())
    count = 2 * location_index.SHARED_ENTRIES
    for n in range(count):
        known.add_holder(host(n), [(ids.Oid(n), 1)])
        assert len(known._alike) <= location_index.SHARED_ENTRIES + 1
    found = [known.holders_of_chunk(REF._replace(segment=ids.Oid(n))) for n in range(count)]
    assert found == [[host(n)] for n in range(count)]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(("announced", "withdrawn", "denied"))))
)
def test_holders_are_the_latest_announcers_that_did_not_withdraw(says):
    known, right = location_index.LocationIndex(host_interning.HostInterning()), []
    for n, what in says:
        if what == "announced":
            known.add_holder(host(n), [SEVEN])
        elif what == "denied":
            assert known.record_denial(host(n), REF) == (n in right)
        else:
            known.remove_holder(host(n), [SEVEN])
        right = [m for m in right if m != n]
        if what == "announced":
            right = [*right, n][-location_index.HOLDERS :]
        assert known.holders_of_chunk(REF) == [host(m) for m in right]


def test_location_index_is_bounded_and_keeps_used_entries():
    known = location_index.LocationIndex(host_interning.HostInterning(), limit=1000)
    for oid in range(20_000):
        known.add_holder(host(oid % 50), announced(*numbered(oid)))
        assert known.holders_of_chunk(*numbered(0)) == [host(0)]
    assert len(known) <= 1000


# Received announcements


def test_announcements_of_a_host_in_backoff_are_ignored(machine):
    backoff(machine, "h5")
    machine.announcement_received(H5, announced(chunk(1)), [], [])
    assert machine.core.context.locations.holders_of_chunk(chunk(1)) == [] and not machine.last
    machine.wait(3600)
    machine.announcement_received(H5, announced(chunk(1)), [], [])
    assert machine.core.context.locations.holders_of_chunk(chunk(1)) == [H5]


def test_host_that_left_the_table_is_no_holder(machine):
    machine.announcement_received(H5, announced(chunk(1)), [], [])
    machine.table_changed(one_machine.table(4, epoch=2), None)
    assert machine.core.context.locations.holders_of_chunk(chunk(1)) == []
    assert len(machine.core.context.host_keys) == 0
    machine.announcement_received(H5, announced(chunk(1)), [], [])
    assert machine.core.context.locations.holders_of_chunk(chunk(1)) == []


def test_each_announced_oid_costs_one_lookup_per_attached_image():
    few = one_machine.Machine(topology=topologies.all_hosts)
    many = one_machine.Machine(topology=topologies.all_hosts, attached=range(999))
    for found in (few, many):
        found.announcement_received(H5, announced(*numbered(*range(10_000))), [], [])
    assert few.core.counters.accepted_announcements == 10_000
    assert 15 < many.core.counters.accepted_announcements < 30


def test_eviction_hint_is_forwarded_only_from_the_home_of_the_chunk(machine):
    numbers = {name: machine.chunk_of(name) for name in ("h1", "h2", "h3")}
    hinted = announced(*map(chunk, numbers.values()))
    machine.announcement_received(H2, (), (), hinted)
    [forwarded] = machine.got(actions.ForwardAnnouncement)
    assert forwarded == (H2, (), [*announced(chunk(numbers["h2"]))])
    assert not machine.announcement_received(H5, (), (), hinted)


def test_evictions_beyond_the_allowance_are_ignored_until_it_refills(machine):
    machine.announcement_received(H5, [SEVEN], [], [])
    machine.announcement_received(H5, [], announced(*numbered(*range(100, 30_000))), [])
    machine.announcement_received(H5, [], [SEVEN], [])
    assert machine.core.context.locations.holders_of_chunk(REF) == [H5]
    assert machine.core.counters.ignored_announcements == 29_900 + 2 - 20_000
    machine.wait(1.0)
    machine.announcement_received(H5, [], [SEVEN], [])
    assert machine.core.context.locations.holders_of_chunk(REF) == []


def test_host_that_denies_chunks_it_announced_is_soon_ignored():
    machine, asked = one_machine.Machine(topology=topologies.all_hosts), 0
    numbers = (n for n in itertools.count() if machine.home_of(n) not in ("h1", "h5"))
    for turn in range(100):
        some = [chunk(next(numbers)) for _ in range(200)]
        machine.announcement_received(H5, announced(*some), [], [])
        believed = [one for one in some if machine.core.context.locations.holders_of_chunk(one)]
        asked += len(believed)
        for one in believed:
            machine.request_chunks([one], Priority.ADVERTISED, (turn, one.oid))
            machine.peer_refused(H5, [(machine.attempt().number, failure.Failure.MISSING)])
    assert 20_000 / 17 - 200 <= asked <= 20_000 / 17 + 200  # each costs one, and 16 for the denial
    assert machine.core.counters.false_announcements == asked
    machine.wait(2.0)
    machine.announcement_received(H5, [SEVEN], [], [])
    assert machine.core.context.locations.holders_of_chunk(REF) == [H5]  # but not forever


# Sent announcements


def test_announcements_are_batched_and_skip_providers_and_announcers(machine):
    machine.announcement_received(H3, announced(chunk(1)), [], [])
    machine.chunks_stored([arrived(1, H2), arrived(2)])
    assert not machine.got(actions.SendAnnouncement)
    reported = announced_to(machine)
    assert reported.pop("h2") == reported.pop("h3") == (announced(chunk(2)), (), ())
    assert len(reported) == 5 and set(reported.values()) == {
        (announced(chunk(1), chunk(2)), (), ())
    }
    machine.chunks_stored([arrived(1), arrived(2)])
    assert not announced_to(machine)  # nothing twice


def test_eviction_is_sent_to_hosts_that_got_the_announcement(machine):
    machine.chunks_stored([arrived(1, H2)])
    announced_to(machine)
    machine.chunks_evicted([chunk(1).cid])
    reported = announced_to(machine)
    assert "h2" not in reported and set(reported.values()) == {((), announced(chunk(1)), ())}


def test_record_of_announced_chunks_is_bounded_and_drops_the_oldest():
    machine = one_machine.Machine(2, topology=topologies.all_hosts)
    reported = machine.core.context.announcements._announced
    for first in range(0, 2 * announcements.REMEMBERED_CHUNKS, 512):
        refs = numbered(*range(first + 1, first + 513))
        machine.core.context.announcements.announce_chunks(refs, None, machine.now)
        assert len(reported) <= announcements.REMEMBERED_CHUNKS
    assert ids.Oid(1) not in reported and ids.Oid(2 * announcements.REMEMBERED_CHUNKS) in reported


def test_eviction_is_sent_to_a_neighbour_that_joined_later(machine):
    machine.chunks_stored([arrived(1, H2)])
    announced_to(machine)
    machine.table_changed(one_machine.table(9, epoch=2), None)
    machine.chunks_evicted([chunk(1).cid])
    reported = announced_to(machine)
    assert "h2" not in reported and reported["h9"] == ((), announced(chunk(1)), ())


def test_changes_undone_before_they_are_sent_are_not_announced(machine):
    machine.chunks_stored([arrived(1)])
    machine.chunks_evicted([chunk(1).cid])
    assert not announced_to(machine)
    machine.chunks_stored([arrived(1)])
    announced_to(machine)
    machine.chunks_evicted([chunk(1).cid])
    machine.chunks_stored([arrived(1)])
    assert not announced_to(machine)


def test_chunk_is_not_announced_to_a_host_that_announces_it_meanwhile(machine):
    machine.chunks_stored([arrived(1)])
    machine.announcement_received(H3, announced(chunk(1)), [], [])
    reported = announced_to(machine)
    assert "h3" not in reported and len(reported) == 6
    machine.chunks_evicted([chunk(1).cid])
    assert "h3" not in announced_to(machine)


def test_full_announcement_is_sent_at_once(machine):
    machine.chunks_stored([arrived(n) for n in range(announcements.BATCH_CHUNKS + 1)])
    assert {len(tell.held) for tell in machine.got(actions.SendAnnouncement)} == {
        announcements.BATCH_CHUNKS
    }
    assert {len(here) for here, _, _ in announced_to(machine).values()} == {1}


def test_new_neighbour_gets_the_latest_announcements(machine):
    machine.chunks_stored([arrived(n) for n in range(600)])
    announced_to(machine)
    machine.table_changed(one_machine.table(9, epoch=2), None)
    reported = machine.got(actions.SendAnnouncement)
    assert {tell.host for tell in reported} == {"h9"} and [len(t.held) for t in reported] == [
        512,
        88,
    ]


def test_lost_announcements_are_repeated_once_after_a_delay(machine):
    machine.chunks_stored([arrived(n) for n in range(600)])
    announced_to(machine)
    for _ in range(3):  # one call for each message
        machine.announcement_lost(H2)
    assert not announced_to(machine, announcements.REPEAT_FIRST_S - 0.1)
    machine.wait(0.2)
    reported = machine.got(actions.SendAnnouncement)
    assert {tell.host for tell in reported} == {H2} and [len(t.held) for t in reported] == [512, 88]
    assert not announced_to(machine, 10 * announcements.REPEAT_FIRST_S)


def test_repeats_to_an_unreachable_neighbour_back_off_exponentially(machine):
    machine.chunks_stored([arrived(1)])
    announced_to(machine)

    def waited_s():
        began_s = machine.now
        machine.announcement_lost(H2)
        while not announced_to(machine, 0.5):
            assert machine.now < began_s + 100
        return machine.now - began_s

    assert [waited_s() for _ in range(8)] == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])
    machine.announcement_received(H2, (SEVEN,), (), ())
    assert waited_s() == pytest.approx(announcements.REPEAT_FIRST_S)


def test_announcement_is_not_repeated_to_a_host_that_is_no_neighbour(machine):
    machine.chunks_stored([arrived(1)])
    announced_to(machine)
    machine.announcement_lost(ids.HostId("h9"))
    machine.announcement_lost(ids.HostId("h8"))
    machine.table_changed(one_machine.table(7, epoch=2), None)
    assert not announced_to(machine, 2 * announcements.REPEAT_FIRST_S)


def test_first_neighbour_gets_chunks_stored_before_it_joined():
    machine = one_machine.Machine(1, topology=topologies.all_hosts)
    machine.chunks_stored([arrived(1), arrived(2)])
    machine.chunks_evicted([chunk(2).cid])
    assert not announced_to(machine)
    machine.table_changed(one_machine.table(2, epoch=2), None)
    assert [(tell.host, tell.held) for tell in machine.got(actions.SendAnnouncement)] == [
        ("h2", announced(chunk(1)))
    ]


def test_host_in_backoff_gets_no_announcements(machine):
    backoff(machine, "h5")
    machine.chunks_stored([arrived(7)])
    reported = announced_to(machine)
    assert "h5" not in reported and len(reported) == 6


def test_host_in_backoff_or_off_the_table_gets_no_hints(machine):
    for name in ("h2", "h5", "h8"):
        machine.core.context.announcements.hint_eviction(ids.HostId(name), REF)
    backoff(machine, "h5")
    machine.table_changed(one_machine.table(7, epoch=2), None)
    assert announced_to(machine, announcements.HINT_EVERY_S + 0.1) == {"h2": ((), (), (SEVEN,))}
    assert not machine.core.context.announcements.hints


def test_hints_are_bounded_and_sent_in_batches():
    machine = one_machine.Machine(3000, copies_limit=1)
    waiting = machine.core.context.announcements
    for oid in range(2 * announcements.HINTS):
        waiting.hint_eviction(H2, *numbered(oid))
    assert len(waiting.hints[H2]) == announcements.HINTS
    for number in range(3, 2 * announcements.HINTS):
        waiting.hint_eviction(host(number), REF)
    assert len(waiting.hints) == announcements.HINTS and H2 not in waiting.hints
    for oid in range(600):
        waiting.hint_eviction(H2, *numbered(oid))
    waiting.withdraw_hint(H2, *numbered(599))
    reported = []
    while waiting.hints:
        machine.wait(announcements.HINT_EVERY_S)
        assert len(machine.got(actions.SendAnnouncement)) <= announcements.HINTED_AT_A_TIME
        reported += machine.got(actions.SendAnnouncement)
    assert [len(tell.evictable) for tell in reported if tell.host == H2] == [
        announcements.BATCH_CHUNKS,
        87,
    ]


def test_cost_of_a_stored_chunk_is_linear_in_neighbours():
    """With all hosts as neighbours the heap has one entry, and a flush looks at each host once."""

    def cost_s(count):
        machine = one_machine.Machine(count, topology=topologies.all_hosts)
        began_s = time.process_time()
        for number in range(20):
            machine.chunks_stored([arrived(number)])
            assert len(machine.core.context.timers) <= 1
            assert len(machine.wait(0.2)) == count - 1
        return time.process_time() - began_s

    assert cost_s(1000) < 40 * cost_s(100)  # quadratic cost would be 100 times as much
