# SPDX-License-Identifier: Apache-2.0
"""Requests of peers: authorization, waiting, cancellation, and limits of each peer."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine.serve import peer_requests
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_request
from acstor_policies import place_identity
from tests.fakes import one_machine
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

Failure = failure.Failure
Mode = peer_request.Mode
Priority = priority.Priority
H2, H3 = map(ids.HostId, ("h2", "h3"))


# Authorization


def test_cached_chunk_is_served_for_a_valid_proof(machine):
    machine.cache.add(chunk(1).cid)
    machine.ask_me("h2", machine.request(1, "h2"))
    (given,) = machine.answers()
    assert (given.ref.cid, given.data) == (chunk(1).cid, None)


@pytest.mark.parametrize(
    "change",
    [
        {"proof": bytes(16)},
        {"offset": 2 * one_machine.CHUNK},  # the proof is of another chunk
        {"offset": one_machine.CHUNK + 1},
        {"length": 4096},
    ],
)
@pytest.mark.parametrize("asked", Mode)
def test_request_without_a_valid_proof_is_refused_as_missing(machine, change, asked):
    machine.cache.update((chunk(1).cid, chunk(2).cid))
    request = machine.request(1, "h2", asked)._replace(**change)
    machine.ask_me("h2", request)
    (refused,) = machine.answers()
    assert refused.failure is Failure.MISSING and refused.why
    assert not len(machine.core) and machine.rights.refused == 1
    assert len(machine.last) == 1  # nothing was read, requested or recorded


def test_proof_of_another_host_is_refused(machine):
    machine.cache.add(chunk(1).cid)
    machine.ask_me("h3", machine.request(1, "h2"))
    assert machine.answers()[0].failure is Failure.MISSING


def test_unknown_image_is_looked_up_before_its_request_is_answered(machine):
    machine.cache.add(chunk(1).cid)
    unknown = ids.ImageId("00000000-0000-4000-8000-000000000000")
    request = machine.request(1, "h2", image_id=unknown)
    machine.ask_me("h2", request)
    assert machine.last == [actions.LookUpContents("h2", H2, [request])]


def test_by_place_a_chunk_is_served_only_under_its_recorded_name():
    names = place_identity.ByPlace()
    machine = one_machine.Machine(names=names)
    machine.cache.add(chunk(1).cid)
    machine.ask_me("h2", machine.request(1, "h2", Mode.HELD))
    assert machine.answers()[0].failure is Failure.MISSING
    oid = names.oid_of(one_machine.IMAGE, one_machine.CHUNK, chunk(1).cid)
    names.record_names([chunk(1)._replace(oid=oid)])
    machine.ask_me("h2", machine.request(1, "h2", Mode.HELD))
    assert machine.answers()[0].ref.cid == chunk(1).cid


def test_by_oid_a_chunk_is_served_under_the_name_of_another_image():
    machine = one_machine.Machine(names=place_identity.ByOid())
    machine.cache.add(chunk(1).cid)
    machine.ask_me("h2", machine.request(1, "h2", Mode.HELD, image_id=one_machine.OTHER))
    given = machine.answers()[0]
    assert given.ref.cid == chunk(1).cid and given.ref.image_id == one_machine.OTHER


@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize("was_here", [True, False])
def test_chunk_cached_at_start_is_served_if_its_image_stays_attached(now, at_start, was_here):
    names, attached = place_identity.ByPlace(), {one_machine.IMAGE} if at_start else set()
    machine = one_machine.Machine(names=names, attached=attached)
    machine.cache.add(chunk(1).cid)
    if was_here:
        names.record_cached_at_start([chunk(1).cid])
    attached.clear()
    if now:
        attached.add(one_machine.IMAGE)
    machine.ask_me("h2", machine.request(1, "h2", Mode.HELD_ONLY))
    assert isinstance(machine.answers()[0], actions.SendChunk) == (now and at_start and was_here)


# Map lookups

UNKNOWN = one_machine.UNKNOWN


def look_up(machine, *numbers):
    """Have a peer request chunks of an unknown image."""
    machine.cache.update(chunk(n).cid for n in numbers)
    asked = [machine.request(n, "h2", Mode.HELD_ONLY, image_id=UNKNOWN) for n in numbers]
    machine.ask_me("h2", *asked)
    (wanted,) = machine.got(actions.LookUpContents)
    assert wanted == ("h2", H2, asked) and not machine.answers()
    return asked


def test_looked_up_requests_are_answered_once_with_the_result(machine):
    one, two, three, four = look_up(machine, 1, 2, 3, 4)
    content = ids.Content(chunk(1).cid)
    found = [(one, [content]), (two, [content]), (three, [ids.Content(ids.ZERO_CID)])]
    found.append((four, Failure.WITHHELD))
    machine.contents_looked_up("h2", found)
    given, unproven, nothing, unknown = machine.answers()
    assert given.ref.cid == chunk(1).cid and given.ref.image_id == UNKNOWN
    assert unproven.failure is nothing.failure is Failure.MISSING
    assert unknown.failure is Failure.WITHHELD
    machine.contents_looked_up("h2", found)
    assert not machine.last and not len(machine.core.requests)


def test_lookup_that_ends_after_its_request_is_ignored(machine):
    found = [(request, [ids.Content(chunk(1).cid)]) for request in look_up(machine, 1)]
    machine.peer_cancelled("h2", [2])
    machine.contents_looked_up("h2", found)
    assert not machine.last
    look_up(machine, 1)
    machine.peer_disconnected("h2")
    machine.contents_looked_up("h2", found)
    assert not machine.last and not list(machine.core.requests.links)


def test_request_in_lookup_counts_towards_limits_and_times_out():
    machine = one_machine.Machine(requests_of_peer=3)
    look_up(machine, 1, 2, 3)
    machine.ask_me("h2", machine.request(4, "h2", image_id=UNKNOWN))
    assert machine.answers()[0].failure is Failure.BUSY and not machine.got(actions.LookUpContents)
    machine.ask_me("h2", machine.request(9, "h2", image_id=UNKNOWN, request_id=3))
    assert machine.got(actions.CloseConnection)
    machine.wait(30.0 + peer_requests.CHECK_S)
    assert [answer.failure for answer in machine.answers()] == 3 * [Failure.UNREACHABLE]


# Read errors of the cache


def test_chunk_is_fetched_when_the_cache_fails_to_read_it(machine):
    number = machine.chunk_of("h1")
    machine.cache.add(chunk(number).cid)
    machine.ask_me("h2", machine.request(number, "h2", Mode.HOME, 5))
    machine.ask_me("h3", machine.request(number, "h3", Mode.HELD_ONLY, 6))
    machine.cache_read_failed("h3", 6)
    assert machine.answers()[0].failure is Failure.MISSING
    machine.cache_read_failed("h2", 5)
    (read,) = machine.got(actions.ReadSource)
    machine.source_read_progressed(read.number, [(0, data_of(number))])
    (given,) = machine.answers()
    assert given == actions.SendChunk(5, given.ref, data_of(number), Priority.PEER)
    for connection, request in (("h2", 5), ("h2", 7), ("h9", 5)):
        machine.cache_read_failed(connection, request)
        assert not machine.last
    assert not len(machine.core.requests) and not len(machine.core)


def test_cache_read_error_of_a_closed_connection_is_ignored(machine):
    number = machine.chunk_of("h1")
    machine.cache.add(chunk(number).cid)
    machine.ask_me("h2", machine.request(number, "h2", Mode.HOME, 5))
    machine.peer_disconnected("h2")
    machine.cache_read_failed("h2", 5)
    assert not machine.last and not len(machine.core)


# Waiting requests


def test_home_reads_the_source_once_and_refers_requesters_while_busy(machine):
    number = machine.chunk_of("h1")
    machine.ask_me("h2", machine.request(number, "h2"))
    (read,) = machine.got(actions.ReadSource)
    for host in ("h3", "h4", "h5", "h6"):
        machine.ask_me(host, machine.request(number, host))
        assert not machine.last
    machine.core.context.uploads.slots.count = 1
    machine.source_read_progressed(read.number, [(0, data_of(number))])
    answers = machine.answers()
    assert isinstance(answers[0], actions.SendChunk) and answers[0].data == data_of(number)
    referred = [answer for answer in answers if isinstance(answer, actions.SendReferral)]
    assert len(referred) == 3 and all("h2" in answer.hosts for answer in referred[:1])
    assert len(machine.core.context.uploads) == 1


def test_relayed_request_reads_the_source_instead_of_awaiting_a_relay():
    machine = one_machine.Machine()
    moved = machine.move_home("h2", "h1", vnodes=80)
    machine.ask_me("h3", machine.request(moved, "h3"))
    assert machine.asks() == {"h2": [(moved, Mode.RELAYED)]}
    machine.ask_me("h4", machine.request(moved, "h4", Mode.RELAYED))
    (read,) = machine.got(actions.ReadSource)
    machine.source_ended(read.number, Failure.UNREACHABLE)
    assert [type(answer) for answer in machine.answers()] == [actions.SendRefusal]  # h3 waits on
    assert len(machine.core) == 1


def test_former_home_refuses_to_relay_a_chunk_it_does_not_hold():
    machine = one_machine.Machine()
    moved = machine.move_home("h1", "h2", vnodes=80)
    machine.ask_me("h2", machine.request(moved, "h2", Mode.RELAYED))
    assert machine.answers()[0].failure is Failure.MISSING


def test_referred_request_waits_briefly_for_a_chunk_in_flight(machine):
    number = machine.chunk_of("h3")
    machine.ask_me("h2", machine.request(number, "h2", Mode.HELD_ONLY))
    assert machine.answers()[0].failure is Failure.MISSING  # it is not in flight
    machine.request_chunks([chunk(number)], Priority.GUEST, 1)
    machine.ask_me("h2", machine.request(number, "h2", Mode.HELD_ONLY))
    assert not machine.last
    machine.wait(peer_requests.HELD_WAIT_S + peer_requests.CHECK_S)
    assert [answer.failure for answer in machine.answers()] == [Failure.MISSING]


def test_peer_does_not_wait_for_a_chunk_requested_from_itself(machine):
    number = machine.chunk_of("h3")
    machine.request_chunks([chunk(number)], Priority.GUEST, 1)
    machine.ask_me("h3", machine.request(number, "h3", Mode.HELD))
    assert machine.answers()[0].failure is Failure.MISSING


def test_arriving_chunk_is_delivered_to_guests_and_peers(machine):
    number = machine.chunk_of("h3")
    machine.request_chunks([chunk(number)], Priority.GUEST, 1)
    attempt = machine.attempt()
    machine.ask_me("h2", machine.request(number, "h2", Mode.HELD))
    machine.chunks_arrived(H3, [(attempt.number, data_of(number))])
    assert machine.completes() and machine.answers()[0].data == data_of(number)


# Ends of requests


def test_cancelled_request_is_not_answered_and_the_read_goes_on(machine):
    number = machine.chunk_of("h1")
    machine.ask_me("h2", machine.request(number, "h2", request_id=5))
    read = machine.got(actions.ReadSource)[0]
    machine.peer_cancelled("h2", [5, 6])
    machine.source_read_progressed(read.number, [(0, data_of(number))])
    (store,) = machine.got(actions.Store)
    assert not machine.answers() and not store.runs[0].is_own
    assert not len(machine.core.requests) and not len(machine.core)


def test_closed_connection_ends_its_requests(machine):
    numbers = [machine.chunk_of("h1", skip) for skip in range(3)]
    machine.ask_me("h2", *(machine.request(n, "h2") for n in numbers))
    machine.peer_disconnected("h2")
    (requester,) = machine.core.requests.links.requesters.values()
    assert (requester.requests, len(machine.core.requests)) == (0, 0)
    for read in [*machine.core.context.source_reads._ranges]:
        machine.source_ended(read, Failure.UNREACHABLE)
    assert not len(machine.core) and not requester.begun


def test_peer_request_times_out_while_the_source_is_silent(machine):
    number = machine.chunk_of("h1")
    machine.ask_me("h2", machine.request(number, "h2", timeout_s=3.0))
    machine.wait(3.0 + peer_requests.CHECK_S)
    assert [answer.failure for answer in machine.answers()] == [Failure.UNREACHABLE]
    assert len(machine.core) == 1  # the read goes on


def test_reused_request_number_closes_the_connection(machine):
    numbers = [machine.chunk_of("h1", skip) for skip in range(2)]
    machine.ask_me("h2", machine.request(numbers[0], "h2", request_id=9))
    machine.ask_me("h2", machine.request(numbers[1], "h2", request_id=9))
    assert machine.got(actions.CloseConnection)[0].connection == "h2"


def test_waiting_peer_gets_keepalives(machine):
    number = machine.chunk_of("h1")
    machine.ask_me("h2", machine.request(number, "h2"))
    machine.ask_me("h3", machine.request(number, "h3"))
    machine.peer_cancelled("h3", [number + 1])
    machine.wait(12.0)
    alive = machine.got(actions.SendKeepalives)
    assert 2 <= len(alive) <= 4 and all(reported.connections == ["h2"] for reported in alive)
    machine.peer_disconnected("h2")
    machine.wait(1.0)
    machine.wait(60.0)
    assert not machine.last and not len(machine.core.context.timers)


# Limits of one peer


def test_transfers_started_for_one_peer_are_bounded():
    machine = one_machine.Machine(transfers_of_peer=4)
    numbers = [machine.chunk_of("h1", skip) for skip in range(6)]
    machine.ask_me("h2", *(machine.request(n, "h2") for n in numbers))
    refused = [(answer.failure, type(answer)) for answer in machine.answers()]
    assert refused == [(Failure.BUSY, actions.SendExcessRefusal)] * 2
    machine.peer_disconnected("h2")  # its transfers still count
    machine.ask_me("h2", machine.request(numbers[5], "h2"))
    assert machine.answers()[0].failure is Failure.BUSY
    machine.ask_me("h3", machine.request(numbers[5], "h3"))
    assert not machine.answers()


def test_waiting_requests_of_one_peer_are_bounded():
    machine = one_machine.Machine(requests_of_peer=5)
    number = machine.chunk_of("h1")
    machine.ask_me("h2", *(machine.request(number, "h2", request_id=n) for n in range(1, 8)))
    refused = [(answer.failure, type(answer)) for answer in machine.answers()]
    assert refused == [(Failure.BUSY, actions.SendExcessRefusal)] * 2


def test_home_asks_the_former_home_then_the_outer_home_then_the_source():
    pods = {"h1": "s/p1", "h2": "s/p1", "h3": "s/p2", "h4": "s/p2"}

    def table(epoch, vnodes):
        hosts = tuple(
            hash_ring.RingHost(name, f"10.0.0.{name[1:]}:7201", vnodes.get(name, 40), pod)
            for name, pod in pods.items()
        )
        return hash_ring.Ring(epoch, hosts, threshold=1, outer_threshold=2)

    before, after = table(1, {"h1": 20}), table(2, {})
    machine = one_machine.Machine(table=before)
    machine.table_changed(after, before)
    tables = machine.core.context.ring
    number, others = next(
        (n, others)
        for n in range(9999)
        if machine.home_of(n) == "h1"
        and len(others := tables.upstreams_of(chunk(n).oid, None, False)) == 2
    )
    machine.request_chunks([chunk(number)], Priority.GUEST, "a guest")
    for other in others:
        assert machine.asks() == {other: [(number, Mode.RELAYED)]}
        machine.peer_refused(other, [(machine.attempt().number, Failure.MISSING)])
    assert [read.refs for read in machine.got(actions.ReadSource)] == [[chunk(number)]]
