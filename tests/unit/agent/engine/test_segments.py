# SPDX-License-Identifier: Apache-2.0
"""Chunks of a segment have one home, at hosts that read and at hosts that are asked."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import placement
from acstor_agent.engine import priority
from acstor_agent.engine import ring_view
from acstor_agent.engine.serve import authorization
from acstor_common import ids
from acstor_common import peer_request
from acstor_common import ring
from acstor_common import segments
from tests.fakes import one_machine
from tests.fakes.one_machine import chunk

GUEST = priority.Priority.GUEST
HERE, H2, H8 = ids.HostId("h1"), ids.HostId("h2"), ids.HostId("h8")
LENGTH = 4


def in_segments(numbers):
    """Return chunks with the names of their segments."""
    found = []
    for number in numbers:
        start = number - number % LENGTH
        name = min(chunk(n).oid for n in range(start, start + LENGTH))
        found.append(chunk(number)._replace(segment=name))
    return found


def around(request):
    """Return what a host knows that has the image."""
    asked = request.offset // one_machine.CHUNK
    first, stop = segments.around(asked, asked + request.chunks, LENGTH, 10_000)
    cids = [chunk(number).cid for number in range(first, stop)]
    return authorization.Segments(cids, asked - first, one_machine.CHUNK, LENGTH)


@pytest.fixture
def machine():
    table = ring.Ring(1, one_machine.table(8).hosts, segment_chunks=LENGTH)
    made = one_machine.Machine(table=table, run_chunks=16)
    made.maps.find_segments = around
    return made


def test_read_of_a_segment_is_one_request_to_one_home(machine):
    machine.wanted(in_segments(range(8, 16)), GUEST, "read")
    for start in (8, 12):
        some = in_segments(range(start, start + LENGTH))
        home = machine.core.context.ring.home(some[0].place)
        assert len({ref.place for ref in some}) == 1
        asked = machine.asks().get(home, [])
        assert home == "h1" or {number for number, _ in asked} >= {*range(start, start + LENGTH)}


def test_name_of_a_segment_leaves_zeros_out():
    cids = [ids.ZERO_CID, chunk(1).cid, ids.ZERO_CID, ids.ZERO_CID]
    oids = [ids.oid_of(cid) for cid in cids]
    assert segments.names(cids, oids, 2) == [chunk(1).oid, chunk(1).oid, 0, 0]


@pytest.mark.parametrize(("number", "count"), [(8, 4), (9, 2), (10, 7), (11, 1)])
def test_host_that_is_asked_finds_the_names_of_segments_itself(machine, number, count):
    numbers = range(number, number + count)
    cids = b"".join(chunk(n).cid for n in numbers)
    proof = peer_request.proof_of(cids, H2, machine.here)
    size = one_machine.CHUNK
    request = machine.request(number, "h2")._replace(
        length=count * size, chunk_bytes=size if count > 1 else 0, proof=proof
    )
    found = machine.rights.authorize(H2, request)
    assert found == in_segments(numbers)


def test_names_by_a_former_length_are_not_compared():
    """A former home would be another segment's: none is asked for what it may have had."""
    hosts = one_machine.table(8).hosts
    former = ring.Ring(1, hosts[1:], segment_chunks=1)
    other = ring_view.RingView(HERE, ring.Ring(2, hosts, segment_chunks=LENGTH), former)
    same = ring_view.RingView(HERE, ring.Ring(2, hosts), former)
    homes = {number: former.home_at(chunk(number).oid) for number in range(100)}
    asked = {n for n in homes if homes[n] in same.upstreams(chunk(n).oid, H2, is_moved=False)}
    assert asked
    assert not any(other.upstreams(chunk(n).oid, H2, is_moved=False) for n in homes)
    assert {other.home_mode(H2, chunk(n).oid) for n in homes} == {peer_request.Mode.HOME}


@pytest.mark.parametrize("length", [1, LENGTH])
def test_host_of_the_former_table_is_known_whatever_its_segments(length):
    """It may hold chunks, and be asked for them, until it fails once."""
    hosts = one_machine.table(8).hosts
    former = ring.Ring(1, hosts, segment_chunks=1)
    view = ring_view.RingView(HERE, ring.Ring(2, hosts[:4], segment_chunks=length), former)
    left = ids.HostId(hosts[7].host)
    assert view.has(left) and view.knows(left)
    view.give_up(left)
    assert view.has(left) and not view.knows(left)


def test_former_home_of_an_image_that_is_taken_whole_is_asked_whatever_the_segments():
    """It has begun to take the image; segments have no part in who does."""
    hosts = one_machine.table(8).hosts
    former = ring.Ring(1, hosts[1:], segment_chunks=1)
    view = ring_view.RingView(HERE, ring.Ring(2, hosts[:4], segment_chunks=LENGTH), former)
    for number in range(100):
        image_id = ids.parse_image_id(f"7d2c1f9e-5d6b-4a5c-9c61-{number:012}")
        assert view.with_image_homes([], image_id)[0] == placement.image_home(former, image_id)


def test_host_of_the_former_table_is_asked_where_a_home_names_it(machine):
    """A table that it leaves may have segments of another length."""
    hosts = tuple(host for host in machine.table.hosts if host.host != H8)
    table = ring.Ring(2, hosts, segment_chunks=1)
    machine.table_changed(table, machine.table)
    number = next(n for n in range(100) if table.home_at(chunk(n).oid) == H2)
    machine.wanted([chunk(number)], GUEST, "read")
    (ask,) = machine.got(actions.Ask)
    machine.referred(H2, next(ask.chunks())[0], (H8,))
    assert [*machine.asks()] == [H8]
