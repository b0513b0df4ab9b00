# SPDX-License-Identifier: Apache-2.0
"""Hosts in lockstep: referrals, predecessors, and the chunks requested from predecessors."""

import types

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import lockstep as engine_lockstep
from acstor_agent.engine import priority
from acstor_agent.engine import settings
from acstor_agent.engine import upload_scheduler
from acstor_agent.engine.serve import peer_requests
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_common.wire.peer import peer_wire
from acstor_policies import learned_ring
from acstor_policies import lockstep
from tests.fakes import one_machine
from tests.fakes.one_machine import IMAGE
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

Failure = failure.Failure
Mode = peer_request.Mode
Priority = priority.Priority
HERE = ids.HostId("h1")


@pytest.fixture
def machine():
    """Return a host whose uplink has just met a queue."""
    made = one_machine.Machine(lockstep=learned_ring.LearnedRing)
    made.cache.add(chunk(0).cid)
    made.ask_me("h2", made.request(0, "h2", Mode.HELD_ONLY))
    made.now += 0.1
    made.answers_delivered(["h2"])
    return made


def behind(host):
    """Return the other hosts in cyclic order, starting after a host."""
    others = [ids.HostId(f"h{n}") for n in range(1, 9) if f"h{n}" != host]
    return sorted(others, key=lambda other: lockstep.distance(ids.HostId(host), other))


# Referrals


def test_nearest_recent_requester_before_a_peer_is_its_referral(machine):
    first, second, third, *_ = behind(HERE)
    numbers = [machine.chunk_of(HERE, skip) for skip in range(4)]
    machine.cache.update(chunk(n).cid for n in numbers)
    machine.ask_me(second, machine.request(numbers[0], second))
    assert not machine.got(actions.SendAnswers)[0].answers[0].data
    machine.ask_me(first, machine.request(numbers[1], first))
    assert not any(isinstance(a, actions.SendReferral) for a in machine.answers())
    machine.ask_me(third, machine.request(numbers[2], third))
    assert [answer.hosts for answer in machine.answers()] == [(second,)]
    machine.ask_me(second, machine.request(numbers[3], second))
    assert [answer.hosts for answer in machine.answers()] == [(first,)]


@pytest.mark.parametrize(
    "why", [*("it is far", "it was long ago", "no queues", "it was let down", "it is left out")]
)
def test_no_referral_is_sent(machine, why):
    first, second, *_ = behind(HERE)
    numbers = [machine.chunk_of(HERE, skip) for skip in range(40)]
    machine.cache.update(chunk(n).cid for n in numbers)
    if why == "no queues":
        machine.wait(upload_scheduler.OF_LATE_S)
    if why == "it is left out":
        machine.core.context.settings = settings.Settings()
    machine.ask_me(first, machine.request(numbers[0], first))
    if why == "it was long ago":
        machine.wait(lockstep.IN_STEP_S + 0.01)
    number = numbers[-1] if why == "it is far" else numbers[1]
    assert why != "it is far" or (number - numbers[0]) * one_machine.CHUNK > lockstep.IN_STEP_BYTES
    mode = Mode.HOME_ONLY if why == "it was let down" else Mode.HOME
    machine.ask_me(second, machine.request(number, second, mode))
    assert not any(isinstance(answer, actions.SendReferral) for answer in machine.answers())


# Requests to predecessors


def learn(machine):
    """Have a predecessor of this host referred; return it and a chunk of that referral."""
    parent = behind(HERE)[-1]
    number = machine.chunk_of(behind(HERE)[-3])
    machine.request_chunks([chunk(number)], Priority.GUEST, "learns")
    machine.peer_referred(machine.home_of(number), machine.attempt().number, (parent,))
    assert machine.asks() == {parent: [(number, Mode.HELD_ONLY)]}
    machine.chunks_arrived(parent, [(machine.attempt().number, data_of(number))])
    return parent, number


