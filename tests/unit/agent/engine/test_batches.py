# SPDX-License-Identifier: Apache-2.0
"""Batches with failures or table changes while they are in flight, and their limits."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from tests.fakes import one_machine
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

F, P, Mode = failure.Failure, priority.Priority, peer_request.Mode
H2, H3 = ids.HostId("h2"), ids.HostId("h3")
IMAGES = [ids.ImageId(f"00000000-0000-4000-8000-{n:012d}") for n in range(100)]


def ask_batch(machine, count=8, urgency=P.GUEST):
    """Request ``count`` chunks whose home is h2; return their numbers and the attempts."""
    numbers = [machine.chunk_of("h2", skip) for skip in range(count)]
    machine.request_chunks([chunk(n) for n in numbers], urgency, "batch")
    [ask] = machine.got(actions.RequestChunks)
    assert ask.host == "h2" and len(ask.attempts) == count
    return numbers, ask.attempts


def give(machine, attempts):
    chunks = [(a.number, data_of(a.first_ref.offset // one_machine.CHUNK)) for a in attempts]
    return machine.chunks_arrived(H2, chunks)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("why", [F.INVALID, F.MISSING, F.BUSY, F.WITHHELD, F.UNREACHABLE])
def test_refused_chunk_of_a_batch_is_retried_alone(machine, why, order):
    numbers, attempts = ask_batch(machine)
    odd = attempts.pop(3)
    give(machine, attempts[::order])
    assert len(machine.got(actions.Store)[0].runs) == 7 and not machine.completes()
    machine.peer_refused(H2, [(odd.number, why)])
    assert list(machine.asks().values()) == [[(numbers[3], Mode.HOME)]]
    assert "h2" not in machine.asks()
    assert bool(machine.core.context.peers.is_in_backoff(H2, 0.0)) is (why is F.INVALID)
    again = machine.attempt()
    machine.chunks_arrived(again.host, [(again.number, data_of(numbers[3]))])
    assert machine.completes()[0].chunks == [data_of(n) for n in numbers]
    assert not len(machine.core)


def test_peer_is_judged_by_its_worst_refusal_of_an_event(machine):
    """One invalid response decides the backoff, whatever else the event contains."""
    _, attempts = ask_batch(machine, 3)
    whys = (F.BUSY, F.INVALID, F.MISSING)
    machine.peer_refused(H2, [(a.number, why) for a, why in zip(attempts, whys, strict=True)])
    [alone] = machine.got(actions.ReportBackoff)
    assert alone.for_s > peer_state.INVALID_BACKOFF_S / 2
    assert machine.core.counters.invalid_chunks == 1


def test_trickling_responses_extend_the_timeout_at_most_fourfold(machine):
    """Each response extends the timeout; all requests end after four timeouts."""
    _, attempts = ask_batch(machine, 20, P.READAHEAD)
    cancelled = []
    for turn in range(12):
        machine.wait(5.0)
        cancels = [cancel for cancel in machine.got(actions.CancelRequests) if cancel.host == "h2"]
        cancelled += [number for cancel in cancels for number in cancel.numbers]
        if machine.now <= 35.0:
            assert not cancelled
            give(machine, attempts[turn : turn + 1])
    assert sorted(cancelled) == sorted(a.number for a in attempts[7:])


def test_trickling_peer_is_hedged_within_the_hedge_budget(machine):
    """The peer responds often enough that its silence never counts as late."""
    _, attempts = ask_batch(machine, 40)
    for turn in range(12):
        assert not any(isinstance(action, actions.RequestChunks) for action in machine.wait(0.4))
        give(machine, attempts[turn : turn + 1])
    machine.wait(0.5)
    hedged = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    assert len(hedged) == peer_state.INITIAL_HEDGES and machine.now < peer_state.MAX_LATE_S + 0.5
    assert {a.transfer for a in hedged} <= {a.transfer for a in attempts[12:]}


def test_response_to_a_request_not_yet_sent_is_ignored(machine):
    most = peer_state.MAX_PREFETCH_BYTES // one_machine.CHUNK
    machine = one_machine.Machine(background_limit=10_000)
    numbers = [machine.chunk_of("h2", skip) for skip in range(most + 1)]
    machine.request_chunks([chunk(n) for n in numbers], P.READAHEAD, "batch")
    sent = {a.number for ask in machine.got(actions.RequestChunks) for a in ask.attempts}
    [unsent] = set(machine.core.context.peers.get_or_create(H2).pending) - sent
    assert not machine.chunks_arrived(H2, [(unsent, b"a guess")])
    assert not machine.peer_refused(H2, [(unsent, F.INVALID)])
    assert unsent in machine.core.context.peers.get_or_create(H2).pending


def test_chunk_is_stored_before_its_readers_are_answered(machine):
    """A reader may look for the chunk in the cache at once."""
    numbers, attempts = ask_batch(machine, 2)
    machine.ask_me("h3", machine.request(numbers[0], "h3"))
    machine.request_chunks([chunk(numbers[0])], P.GUEST, "one")
    kinds = [type(action) for action in give(machine, attempts)]
    assert kinds[0] is actions.Store and kinds.count(actions.CompleteRead) == 2


# Table changes while a batch is in flight


def test_table_change_keeps_requests_and_retries_at_the_new_home(machine):
    numbers, attempts = ask_batch(machine)
    machine.table_changed(one_machine.table(4, epoch=2, weights={"h2": 1, "h3": 4000}), None)
    assert not machine.got(actions.CancelRequests) and not machine.got(actions.RequestChunks)
    machine.peer_refused(H2, [(a.number, F.MISSING) for a in attempts[:3]])
    homes = {n: machine.home_of(n) for n in numbers[:3]}
    assert "h2" not in homes.values()
    asked = {n for asked in machine.asks().values() for n, _ in asked}
    assert asked and all(host == homes[n] for host, ns in machine.asks().items() for n, _ in ns)
    give(machine, attempts[3:])
    assert len(machine.got(actions.Store)[0].runs) == 5


def test_host_that_left_the_table_may_still_answer_its_batch(machine):
    numbers, attempts = ask_batch(machine)
    hosts = tuple(host for host in machine.table.hosts if host.host != "h2")
    machine.table_changed(type(machine.table)(2, hosts), None)
    give(machine, attempts[:4])
    assert len(machine.got(actions.Store)[0].runs) == 4
    machine.connection_lost(H2, None)
    asked = {n for ns in machine.asks().values() for n, _ in ns}
    reads = {w.offset // one_machine.CHUNK for r in machine.got(actions.ReadSource) for w in r.refs}
    assert asked | reads == set(numbers[4:]) and "h2" not in machine.asks()


def test_departed_peer_is_forgotten_once_it_owes_no_response(machine):
    _, attempts = ask_batch(machine)
    hosts = tuple(host for host in machine.table.hosts if host.host != "h2")
    machine.table_changed(type(machine.table)(2, hosts), None)
    assert machine.core.context.peers.get(H2) is not None  # it owes a batch
    give(machine, attempts)
    machine.table_changed(type(machine.table)(3, hosts), None)
    assert machine.core.context.peers.get(H2) is None


# Limits


def test_names_of_a_transfer_are_bounded(machine):
    number = machine.chunk_of("h2")
    for token, image_id in enumerate(IMAGES):
        machine.request_chunks([chunk(number, image_id)], P.GUEST, token)
    [made] = machine.core.context.transfers.values()
    assert len(made.names) == transfer.MOST_NAMES
    assert made.names[-1][0].image_id == IMAGES[-1]


def test_peer_request_times_out_after_a_minute(machine):
    number = machine.chunk_of("h1")
    machine.ask_me("h2", machine.request(number, "h2", timeout_s=1e6))
    machine.wait(59.0)
    assert not machine.answers()
    machine.wait(2.0)
    assert [answer.failure for answer in machine.answers()] == [F.UNREACHABLE]


def test_request_with_the_proof_of_zeros_is_refused_as_missing(machine):
    """The CID of zeros is public."""
    number = machine.chunk_of("h1")
    proof = peer_request.proof_of(ids.ZERO_CID, H2, ids.HostId("h1"))
    request = machine.request(number, "h2")._replace(offset=number * one_machine.CHUNK + 1)
    machine.ask_me("h2", request._replace(proof=proof))
    assert [answer.failure for answer in machine.answers()] == [F.MISSING]
    assert not len(machine.core)
