# SPDX-License-Identifier: Apache-2.0
"""Log lines about refused requests, and the effects of exceptions in the core."""

import logging

import pytest
import trio

from acstor_agent.engine import settings
from acstor_agent.engine_io import exchange
from acstor_agent.engine_io import peer_server
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from tests.fakes import exchange_cloud

CHUNK, IMAGE = exchange_cloud.CHUNK, exchange_cloud.IMAGE
SERVER, REQUESTER = ids.HostId("h1"), ids.HostId("h2")


class Requester:
    """A peer that sends requests to a host on one connection."""

    def __init__(self, cloud):
        self.cloud, self.answers = cloud, []
        self.connection = exchange_cloud.Connection(cloud, REQUESTER, SERVER)

    def send(self, *offsets, cid=None):
        requests = []
        for offset in offsets:
            number = offset // CHUNK
            named = cid or ids.cid_of(exchange_cloud.bytes_of(number))
            proof = peer_wire.proof_of(named, REQUESTER, SERVER)
            place = IMAGE, offset, CHUNK
            mode, priority = peer_wire.Mode.HOME_ONLY, peer_wire.Priority.PEER
            requests.append(peer_wire.ChunkRequest(number, *place, proof, mode, priority, 5000))
            self.connection.handlers[number] = self.answers.extend
        self.cloud.hosts[SERVER].peer_server.requests_received(
            self.connection, requests, trio.current_time()
        )

    async def receive_answers(self):
        await trio.sleep(1)
        answers, self.answers = self.answers, []
        return {answer.request_id: answer for answer in answers}


@pytest.fixture
async def requester(tmp_path):
    async with exchange_cloud.running(tmp_path, ("h1", "h2")) as cloud:
        yield Requester(cloud)


