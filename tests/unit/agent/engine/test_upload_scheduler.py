# SPDX-License-Identifier: Apache-2.0
"""Order of responses to peers, and limits for receivers that read slowly."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import upload_scheduler
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_policies import place_identity
from tests.fakes import one_machine
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

Failure = failure.Failure
Mode = peer_request.Mode
Priority = priority.Priority
H2, H3 = map(ids.HostId, ("h2", "h3"))


def test_raised_priority_moves_a_peer_request_to_the_front(machine):
    numbers = [machine.chunk_of("h1", skip) for skip in range(3)]
    machine.cache.update(chunk(n).cid for n in numbers)
    machine.core.context.uploads.slots.count = 0
    for n in numbers:
        machine.ask_me("h2", machine.request(n, "h2", Mode.HOME_ONLY, urgency=Priority.PREFETCH))
    machine.peer_raised_priority("h2", [numbers[2] + 1, 12345])
    machine.ask_me(
        "h3", machine.request(numbers[0], "h3", Mode.HELD_ONLY, urgency=Priority.READAHEAD)
    )
    machine.core.context.uploads.slots.count = 64
    machine.answers_delivered(["h2"])
    order = [given.ref.offset // one_machine.CHUNK for given in machine.answers()]
    assert sorted(order) == sorted([*numbers, numbers[0]]) and order[0] == numbers[2]
    machine.answers_delivered(["h2", "h3"])
    assert not any(vars_of(found) for found in machine.core.requests.links.requesters.values())


def vars_of(requester):
    """Return a nonzero counter of a requester, if any."""
    return requester.requests or requester.begun or requester.undelivered


# Order


def test_urgent_answers_go_first_but_others_are_not_starved(machine):
    machine.core.context.uploads.slots = upload_scheduler.UploadSlots(1, few=1)
    machine.cache.update(chunk(n).cid for n in range(40))
    only = Mode.HELD_ONLY
    machine.ask_me("h9", machine.request(0, "h9", only))
    home, later = Mode.HOME_ONLY, Priority.PREFETCH
    background = [machine.request(n, "h2", home, urgency=later) for n in range(1, 5)]
    machine.ask_me("h2", *background)
    machine.ask_me("h3", *(machine.request(n, "h3", only) for n in range(10, 30)))
    order, last = [], "h9"
    for _ in range(24):
        machine.now += 0.03
        machine.answers_delivered([last])
        (reply,) = machine.got(actions.SendAnswers)
        last = reply.connection
        order.append(last)
    assert order[:8] == ["h3", "h3", "h3", "h2"] * 2 and order.count("h2") == 4


def test_slot_of_a_receiver_that_does_not_read_times_out(machine):
    places = machine.core.context.uploads.slots
    machine.cache.update(chunk(n).cid for n in range(9))
    places.count = 1
    machine.ask_me("h2", machine.request(0, "h2", Mode.HELD_ONLY))
    machine.ask_me("h3", machine.request(1, "h3", Mode.HELD_ONLY))
    assert not machine.answers()
    machine.wait(upload_scheduler.SLOT_TIMEOUT_S + 0.01)
    assert [reply.connection for reply in machine.got(actions.SendAnswers)] == ["h3"]


def test_receiver_that_reads_in_time_does_not_reduce_the_slots(machine):
    places, deadlines = machine.core.context.uploads.slots, machine.core.context.timers
    machine.cache.update(chunk(n).cid for n in range(400))
    before, answers = len(deadlines), 0
    for n in range(100):
        machine.ask_me("h2", machine.request(n, "h2", Mode.HELD_ONLY))
        answers += len(machine.answers())
        machine.wait(upload_scheduler.SLOT_TIMEOUT_S / 60)
        machine.answers_delivered(["h2"])
    assert (places.count, answers) == (upload_scheduler.MANY, 100)
    assert len(deadlines) <= before + 2  # one for its slots, one for its requests
    machine.ask_me("h2", machine.request(100, "h2", Mode.HELD_ONLY))
    machine.wait(upload_scheduler.SLOT_TIMEOUT_S - 0.01)
    assert places.count == upload_scheduler.MANY
    machine.wait(0.02)
    assert places.count == upload_scheduler.FEW


def test_delay_of_the_delivery_event_does_not_count_as_lateness(machine):
    places = machine.core.context.uploads.slots
    machine.cache.update(chunk(n).cid for n in range(9))
    machine.ask_me("h2", machine.request(0, "h2", Mode.HELD_ONLY))
    machine.now += 0.1
    machine.answers_delivered(["h2"], 0.099)
    assert places.count == upload_scheduler.MANY
    machine.ask_me("h2", machine.request(1, "h2", Mode.HELD_ONLY))
    machine.now += 0.1
    machine.answers_delivered(["h2"], 0.05)
    assert places.count == upload_scheduler.FEW


def test_full_wan_does_not_delay_near_hosts(machine):
    machine.cache.update(chunk(n).cid for n in range(9))
    near, far = machine.core.context.uploads, machine.core.context.far_uploads
    for n in range(9):
        request = machine.request(n, "h3", Mode.HELD_ONLY)
        machine.peer_requested("wan", ids.HostId("h3"), [request], is_far=True)
    machine.wait(1.0)  # nothing is delivered
    assert far.slots.count == upload_scheduler.FEW
    assert near.slots.count == upload_scheduler.MANY and not near.used
    machine.ask_me("h2", machine.request(0, "h2", Mode.HELD_ONLY))
    assert given_bytes(machine) == one_machine.CHUNK and near.used == 1
    machine.peer_disconnected("wan")
    machine.peer_disconnected("h2")
    assert not near.used and not far.used


def test_far_host_has_one_queue_for_all_its_connections(machine):
    machine.cache.update(chunk(n).cid for n in range(2))
    for n, is_far in enumerate((True, False)):
        request = machine.request(n, "h3", Mode.HELD_ONLY)
        machine.peer_requested(f"c{n}", ids.HostId("h3"), [request], is_far=is_far)
    near, far = machine.core.context.uploads, machine.core.context.far_uploads
    assert far.used == 2
    far.used = near.used = 7
    machine.recover_from_fault("a fault")
    assert far.used == 2 and not near.used


def test_host_without_connections_gets_the_queue_of_its_next_one(machine):
    machine.cache.update(chunk(n).cid for n in range(3))
    for n, is_far in enumerate((True, False, True)):
        request = machine.request(n, "h3", Mode.HELD_ONLY)
        machine.peer_requested(f"c{n}", ids.HostId("h3"), [request], is_far=is_far)
        assert machine.core.context.far_uploads.used == is_far
        assert machine.core.context.uploads.used == (not is_far)
        machine.peer_disconnected(f"c{n}")


def flood(machine, connection, host, count, first=0, **more):
    """Let a host request cached chunks; return how many bytes it is sent."""
    asked = [
        machine.request(n % 400, host, Mode.HELD_ONLY, request_id=first + n + 1, **more)
        for n in range(count)
    ]
    machine.peer_requested(connection, ids.HostId(host), asked)
    return given_bytes(machine)


def given_bytes(machine):
    return sum(a.ref.length for a in machine.answers() if isinstance(a, actions.SendChunk))


def test_bytes_sent_to_a_receiver_that_does_not_read_are_bounded(machine):
    machine.cache.update(chunk(n).cid for n in range(400))
    given = busy = 0
    for at in range(0, 20_000, 500):
        given += flood(machine, f"c{at % 3}", "h2", 500, at)
        busy += sum(getattr(a, "failure", None) is Failure.BUSY for a in machine.answers())
        machine.wait(1.0)
        given += given_bytes(machine)
    assert given <= 16 * 1024 * 1024 + one_machine.CHUNK and busy > 10_000
    (requester,) = machine.core.requests.links.requesters.values()
    assert requester.requests <= machine.core.context.settings.requests_of_peer
    others = flood(machine, "h3", "h3", 100)  # other receivers are not affected
    for _ in range(50):
        machine.answers_delivered(["h3"])
        others += given_bytes(machine)
    assert others == 100 * one_machine.CHUNK
    for _ in range(100):
        machine.answers_delivered([f"c{n}" for n in range(3)])
        given += given_bytes(machine)
    assert given > 17 * 1024 * 1024
    for connection in ("c0", "c1", "c2"):
        machine.peer_disconnected(connection)
    assert not vars_of(requester) and not machine.core.context.uploads.used


def test_receiver_that_reads_steadily_gets_all_chunks(machine):
    """The watch of its deliveries begins before the limit is reached."""
    machine.cache.update(chunk(n).cid for n in range(400))
    given, is_asked = 0, False
    for at in range(0, 2000, 100):
        given += flood(machine, "c", "h2", 100, at)
        is_asked |= bool(machine.got(actions.WatchDelivery))
        for _ in range(3):
            if is_asked:
                machine.answers_delivered(["c"])
                given += given_bytes(machine)
                is_asked = bool(machine.got(actions.WatchDelivery))
    assert given > 0.9 * 2000 * one_machine.CHUNK


def test_data_held_for_a_receiver_that_does_not_read_is_bounded(machine):
    numbers = [n for n in range(5000) if machine.home_of(n) == "h1"][:400]
    machine.ask_me("h2", *(machine.request(n, "h2", Mode.HOME) for n in numbers))
    machine.core.context.uploads.slots.count = 0
    given = 0
    ranges = machine.core.context.source_reads._ranges
    for read in iter(lambda: next(iter(ranges), None), None):
        refs = [found.first_ref for found in ranges[read].reads.values()]
        gave = [data_of(found.offset // one_machine.CHUNK) for found in refs]
        machine.source_read_progressed(read, list(enumerate(gave)))
        given += given_bytes(machine)
    (requester,) = machine.core.requests.links.requesters.values()
    (link,) = machine.core.requests.links
    held = [pending for pending in link.peer_requests.values() if pending.data is not None]
    assert not given and len(link.peer_requests) == 400 and machine.core.context.uploads._parked
    assert len(held) * one_machine.CHUNK <= upload_scheduler.UNDELIVERED_BYTES
    machine.peer_cancelled("h2", list(link.peer_requests))
    assert all(pending.data is None for pending in held)
    machine.core.context.uploads.slots.count = 64
    machine.answers_delivered(["h2"])
    machine.peer_disconnected("h2")
    assert not requester.requests and not requester.undelivered


def test_cancelled_requests_leave_the_upload_queue(machine):
    machine.cache.update(chunk(n).cid for n in range(400))
    line = machine.core.context.uploads
    line.slots.count = 0
    for at in range(0, 5000, 500):
        flood(machine, "c", "h2", 500, at)
        assert len(line) and len(line._parked)
        machine.peer_cancelled("c", list(machine.core.requests.links.get("c").peer_requests))
        (requester,) = machine.core.requests.links.requesters.values()
        assert not len(line) and not len(line._parked) and not vars_of(requester)


def test_delivery_is_watched_once_per_connection(machine):
    machine = one_machine.Machine(1100)
    machine.cache.add(chunk(3).cid)
    machine.core.context.uploads.slots.count = 1000
    for n in range(2, 1002):
        machine.ask_me(f"h{n}", machine.request(3, f"h{n}", Mode.HELD_ONLY))
    machine.core.context.uploads.slots.count = 0
    watched = []
    for n in range(1002, 1012):
        machine.ask_me(f"h{n}", machine.request(3, f"h{n}", Mode.HELD_ONLY))
        watched.append(sum(len(watch.connections) for watch in machine.got(actions.WatchDelivery)))
    assert watched == [999, *9 * [0]]  # one was watched from the beginning


def test_chunk_evicted_before_its_turn_is_fetched_again(machine):
    machine.core.context.uploads.slots = upload_scheduler.UploadSlots(1, few=1)
    numbers = [machine.chunk_of("h1", skip) for skip in range(3)]
    machine.cache.update(chunk(n).cid for n in numbers)
    machine.ask_me("h2", machine.request(numbers[0], "h2", Mode.HOME_ONLY))
    machine.ask_me("h3", machine.request(numbers[1], "h3", Mode.HOME_ONLY))
    machine.ask_me("h4", machine.request(numbers[2], "h4", Mode.HELD_ONLY))
    machine.cache.clear()
    machine.now += 0.03
    machine.answers_delivered(["h2"])
    assert [answer.failure for answer in machine.answers()] == [Failure.MISSING]  # h4's
    (read,) = machine.got(actions.ReadSource)
    machine.source_read_progressed(read.number, [(0, data_of(numbers[1]))])
    assert machine.answers()[0].data == data_of(numbers[1])
    assert not len(machine.core.requests)


def test_by_place_a_chunk_back_under_another_name_is_not_served():
    names = place_identity.ByPlace()
    machine = one_machine.Machine(names=names)
    right = names.oid_of(one_machine.IMAGE, one_machine.CHUNK, chunk(1).cid)
    names.record_names([chunk(1)._replace(oid=right)])
    machine.cache.add(chunk(1).cid)
    machine.core.context.uploads.slots.count = 0
    machine.ask_me("h2", machine.request(1, "h2", Mode.HELD_ONLY))
    machine.chunks_evicted([chunk(1).cid])
    other = names.oid_of(one_machine.OTHER, one_machine.CHUNK, chunk(1).cid)
    names.record_names([chunk(1)._replace(oid=other)])
    machine.core.context.uploads.slots.count = 64
    machine.ask_me("h3")
    machine.answers_delivered(["h3"])
    assert machine.answers()[0].failure is Failure.MISSING


@pytest.mark.parametrize("mode", [Mode.HELD, Mode.HELD_ONLY])
def test_prefetch_request_is_refused_while_others_wait_for_the_uplink(machine, mode):
    machine.cache.update(chunk(n).cid for n in range(4))
    machine.core.context.uploads.slots.count = 1
    later = Priority.PREFETCH
    machine.ask_me("h2", machine.request(0, "h2", mode, urgency=later))
    assert isinstance(machine.answers()[0], actions.SendChunk)  # the uplink is free
    machine.ask_me("h3", machine.request(1, "h3", mode))  # a guest waits for it, so it is queued
    assert not machine.answers()
    machine.ask_me("h2", machine.request(2, "h2", mode, urgency=later))
    (refused,) = machine.answers()
    assert refused.failure is Failure.BUSY and type(refused) is actions.SendRefusal  # not charged
    home = machine.request(3, "h2", Mode.HOME_ONLY, urgency=later)
    machine.ask_me("h2", home)  # a home queues requests of every priority
    assert not machine.answers()
    assert len(machine.core.context.uploads) == 2


def test_prefetch_request_is_refused_if_others_wait_when_its_chunk_arrives(machine):
    number = machine.chunk_of("h3")
    machine.request_chunks([chunk(number)], Priority.GUEST, "a guest")
    attempt = machine.attempt()
    machine.ask_me("h2", machine.request(number, "h2", Mode.HELD, urgency=Priority.PREFETCH))
    machine.cache.add(chunk(0).cid)
    machine.core.context.uploads.slots.count = 0
    machine.ask_me("h4", machine.request(0, "h4", Mode.HELD))
    machine.chunks_arrived(attempt.host, [(attempt.number, data_of(number))])
    (refused,) = machine.answers()
    assert refused.failure is Failure.BUSY
