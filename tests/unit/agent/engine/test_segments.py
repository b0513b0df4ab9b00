# SPDX-License-Identifier: Apache-2.0
"""Chunks of a segment have one home, and are announced together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine.data_structures import host_interning
from acstor_agent.engine.gossip import announcements
from acstor_agent.engine.gossip import location_index
from acstor_agent.engine.ring import placement
from acstor_agent.engine.ring import ring_view
from acstor_agent.engine.serve import authorization
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_request
from acstor_policies import topologies
from tests.fakes import one_machine
from tests.fakes.one_machine import announced
from tests.fakes.one_machine import chunk

GUEST = priority.Priority.GUEST
HERE, H2, H3, H8 = (ids.HostId(f"h{n}") for n in (1, 2, 3, 8))
LENGTH = 4


def in_segments(numbers):
    """Return chunks with the names of their segments."""
    found = []
    for number in numbers:
        start = number - number % LENGTH
        name = min(chunk(n).oid for n in range(start, start + LENGTH))
        found.append(chunk(number)._replace(segment=name, bit=1 << number % LENGTH))
    return found


def around(request):
    """Return the segments of a request as a host with the chunk map finds them."""
    asked = request.offset // one_machine.CHUNK
    first, stop = segments.covering(asked, asked + request.chunk_count, LENGTH, 10_000)
    cids = [chunk(number).cid for number in range(first, stop)]
    return authorization.Segments(cids, asked - first, one_machine.CHUNK, LENGTH)


@pytest.fixture
def machine():
    table = hash_ring.Ring(1, one_machine.table(8).hosts, segment_chunks=LENGTH)
    full = topologies.all_hosts
    made = one_machine.Machine(table=table, run_chunks=16, topology=full, copies_limit=1)
    made.maps.find_segments = around
    return made


def test_read_of_a_segment_is_one_request_to_one_home(machine):
    machine.request_chunks(in_segments(range(8, 16)), GUEST, "read")
    for start in (8, 12):
        some = in_segments(range(start, start + LENGTH))
        home = machine.core.context.ring.home(some[0].ring_position)
        assert len({ref.ring_position for ref in some}) == 1
        asked = machine.asks().get(home, [])
        assert home == "h1" or {number for number, _ in asked} >= {*range(start, start + LENGTH)}


def test_holders_of_a_segment_exclude_its_home_and_hosts_in_backoff(machine):
    some = in_segments(range(8, 12))
    home = machine.core.context.ring.home(some[0].ring_position)
    first, second, third = [h for h in machine.core.context.ring.other_hosts() if h != home][:3]
    said = ((first, some[:2]), (second, some[2:3]), (home, some[3:]), (third, some[3:]))
    for host, chunks in said:
        machine.announcement_received(host, announced(*chunks), [], [], LENGTH)
    segment = some[0].ring_position
    assert machine.core.context.holders_bitmap(segment) == 0b1111
    number = machine.chunk_of(third)
    machine.request_chunks([chunk(number)], GUEST, "guest")
    wrong = failure.Failure.INVALID
    machine.peer_refused(third, [(machine.attempt().number, wrong)])
    assert machine.core.context.holders_bitmap(segment) == 0b0111


def test_request_across_a_changed_chunk_map_names_no_segment(machine):
    machine.maps.find_segments = lambda request: around(request)._replace(skipped=1)
    (found,) = machine.rights.authorize(H2, machine.request(8, "h2"))
    assert (found.cid, found.segment, found.bit) == (chunk(8).cid, None, 1)


def test_only_a_denial_by_the_source_counts_as_a_refusal(machine):
    assert machine.rights.not_looked_up(failure.Failure.UNREACHABLE) == ""
    assert machine.rights.refused == 0
    assert "denies" in machine.rights.not_looked_up(failure.Failure.WITHHELD)
    assert machine.rights.refused == 1


def test_segment_name_ignores_chunks_of_zeros():
    cids = [ids.ZERO_CID, chunk(1).cid, ids.ZERO_CID, ids.ZERO_CID]
    oids = [ids.oid_of(cid) for cid in cids]
    assert segments.names(cids, oids, 2) == [chunk(1).oid, chunk(1).oid, 0, 0]


@pytest.mark.parametrize(("number", "count"), [(8, 4), (9, 2), (10, 7), (11, 1)])
def test_server_derives_the_segment_names_of_a_request(machine, number, count):
    numbers = range(number, number + count)
    cids = b"".join(chunk(n).cid for n in numbers)
    proof = peer_request.proof_of(cids, H2, machine.here)
    size = one_machine.CHUNK
    request = machine.request(number, "h2")._replace(
        length=count * size, chunk_bytes=size if count > 1 else 0, proof=proof
    )
    found = machine.rights.authorize(H2, request)
    assert found == in_segments(numbers)


def test_former_home_is_not_asked_if_the_segment_length_changed():
    """The former home would be the home of another segment."""
    hosts = one_machine.table(8).hosts
    former = hash_ring.Ring(1, hosts[1:], segment_chunks=1)
    other = ring_view.RingView(HERE, hash_ring.Ring(2, hosts, segment_chunks=LENGTH), former)
    same = ring_view.RingView(HERE, hash_ring.Ring(2, hosts), former)
    homes = {number: former.home_at(chunk(number).oid) for number in range(100)}
    asked = {n for n in homes if homes[n] in same.upstreams_of(chunk(n).oid, H2, is_moved=False)}
    assert asked
    assert not any(other.upstreams_of(chunk(n).oid, H2, is_moved=False) for n in homes)
    assert {other.home_mode(H2, chunk(n).oid) for n in homes} == {peer_request.Mode.HOME}


@pytest.mark.parametrize("length", [1, LENGTH])
def test_host_of_the_former_table_is_known_for_any_segment_length(length):
    """It may hold chunks, and may be asked for them until its first failure."""
    hosts = one_machine.table(8).hosts
    former = hash_ring.Ring(1, hosts, segment_chunks=1)
    view = ring_view.RingView(HERE, hash_ring.Ring(2, hosts[:4], segment_chunks=length), former)
    left = ids.HostId(hosts[7].host)
    assert view.is_member(left) and view.is_reachable(left)
    view.drop_departed_host(left)
    assert view.is_member(left) and not view.is_reachable(left)


def test_former_image_home_is_asked_first_for_any_segment_length():
    """It may have begun the download; segments do not affect image homes."""
    hosts = one_machine.table(8).hosts
    former = hash_ring.Ring(1, hosts[1:], segment_chunks=1)
    view = ring_view.RingView(HERE, hash_ring.Ring(2, hosts[:4], segment_chunks=LENGTH), former)
    for number in range(100):
        image_id = ids.parse_image_id(f"7d2c1f9e-5d6b-4a5c-9c61-{number:012}")
        assert view.with_image_homes([], image_id)[0] == placement.image_home(former, image_id)


def test_referral_to_a_host_of_the_former_table_is_followed(machine):
    """The new table may have another segment length."""
    hosts = tuple(host for host in machine.table.hosts if host.host != H8)
    table = hash_ring.Ring(2, hosts, segment_chunks=1)
    machine.table_changed(table, machine.table)
    number = next(n for n in range(100) if table.home_at(chunk(n).oid) == H2)
    machine.request_chunks([chunk(number)], GUEST, "read")
    (ask,) = machine.got(actions.RequestChunks)
    machine.peer_referred(H2, next(ask.iter_chunks())[0], (H8,))
    assert [*machine.asks()] == [H8]


# Announcements


def arrived(refs, giver=None):
    how = giver, None, False, True, GUEST
    return actions.ArrivedRun(tuple(refs), tuple(ref.key for ref in refs), (b"",) * len(refs), *how)


def announced_to(machine):
    """Return the next announcements by host."""
    machine.wait(announcements.DELAY_S + 0.1)
    return {tell.host: tell for tell in machine.got(actions.SendAnnouncement)}


def not_at_home(machine):
    """Return the chunks of a segment whose home is neither this host nor h3."""
    segments_ = (in_segments(range(start, start + LENGTH)) for start in range(0, 999, LENGTH))
    return next(
        some for some in segments_ if machine.core.context.ring.home(some[0].ring_position) == H2
    )


def test_chunks_of_a_segment_are_announced_by_one_bitmap(machine):
    some = in_segments(range(8, 16))
    machine.chunks_stored([arrived(some[:2]), arrived(some[4:]), arrived(some[3:4], H2)])
    reported = announced_to(machine)
    first, second = some[0].ring_position, some[4].ring_position
    assert reported[H3] == (H3, ((first, 0b1011), (second, 0b1111)), (), (), LENGTH)
    assert reported[H2].held == ((first, 0b0011), (second, 0b1111))
    machine.chunks_evicted([some[1].cid, some[3].cid])
    reported = announced_to(machine)
    assert (reported[H2].evicted, reported[H3].evicted) == (((first, 0b0010),), ((first, 0b1010),))


def test_neighbour_gets_no_announcement_of_chunks_it_announced(machine):
    some = in_segments(range(8, 12))
    machine.chunks_stored([arrived(some)])
    machine.announcement_received(H3, announced(*some[:3]), [], [], LENGTH)
    reported = announced_to(machine)
    assert reported[H3].held == announced(some[3]) and reported[H2].held == announced(*some)


def test_holder_is_asked_for_the_chunks_that_it_announced(machine):
    some = not_at_home(machine)
    machine.announcement_received(H3, announced(*some[:3]), [], [], LENGTH)
    machine.announcement_received(H3, [], announced(some[1]), [], LENGTH)
    numbers = [ref.offset // one_machine.CHUNK for ref in some]
    machine.request_chunks(some, GUEST, "read")
    asked = {host: [number for number, _ in asks] for host, asks in machine.asks().items()}
    assert asked == {"h3": [numbers[0], numbers[2]], "h2": [numbers[1], numbers[3]]}


def test_holder_that_denies_a_chunk_stays_holder_of_the_others(machine):
    some = not_at_home(machine)
    machine.announcement_received(H3, announced(*some), [], [], LENGTH)
    machine.request_chunks(some[:1], priority.Priority.ADVERTISED, "ahead")
    machine.peer_refused(H3, [(machine.attempt().number, failure.Failure.MISSING)])
    holders = [machine.core.context.locations.holders_of_chunk(ref) for ref in some]
    assert holders == [[], [H3], [H3], [H3]] and machine.core.counters.false_announcements == 1


@pytest.mark.parametrize("length", [1, 2, 16])
def test_announcements_with_another_segment_length_are_ignored(machine, length):
    machine.announcement_received(H3, announced(*in_segments(range(8, 12))), [], [], length)
    assert machine.core.counters.ignored_announcements == 4 and not machine.last
    assert not len(machine.core.context.locations)


def test_new_segment_length_clears_locations_and_hints(machine):
    some = in_segments(range(8, 12))
    machine.announcement_received(H3, announced(*in_segments(range(12, 16))), [], [], LENGTH)
    machine.chunks_stored([arrived(some[:1])])
    machine.core.context.announcements.hint_eviction(H2, some[0])
    hosts = machine.table.hosts
    machine.table_changed(hash_ring.Ring(2, hosts, segment_chunks=2), machine.table)
    assert not len(machine.core.context.locations)
    machine.chunks_stored([arrived(some)])  # they were asked for before
    reported = announced_to(machine)
    assert reported[H3].held == announced(*some[:2]) and reported[H3].segment_chunks == 2
    assert not any(tell.evictable for tell in machine.wait(announcements.HINT_EVERY_S))


def test_announcement_allowance_counts_chunks_not_segments(machine):
    reported = [(ids.Oid(n), 0b1111) for n in range(1, 9_001)]
    machine.announcement_received(H3, reported, [], [], LENGTH)
    assert (
        machine.core.counters.accepted_announcements == 20_000
        and machine.core.counters.ignored_announcements == 16_000
    )
    assert len(machine.core.context.locations) == 5_000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("announced", "withdrawn", "denied")),
            st.integers(1, 9),
            st.integers(1, 15),
        )
    )
)
def test_holders_of_each_chunk_are_its_latest_announcers(says):
    known, right = location_index.LocationIndex(host_interning.HostInterning()), {}
    some = in_segments(range(LENGTH))
    for what, host, bits in says:
        name = ids.HostId(f"h{host}")
        if what == "announced":
            known.add_holder(name, [(some[0].ring_position, bits)])
            right[name] = right.pop(name, 0) | bits
            right = dict([*right.items()][-location_index.HOLDERS :])
        elif what == "withdrawn":
            known.remove_holder(name, [(some[0].ring_position, bits)])
            right[name] = right.get(name, 0) & ~bits
        else:
            one = some[bits % LENGTH]
            assert known.record_denial(name, one) == bool(right.get(name, 0) & one.bit)
            right[name] = right.get(name, 0) & ~one.bit
        right = {host: bits for host, bits in right.items() if bits}
        for ref in some:
            assert known.holders_of_chunk(ref) == [
                host for host, bits in right.items() if bits & ref.bit
            ]
        assert known.holders_of_segment(some[0].ring_position) == [*right.items()]