def lines(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.expect_log("refused")
async def test_log_of_refused_requests_names_the_chunk_and_is_rate_limited(
    requester, autojump_clock, caplog
):
    requester.send(3 * CHUNK, 4 * CHUNK, cid=ids.cid_of(b"something else"))
    answers = await requester.receive_answers()
    assert {answer.code for answer in answers.values()} == {peer_wire.RefuseCode.MISSING}
    what = f"h2 requested {CHUNK} bytes of image {IMAGE} at"
    why = "refused, it does not prove knowledge of the CIDs"
    assert lines(caplog) == [f"{what} {3 * CHUNK}: {why} (and 0 like it)"]
    await trio.sleep(peer_server.WARN_EVERY_S)
    requester.send(5 * CHUNK, cid=ids.cid_of(b"something else"))
    assert lines(caplog)[1:] == [f"{what} {5 * CHUNK}: {why} (and 1 like it)"]
    assert requester.cloud.hosts[SERVER].core.rights.refused == 3


@pytest.mark.expect_log("refused")
async def test_request_for_an_image_withheld_from_this_host_is_logged(
    requester, autojump_clock, caplog
):
    async def learn(host, *place):
        raise errors.ChunkRefused("the image", "memory")

    requester.cloud.learn, requester.cloud.unattached = learn, {IMAGE}
    requester.send(3 * CHUNK, cid=ids.cid_of(b"something"))
    assert (await requester.receive_answers())[3].code is peer_wire.RefuseCode.WITHHELD
    [line] = lines(caplog)
    assert f"image {IMAGE} at {3 * CHUNK}: refused, the source denies this host access" in line
    assert requester.cloud.hosts[SERVER].core.rights.refused == 1


async def test_refusal_of_a_missing_chunk_is_not_logged(requester, autojump_clock):
    requester.cloud.source.failure = errors.ChunkMissing("a chunk", "memory")
    requester.send(3 * CHUNK)
    assert isinstance((await requester.receive_answers())[3], peer_wire.Refuse)


async def test_requester_is_charged_for_refusals_beyond_its_own_limits(
    requester, autojump_clock, monkeypatch
):
    monkeypatch.setattr(settings.Settings, "transfers_of_peer", 2)
    charged = []
    requester.connection.charge_refusal = lambda: charged.append(1)
    requester.send(*range(0, 5 * CHUNK, CHUNK))
    answers = await requester.receive_answers()
    codes = [answer.code for answer in answers.values() if isinstance(answer, peer_wire.Refuse)]
    assert codes == len(charged) * [peer_wire.RefuseCode.BUSY] and len(charged) == 3


@pytest.mark.expect_log("has failed")
async def test_exception_at_one_request_fails_only_that_request(requester, autojump_clock, caplog):
    host = requester.cloud.hosts[SERVER]
    requester.cloud.contents[IMAGE, 2 * CHUNK] = "nonsense"
    requester.send(0, CHUNK, 2 * CHUNK, 3 * CHUNK)
    answers = await requester.receive_answers()
    refused = answers.pop(2)
    assert refused == peer_wire.Refuse(2, peer_wire.RefuseCode.UNREACHABLE)
    assert sorted(answers) == [0, 1, 3]
    assert all(one.data == exchange_cloud.bytes_of(number) for number, one in answers.items())
    assert not requester.connection.is_closed
    assert host.faults.count == 2  # once with the others, once by itself
    assert len(lines(caplog)) == 1
    assert (len(host.core), len(host.core.requests)) == (0, 0)
    requester.send(0)
    assert (await requester.receive_answers())[0].data


@pytest.mark.expect_log("has failed")
async def test_exception_at_one_local_read_fails_only_that_read(requester, autojump_clock):
    host, wanted = requester.cloud.hosts[SERVER], requester.cloud.ref_of(0)
    with pytest.raises(errors.SourceUnreachable, match="Error: "):
        await host.fetch_chunk(wanted._replace(oid="nonsense"), exchange.Priority.GUEST)
    assert not host.core.pending
    assert (await host.fetch_chunk(requester.cloud.ref_of(1), exchange.Priority.GUEST)).data


@pytest.mark.expect_log("has failed")
async def test_fetch_that_fails_to_start_leaves_no_state_behind(
    requester, autojump_clock, monkeypatch
):
    host, wanted = requester.cloud.hosts[SERVER], requester.cloud.ref_of(0)
    with monkeypatch.context() as broken, pytest.raises(errors.SourceUnreachable, match="no list"):
        travels = host.core.pending.selection
        broken.setattr(travels, "_ask", lambda *_: {}["no list"])
        await host.fetch_chunk(wanted, exchange.Priority.GUEST)
    assert not host.core.pending and not len(host.core)
    with trio.fail_after(5):
        assert (await host.fetch_chunk(wanted, exchange.Priority.GUEST)).data


@pytest.mark.expect_log("has failed")
async def test_exception_on_arrival_fails_the_waiting_read_at_once(
    requester, autojump_clock, monkeypatch
):
    host, wanted = requester.cloud.hosts[SERVER], requester.cloud.ref_of(0)

    def fails(*_):
        monkeypatch.undo()
        return {}["no list"]

    with trio.fail_after(5), pytest.raises(errors.SourceUnreachable, match="no list"):
        monkeypatch.setattr(host.core.pending, "chunks_arrived", fails)
        await host.fetch_chunk(wanted, exchange.Priority.GUEST)
    assert not host.core.pending and not len(host.core)
    assert (await host.fetch_chunk(wanted, exchange.Priority.GUEST)).data


@pytest.mark.expect_log("has failed")
@pytest.mark.parametrize("priority", [exchange.Priority.PEER, exchange.Priority.PREFETCH])
async def test_priorities_of_peers_are_refused_for_local_reads(requester, autojump_clock, priority):
    host, wanted = requester.cloud.hosts[SERVER], requester.cloud.ref_of(0)
    with pytest.raises(errors.SourceUnreachable, match="no reason of a host's own"):
        await host.fetch_chunk(wanted, priority)
    with host.background_fetch(priority) as ahead:
        ahead.request_items([("it", wanted)])
        ((thing, outcome),) = await ahead.wait_for_arrivals()
    assert thing == "it" and isinstance(outcome, errors.SourceUnreachable)
    assert not len(host.core) and not host.core.pending


@pytest.mark.expect_log("has failed")
async def test_exception_in_a_background_fetch_fails_only_its_batch(requester, autojump_clock):
    host, refs = requester.cloud.hosts[SERVER], [requester.cloud.ref_of(n) for n in range(4)]
    refs[1] = refs[1]._replace(oid="nonsense")
    with host.background_fetch(exchange.Priority.PRE_SEED) as ahead:
        ahead.request_items(enumerate(refs[:2]))
        ahead.request_items(enumerate(refs[2:], 2))
        outcomes = {}
        while ahead:
            outcomes.update(await ahead.wait_for_arrivals())
    failed = [n for n, outcome in outcomes.items() if isinstance(outcome, errors.AcstorError)]
    assert sorted(failed) == [0, 1] and "Error: " in str(outcomes[0])
    assert not host.core.pending
    assert [outcomes[n].data for n in (2, 3)] == [exchange_cloud.bytes_of(n) for n in (2, 3)]