def test_predecessor_gets_requests_unless_the_home_is_between(machine):
    parent, _ = learn(machine)
    for home in behind(HERE):
        number = machine.chunk_of(home, 1)
        machine.request_chunks([chunk(number)], Priority.GUEST, number)
        mode = Mode.HOME if home == parent else Mode.HELD
        assert machine.asks() == {parent: [(number, mode)]}
    nearer = behind(HERE)[-2]  # seen from here it is farther away
    number = machine.chunk_of(behind(HERE)[-4], 2)
    machine.request_chunks([chunk(number)], Priority.GUEST, number)
    machine.peer_referred(parent, machine.attempt().number, (nearer,))
    number = machine.chunk_of(behind(HERE)[-4], 3)
    machine.request_chunks([chunk(number)], Priority.GUEST, number)
    assert machine.asks() == {parent: [(number, Mode.HELD)]}


def test_chunk_whose_home_is_nearer_than_the_predecessor_is_read_from_it(machine):
    parent, far = behind(HERE)[-1], behind(HERE)[-3]
    number = machine.chunk_of(behind(HERE)[-5])
    machine.request_chunks([chunk(number)], Priority.GUEST, "learns")
    machine.peer_referred(machine.home_of(number), machine.attempt().number, (far,))
    number = machine.chunk_of(parent)
    machine.request_chunks([chunk(number)], Priority.GUEST, "between")
    assert machine.asks() == {parent: [(number, Mode.HOME)]}


def test_host_of_a_referral_tree_is_no_predecessor(machine):
    parent, number = behind(HERE)[-1], machine.chunk_of(behind(HERE)[-3])
    machine.request_chunks([chunk(number)], Priority.GUEST, "tree")
    machine.peer_referred(
        machine.home_of(number), machine.attempt().number, (parent, machine.home_of(number))
    )
    assert machine.asks() == {parent: [(number, Mode.HELD_ONLY)]}
    assert not len(machine.core.context.lockstep.predecessors)


def test_predecessor_with_repeated_misses_is_avoided_for_a_while(machine):
    parent, _ = learn(machine)
    for skip in range(1, 1 + lockstep.MAX_MISSES):
        number = machine.chunk_of(behind(HERE)[-3], skip)
        machine.request_chunks([chunk(number)], Priority.GUEST, number)
        machine.peer_refused(parent, [(machine.attempt().number, Failure.MISSING)])
        assert machine.asks() == {machine.home_of(number): [(number, Mode.HOME)]}
    table = machine.core.context.lockstep.predecessors
    assert not len(table)
    table.propose_predecessor(IMAGE, parent, machine.now)
    assert not len(table)
    table.propose_predecessor(IMAGE, parent, machine.now + lockstep.AVOIDED_S)
    assert len(table) == 1


def test_predecessor_that_sends_nothing_expires(machine):
    parent, _ = learn(machine)
    home = behind(HERE)[-3]
    table = machine.core.context.lockstep.predecessors
    assert table.predecessor_of(IMAGE, home, machine.now + lockstep.LEASE_S - 0.2) == parent
    assert table.predecessor_of(IMAGE, home, machine.now + lockstep.LEASE_S + 0.1) is None
    assert not len(table)


def test_state_is_bounded():
    queues = types.SimpleNamespace(has_met_queue=lambda now: True)
    steps, table = lockstep.ReadPositions(), lockstep.Predecessors(HERE, queues)
    for n in range(lockstep.IMAGES + 5):
        steps.note_offset(ids.ImageId(f"i{n}"), HERE, 0, 0.0)
        table.propose_predecessor(ids.ImageId(f"i{n}"), ids.HostId("h2"), 0.0)
    for n in range(lockstep.HOSTS + 5):
        steps.note_offset(IMAGE, ids.HostId(f"h{n}"), 0, 0.0)
    assert len(table) == len(steps._images) == lockstep.IMAGES
    assert len(steps.in_step(IMAGE, ids.HostId("x"), 0, 0.0)) == lockstep.HOSTS


# Early requests


