# SPDX-License-Identifier: Apache-2.0
"""Requests for runs: one proof for all chunks, one response for each."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import upload_scheduler
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from tests.fakes import one_machine
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

Failure = failure.Failure
Mode = peer_request.Mode
Priority = priority.Priority
H2 = ids.HostId("h2")
FIRST, COUNT = 4, 8
NUMBERS = range(FIRST, FIRST + COUNT)
UNKNOWN = one_machine.UNKNOWN


@pytest.fixture
def machine():
    made = one_machine.Machine()
    made.cache.update(chunk(number).cid for number in NUMBERS)
    return made


def run(machine, cids=None, **changes):
    """Return a request for a run; the numbers of its chunks begin with FIRST."""
    cids = cids or [chunk(number).cid for number in NUMBERS]
    proof = peer_request.proof_of(b"".join(cids), H2, machine.here)
    size = one_machine.CHUNK
    one = machine.request(FIRST, "h2", request_id=FIRST)
    return one._replace(length=COUNT * size, chunk_bytes=size, proof=proof, **changes)


def given(machine):
    return [answer.number for answer in machine.answers() if isinstance(answer, actions.SendChunk)]


def test_cached_run_is_served_in_one_event(machine):
    machine.ask_me("h2", run(machine))
    assert given(machine) == [*NUMBERS]
    assert {answer.ref.cid for answer in machine.answers()} == machine.cache
    (reply,) = machine.got(actions.SendAnswers)
    (sent,) = reply.answers
    assert isinstance(sent, actions.SendRun) and len(sent.refs) == COUNT
    assert not len(machine.core.requests)
    assert machine.core.context.uploads.used == COUNT
    machine.answers_delivered(["h2"])
    assert not machine.core.context.uploads.used


def test_missing_chunk_of_a_run_is_read_while_the_rest_is_served(machine):
    machine.cache.remove(chunk(6).cid)
    machine.ask_me("h2", run(machine))
    assert given(machine) == [4, 5, 7, 8, 9, 10, 11]
    (read,) = machine.got(actions.ReadSource)
    assert [ref.cid for ref in read.refs] == [chunk(6).cid]
    machine.source_read_progressed(read.number, [(0, data_of(6))])
    assert given(machine) == [6]


@pytest.mark.parametrize(
    "change",
    [
        {"proof": bytes(16)},
        {"offset": (FIRST + 1) * one_machine.CHUNK},
        {"offset": FIRST * one_machine.CHUNK + 1},
        {"chunk_bytes": one_machine.CHUNK // 2},
        {"length": COUNT * one_machine.CHUNK - 1},
        {"length": (COUNT - 1) * one_machine.CHUNK},
    ],
)
def test_run_without_a_valid_proof_is_refused_completely(machine, change):
    request = run(machine)._replace(**change)
    machine.ask_me("h2", request)
    assert {answer.number for answer in machine.answers()} == set(request.numbers)
    assert {answer.failure for answer in machine.answers()} == {Failure.MISSING}
    assert machine.rights.refused == request.chunk_count and not len(machine.core.requests)


def test_one_wrong_cid_in_the_proof_refuses_the_whole_run(machine):
    cids = [chunk(number).cid for number in NUMBERS]
    machine.ask_me("h2", run(machine, [*cids[:3], chunk(99).cid, *cids[4:]]))
    assert not given(machine) and len(machine.answers()) == COUNT


def test_run_of_equal_chunks_is_served_chunk_by_chunk(machine):
    machine.maps.contents_of = lambda request: [chunk(FIRST).content] * COUNT
    machine.ask_me("h2", run(machine, [chunk(FIRST).cid] * COUNT))
    assert given(machine) == [*NUMBERS]


def test_run_of_an_unknown_image_is_looked_up_once(machine):
    request = run(machine, image_id=UNKNOWN)
    machine.ask_me("h2", request)
    (wanted,) = machine.got(actions.LookUpContents)
    assert wanted.requests == [request] and len(machine.core.requests) == COUNT
    machine.peer_cancelled("h2", [FIRST, FIRST + 3])
    contents = [chunk(number).content for number in NUMBERS]
    machine.contents_looked_up("h2", [(request, contents)])
    assert given(machine) == [5, 6, 8, 9, 10, 11] and not len(machine.core.requests)
    machine.contents_looked_up("h2", [(request, contents)])
    assert not machine.last


@pytest.mark.parametrize("contents", [(), [chunk(FIRST).content]])
def test_run_that_the_chunk_map_does_not_contain_is_refused(machine, contents):
    request = run(machine, image_id=UNKNOWN)
    machine.ask_me("h2", request)
    machine.contents_looked_up("h2", [(request, contents)])
    assert [answer.failure for answer in machine.answers()] == [Failure.MISSING] * COUNT
    assert not len(machine.core.requests)


def test_unreadable_cached_chunk_of_a_run_is_fetched(machine):
    machine.ask_me("h2", run(machine))
    machine.cache.remove(chunk(7).cid)
    machine.cache_read_failed("h2", 7)
    (read,) = machine.got(actions.ReadSource)
    machine.source_read_progressed(read.number, [(0, data_of(7))])
    assert given(machine) == [7] and not len(machine.core.requests)


def test_run_with_too_few_upload_slots_waits_chunk_by_chunk(machine):
    uploads = machine.core.context.uploads
    uploads.used = uploads.slots.count - COUNT + 1
    machine.ask_me("h2", run(machine))
    assert given(machine) == [*NUMBERS][: COUNT - 1] and len(uploads) == 1
    machine.peer_cancelled("h2", [NUMBERS[-1]])
    assert not len(uploads)


def link_of(machine):
    uploads = machine.core.context.uploads
    return machine.core.requests.links.get_or_create("h2", H2, uploads, 0.0)


@pytest.mark.parametrize("left", [1, 3, COUNT])
def test_run_is_sent_only_up_to_the_limit_of_undelivered_bytes(machine, left):
    requester = link_of(machine).requester
    cost = one_machine.CHUNK + upload_scheduler.ANSWER_BYTES
    requester.undelivered = upload_scheduler.UNDELIVERED_BYTES - left * cost
    machine.ask_me("h2", run(machine))
    assert given(machine) == [*NUMBERS][:left]
    assert requester.undelivered <= upload_scheduler.UNDELIVERED_BYTES


def test_run_over_the_request_limit_of_a_peer_is_refused_as_busy(machine):
    link = link_of(machine)
    link.requester.requests = machine.core.context.settings.requests_of_peer - COUNT + 1
    machine.ask_me("h2", run(machine))
    assert [answer.failure for answer in machine.answers()] == [Failure.BUSY] * COUNT


def test_duplicate_request_number_in_a_run_closes_the_connection(machine):
    machine.cache.clear()
    machine.ask_me("h2", machine.request(20, "h2", request_id=FIRST + 2))
    machine.ask_me("h2", run(machine))
    assert machine.got(actions.CloseConnection)


def test_ranges_of_a_run_follow_its_length_and_chunk_size(machine):
    request = run(machine, [chunk(number).cid for number in NUMBERS])
    assert [*request.iter_ranges()] == [(n * one_machine.CHUNK, one_machine.CHUNK) for n in NUMBERS]
    short = request._replace(length=request.length - 5)
    assert [length for _, length in short.iter_ranges()][-1] == one_machine.CHUNK - 5
    assert short.chunk_count == COUNT and [*short.numbers] == [*NUMBERS]
