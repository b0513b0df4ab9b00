# SPDX-License-Identifier: Apache-2.0
"""Selection of holders, retries, losses, source preference and image homes."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.fetch import retries
from acstor_agent.engine.fetch import source_preference
from acstor_agent.engine.ring import placement
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_request
from acstor_policies import topologies
from tests.fakes import one_machine
from tests.fakes.one_machine import announced
from tests.fakes.one_machine import chunk

F, P, Mode = failure.Failure, priority.Priority, peer_request.Mode
H2, H3, H4 = map(ids.HostId, ("h2", "h3", "h4"))
OTHER = one_machine.OTHER


@pytest.fixture
def machine():
    return one_machine.Machine(topology=topologies.all_hosts)


# Holders


def test_holder_with_fewest_requests_in_flight_is_asked_first(machine):
    first, second = (machine.chunk_of("h2", skip) for skip in range(2))
    machine.announcement_received(H3, announced(chunk(first), chunk(second)), [], [])
    machine.announcement_received(H4, announced(chunk(second)), [], [])
    machine.request_chunks([chunk(first)], P.ADVERTISED, 1)
    assert machine.asks() == {"h3": [(first, Mode.HELD)]}
    machine.request_chunks([chunk(second)], P.ADVERTISED, 2)
    assert machine.asks() == {"h4": [(second, Mode.HELD)]}


def test_deprioritized_host_is_not_asked_as_a_holder():
    table = one_machine.table(8, weights={"h3": 5})
    machine = one_machine.Machine(table=table, topology=topologies.all_hosts)
    assert table.is_deprioritized(H3)
    number = machine.chunk_of("h2")
    machine.announcement_received(H3, announced(chunk(number)), [], [])
    machine.request_chunks([chunk(number)], P.GUEST, "a guest")
    assert machine.asks() == {"h2": [(number, Mode.HOME)]}


def test_holder_in_another_group_by_a_new_table_is_not_asked(machine):
    """Only homes fetch chunks from other groups."""
    hosts = tuple(
        hash_ring.RingHost(h.host, h.address, h.vnodes, "p2" if h.host == "h3" else "p1")
        for h in machine.table.hosts
    )
    apart = hash_ring.Ring(2, hosts, 1)
    number = next(
        n for n in range(999) if apart.group_of(machine.here).home_at(chunk(n).oid) == "h2"
    )
    machine.announcement_received(H3, announced(chunk(number)), [], [])
    machine.table_changed(apart, None)
    assert not machine.core.context.ring.is_near(H3)
    machine.request_chunks([chunk(number)], P.GUEST, "a guest")
    assert machine.asks() == {"h2": [(number, Mode.HOME)]}


# Retries and losses


def test_chunk_is_not_lost_soon_after_a_host_left_the_table():
    """The host may come back with the only copy."""
    machine = one_machine.Machine(hosts=3, lost_after_s=30.0)
    machine.request_chunks([chunk(machine.chunk_of("h1"))], P.GUEST, "a guest")

    def no(*_):
        return F.MISSING

    assert not machine.play(10.0, no, no)
    hosts = tuple(host for host in machine.table.hosts if host.host != "h3")
    machine.table_changed(hash_ring.Ring(2, hosts), None)
    assert not machine.play(25.0, no, no)
    done = machine.play(25.0, no, no)
    assert done["a guest"].failure is F.LOST


def test_recovered_source_wakes_only_some_of_the_paused_retries():
    machine = one_machine.Machine(1)
    machine.request_chunks([chunk(n) for n in range(20)], P.GUEST, "many")
    machine.play(20.0, source=lambda _: F.UNREACHABLE)  # retry delays reach their maximum
    paused = [t for t in machine.core.context.transfers.values() if t.retry is not None]
    assert len(paused) > retries.WOKEN + 1
    one = paused[-1].first_ref
    machine.request_chunks([one], P.GUEST, "one more")
    [read] = machine.got(actions.ReadSource)
    machine.source_read_progressed(read.number, [(0, b"it is back")])
    woken = [ref for read in machine.got(actions.ReadSource) for ref in read.refs]
    assert len(woken) == retries.WOKEN and one not in woken


# Joining


def test_cancelled_guest_does_not_drop_the_image_a_peer_waits_for():
    machine = one_machine.Machine()
    number = machine.chunk_of("h1")
    machine.request_chunks([chunk(number)], P.GUEST, "stays")
    machine.request_chunks([chunk(number)], P.GUEST, "leaves")
    machine.ask_me("h2", machine.request(number, "h2", image_id=OTHER))
    machine.cancel_reads("leaves")
    [made] = machine.core.context.transfers.values()
    assert {name[0].image_id for name in made.names} == {one_machine.IMAGE, OTHER}


def test_abandoned_source_read_survives_if_readahead_joins_it():
    machine = one_machine.Machine(1)
    mine, theirs = range(0, 14, 2), range(1000, 1028, 2)
    machine.request_chunks([chunk(n) for n in mine], P.GUEST, "leaves")
    machine.cancel_reads("leaves")
    machine.request_chunks([chunk(0)], P.READAHEAD, None)
    machine.request_chunks([chunk(n) for n in theirs], P.GUEST, "comes")
    for _ in mine:
        machine.cache_space_changed(True)  # one at each event
    left = {
        t.first_ref.offset // one_machine.CHUNK for t in machine.core.context.transfers.values()
    }
    assert 0 in left and not left & set(mine[1:])


# Peers or the source first


def usual(peers_s, source_s, count=source_preference.MIN_ANSWERS, now=1.0):
    preference = source_preference.SourcePreference()
    for _ in range(count):
        preference.record_peer_wait(peers_s, now)
        preference.record_source_wait(source_s, now)
    return preference


def test_source_goes_first_only_after_enough_recent_responses():
    assert usual(0.3, 0.01).choose_source_first(1.0)
    assert not usual(0.3, 0.01, source_preference.MIN_ANSWERS - 1).choose_source_first(1.0)
    assert not usual(0.3, 0.01).choose_source_first(1.0 + source_preference.RECENT_S + 1)


def test_peers_go_first_again_when_they_are_nearly_as_fast():
    assert not usual(0.15, 0.1).choose_source_first(1.0)
    preference = usual(0.3, 0.1)
    assert preference.choose_source_first(1.0)
    for _ in range(40):
        preference.record_peer_wait(0.15, 1.0)
    preference.choose_source_first(1.0)
    assert preference.is_source_first
    for _ in range(40):
        preference.record_peer_wait(0.11, 1.0)
    assert not preference.choose_source_first(1.0) and not preference.is_source_first


def test_one_slow_response_does_not_change_the_preference():
    preference = usual(0.01, 0.01)
    preference.record_peer_wait(100.0, 1.0)
    assert not preference.choose_source_first(1.0)


def test_unknown_source_is_probed_while_peers_are_slow():
    for peers_s, probes in ((0.3, 2), (0.05, 0)):
        preference = source_preference.SourcePreference()
        for _ in range(source_preference.MIN_ANSWERS):
            preference.record_peer_wait(peers_s, 1.0)
        decided = [
            preference.choose_source_first(1.0) for _ in range(2 * source_preference.PROBE_SOURCE)
        ]
        assert decided.count(True) == probes


def test_timers_due_at_the_same_time_fire_in_insertion_order():
    heap = timers.Timers()
    for what in range(5):
        heap.set_timer(1.0, timers.Due.RETRY, what)
    assert [heap.pop_due(1.0)[1] for _ in range(5)] == list(range(5))


# The image's home


def whole_machine(given=placement.SourceAccess.WHOLE):
    """Return a machine whose source yields IMAGE only as a whole, and the image's home."""
    table = one_machine.table(8)
    home = placement.image_home(table, one_machine.IMAGE)
    here = next(host.host for host in table.hosts if host.host != home)
    machine = one_machine.Machine(
        here=here,
        table=table,
        source_access=lambda image_id, offset: (
            given if image_id == one_machine.IMAGE else placement.SourceAccess.IN_PARTS
        ),
    )
    return machine, home