def test_request_waits_for_a_chunk_that_local_guests_are_about_to_read(machine):
    machine.request_chunks([chunk(1)], Priority.GUEST, "reads")
    machine.ask_me("h3", machine.request(2, "h3", Mode.HELD))
    assert not machine.last
    machine.request_chunks([chunk(2)], Priority.GUEST, "reads on")
    attempt = machine.attempt()
    machine.chunks_arrived(attempt.host, [(attempt.number, data_of(2))])
    assert [answer.data for answer in machine.answers()] == [data_of(2)]


def test_wait_for_a_chunk_of_local_guests_is_bounded(machine):
    machine.request_chunks([chunk(1)], Priority.GUEST, "reads")
    machine.ask_me("h3", machine.request(2, "h3", Mode.HELD))
    machine.wait(learned_ring.AWAITED_S + peer_requests.CHECK_S)
    assert [answer.failure for answer in machine.answers()] == [Failure.MISSING]
    assert len(machine.core) == 1  # the guest's read
    machine.ask_me("h3", machine.request(3, "h3", Mode.HELD))  # the guest has stopped reading
    assert [answer.failure for answer in machine.answers()] == [Failure.MISSING]


# Upload slots


def test_upload_slots_go_to_receivers_in_turn(machine):
    assert machine.core.context.uploads.slots.count == upload_scheduler.FEW
    machine.cache.update(chunk(n).cid for n in range(8))
    asked = [machine.request(n, "h2", Mode.HELD_ONLY) for n in range(3)]
    machine.ask_me("h2", *asked)
    assert len(machine.answers()) == 1
    machine.ask_me("h3", *(machine.request(n, "h3", Mode.HELD_ONLY) for n in range(3, 5)))
    assert [reply.connection for reply in machine.got(actions.SendAnswers)] == ["h3", "h2"]
    machine.now += 0.03
    machine.answers_delivered(["h2"])  # all its chunks have arrived
    assert [reply.connection for reply in machine.got(actions.SendAnswers)] == ["h2", "h3"]


def test_one_receiver_may_take_all_slots_without_the_variant():
    machine = one_machine.Machine()
    machine.cache.update(chunk(n).cid for n in range(8))
    machine.core.context.uploads.slots.count = upload_scheduler.FEW
    machine.ask_me("h2", *(machine.request(n, "h2", Mode.HELD_ONLY) for n in range(5)))
    assert len(machine.answers()) == upload_scheduler.FEW


# Single referrals


@pytest.mark.parametrize("policy", [engine_lockstep.Lockstep, learned_ring.LearnedRing])
def test_single_referral_also_names_the_home_in_the_variant(policy):
    machine = one_machine.Machine(lockstep=policy)
    number, other = (machine.chunk_of(HERE, skip) for skip in range(2))
    machine.cache.update((chunk(number).cid, chunk(other).cid))
    machine.core.context.uploads.slots.count = 1
    for host, wanted in (("h2", number), ("h3", other), ("h4", number)):
        machine.ask_me(host, machine.request(wanted, host))
    (referred,) = machine.answers()
    assert referred.hosts == (("h2", HERE) if policy.learns_ring else ("h2",))
    assert peer_wire.encode(peer_wire.Refer(0, referred.hosts))  # it refuses duplicates


def test_host_that_refers_to_itself_last_is_asked_once_more(machine):
    parent, number = behind(HERE)[-1], machine.chunk_of(behind(HERE)[-3])
    home = machine.home_of(number)
    machine.request_chunks([chunk(number)], Priority.GUEST, "tree")
    machine.peer_referred(home, machine.attempt().number, (parent, home))
    asked = [machine.asks()]
    machine.peer_refused(parent, [(machine.attempt().number, Failure.MISSING)])
    asked.append(machine.asks())
    machine.peer_refused(home, [(machine.attempt().number, Failure.BUSY)])
    asked.append(machine.asks())
    assert asked[:2] == [{parent: [(number, Mode.HELD_ONLY)]}, {home: [(number, Mode.HOME_ONLY)]}]
    assert home not in asked[2]
