# SPDX-License-Identifier: Apache-2.0
"""Relays: a new home asks the former one before the source."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_common.wire.peer import peer_request
from tests.fakes import one_machine
from tests.fakes.one_machine import data_of
from tests.unit.agent.engine import test_runs

F, P = failure.Failure, priority.Priority
H2 = test_runs.H2
RELAYED = peer_request.Mode.RELAYED
chunk = test_runs.chunk


@pytest.fixture
def machine():
    return test_runs.new_machine()


def relay_run(machine, count=4, urgency=P.GUEST):
    """Request a run whose home moved here from h2; return its numbers and the relay."""
    before, machine.table = machine.table, one_machine.table(8, epoch=2, weights={"h1": 400})
    machine.table_changed(machine.table, before)
    start = next(
        start
        for start in range(0, 100_000, test_runs.SEGMENT)
        if before.home_at(chunk(start).oid) == "h2"
        and machine.table.home_at(chunk(start).oid) == "h1"
    )
    numbers = [*range(start, start + count)]
    machine.request_chunks([chunk(n) for n in numbers], urgency, "run")
    assert machine.asks() == {"h2": [(n, RELAYED) for n in numbers]}
    return numbers, machine.attempt()


def reads(machine):
    """Return the chunks that are to be read from the source."""
    return [
        ref.offset // one_machine.CHUNK
        for read in machine.got(actions.ReadSource)
        for ref in read.refs
    ]


def test_refused_chunk_of_a_relayed_run_is_read_from_the_source(machine):
    numbers, relay = relay_run(machine)
    asked = relay.numbers
    machine.peer_refused(H2, [(asked[1], F.MISSING)])
    assert reads(machine) == numbers[1:2] and not machine.got(actions.RequestChunks)
    (read,) = machine.got(actions.ReadSource)
    machine.chunks_arrived(H2, [(asked[at], data_of(numbers[at])) for at in (0, 2, 3)])
    assert not machine.completes()
    machine.source_read_progressed(read.number, [(0, data_of(numbers[1]))])
    assert machine.completes()[0].chunks == [data_of(n) for n in numbers]
    assert not len(machine.core)


def test_late_relay_of_a_run_is_hedged_at_once_within_the_budget(machine):
    numbers, relay = relay_run(machine, count=6)
    events = []
    for _ in range(int(peer_state.MAX_LATE_S / 0.1) + 10):
        machine.wait(0.1)
        events.append(reads(machine))
    first, *later = filter(None, events)
    assert len(first) == 4  # the budget; later, the former home may starve the request
    assert sorted(first + [number for event in later for number in event]) == numbers
    assert not relay.is_over


def test_late_relay_is_not_hedged_once_its_peer_is_gone():
    machine = one_machine.Machine()
    number = machine.move_home("h2", "h1", vnodes=80)
    request = machine.request(number, "h3")
    for is_gone in (True, False):
        machine.ask_me("h3", request)
        if is_gone:
            assert machine.asks() == {"h2": [(number, RELAYED)]}
            machine.peer_cancelled("h3", [request.number])
        machine.wait(2.0)
        assert reads(machine) == ([] if is_gone else [number])


def test_relay_denied_under_one_image_is_repeated_under_the_next(machine):
    (number,), relay = relay_run(machine, count=1)
    machine.request_chunks([chunk(number, one_machine.OTHER)], P.GUEST, "other")
    machine.peer_refused(H2, [(relay.numbers[0], F.WITHHELD)])
    [ask] = machine.got(actions.RequestChunks)
    assert (ask.host, ask.attempts[0].refs) == (H2, (chunk(number, one_machine.OTHER),))
    machine.chunks_arrived(H2, [(ask.attempts[0].number, data_of(number))])
    assert len(machine.completes()) == 2


def test_guest_that_joins_an_abandoned_source_read_keeps_only_its_chunk():
    machine = test_runs.new_machine(hosts=1)
    numbers = [*range(4)]
    machine.request_chunks([chunk(n) for n in numbers], P.READAHEAD, "ahead")
    (read,) = machine.got(actions.ReadSource)
    machine.cancel_reads("ahead")
    [abandoned] = machine.core.context.transfers.unwanted
    machine.request_chunks([chunk(2)], P.GUEST, "guest")
    assert [*machine.core.context.transfers.unwanted] == [abandoned]
    assert abandoned.chunk_count == 3 and not reads(machine)
    machine.source_read_progressed(read.number, [(n, data_of(n)) for n in numbers])
    assert machine.completes()[0].chunks == [data_of(2)]