def test_image_home_is_asked_before_a_source_without_range_reads():
    machine, home = whole_machine()
    number = machine.chunk_of(machine.here)
    machine.request_chunks([chunk(number)], P.GUEST, "a guest")
    assert machine.asks() == {home: [(number, Mode.RELAYED)]}
    assert not machine.got(actions.ReadSource)
    other = machine.chunk_of(machine.here, 1)
    machine.request_chunks([chunk(other, OTHER)], P.GUEST, "a guest of another image")
    assert len(machine.got(actions.ReadSource)) == 1
    assert machine.asks() == {}


def test_image_home_that_withholds_is_asked_again_without_backoff():
    machine, home = whole_machine()
    number = machine.chunk_of(machine.here)
    machine.request_chunks([chunk(number)], P.GUEST, "a guest")
    asked = []

    def peer(host, *_):
        asked.append(host)
        return F.WITHHELD

    done = machine.play(5.0, peer, lambda *_: F.WITHHELD)
    assert not done
    assert asked.count(home) > 2
    assert not machine.core.context.peers.list_backoffs(machine.now)


def test_image_home_itself_reads_the_source():
    table = one_machine.table(8)
    home = placement.image_home(table, one_machine.IMAGE)
    machine = one_machine.Machine(
        here=home, table=table, source_access=lambda *_: placement.SourceAccess.WHOLE
    )
    machine.request_chunks([chunk(machine.chunk_of(home))], P.GUEST, "a guest")
    assert len(machine.got(actions.ReadSource)) == 1


def test_host_with_a_full_download_asks_no_peer():
    machine, _ = whole_machine(placement.SourceAccess.WHOLE_HERE)
    machine.request_chunks([chunk(machine.chunk_of(machine.here))], P.GUEST, "a guest")
    assert len(machine.got(actions.ReadSource)) == 1
    assert machine.asks() == {}


def test_former_home_of_an_image_is_asked_first_and_the_new_one_last():
    machine, home = whole_machine()
    hosts = tuple(host for host in machine.table.hosts if host.host != home)
    after = hash_ring.Ring(2, hosts)
    new = placement.image_home(after, one_machine.IMAGE)
    machine.table_changed(after, machine.table)
    found = machine.core.context.ring.with_image_homes([H3], one_machine.IMAGE)
    assert found == [host for host in (home, H3, new) if host != machine.here]
