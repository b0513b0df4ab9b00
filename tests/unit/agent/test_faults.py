# SPDX-License-Identifier: Apache-2.0
"""Errors that nobody foresaw, thrown where peers make this host work."""

import contextlib
import logging

import pytest
import trio

from acstor_agent import faults
from acstor_agent.chunks import flights
from acstor_agent.peers import peer_net
from acstor_agent.peers.connection import answering
from acstor_agent.peers.connection import asking
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire
from tests.unit.agent import test_peer_net as nets


def fail(*_args, **_more):
    raise ZeroDivisionError("as if")


async def fail_later(*_args, **_more):
    await trio.sleep(0.01)
    raise ZeroDivisionError("as if")


class Failing(nets.Server):
    """Answers, but for what a test makes fail."""

    def __init__(self, **methods):
        super().__init__(nets.serve_data)
        for name, method in methods.items():
            setattr(self, name, method)


@contextlib.asynccontextmanager
async def answering_with(server, heard=lambda host, news: None):
    net = peer_net.PeerNet(nets.SERVER, may_speak=nets.everybody, heard=heard)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(net.serve_forever, server, listeners)
        async with nets.asking(nets.address_of(listeners[0])) as client:
            yield net, client
            await nets.wait_until(lambda: not net._budgets.requests.used)
            await nets.wait_until(lambda: not net._budgets.bytes.used)
            assert not len(net.strangers)
        await net.aclose()


@pytest.mark.expect_log("a request of a peer has failed")
@pytest.mark.parametrize(
    "methods",
    [
        {"admit": fail},
        {"answer_nowait": fail},
        {"answer": fail_later},
        {"admit": lambda host, get: None, "look_up": fail_later},
    ],
    ids=lambda methods: "+".join(methods),
)
async def test_fault_at_a_request_ends_that_request_alone(methods, caplog):
    server = Failing(**methods)
    async with answering_with(server) as (net, client):
        for _ in range(300):  # more than a host may ask at a time: nothing may be left behind
            with pytest.raises(errors.SourceUnreachable):
                await client.fetch()
        assert net.faults.count == 300
        for name in methods:
            delattr(server, name)
        [connection] = net._answering
        assert len(await client.fetch()) == 65536
        assert [connection] == list(net._answering)
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1 and said[0].exc_info


@pytest.mark.expect_log("a connection of a peer has failed")
async def test_fault_at_a_message_ends_that_connection_alone():
    async with answering_with(Failing(), fail) as (net, client):
        for count in (1, 2, 3):
            client.net.tell(nets.SERVER, client.address, peer_wire.Advertise((7,)))
            await nets.wait_until(lambda count=count: net.faults.count == count)
            await nets.wait_until(lambda: not client.net._lines)
        assert len(await client.fetch()) == 65536


@pytest.mark.expect_log("a connection of a peer has failed")
async def test_fault_at_the_door_ends_that_connection_alone(monkeypatch):
    async with answering_with(Failing()) as (net, client):
        with monkeypatch.context() as patched:
            patched.setattr(answering, "Answering", fail)
            with pytest.raises(errors.SourceUnreachable):
                await client.fetch()
        assert net.faults.count == 1
        assert len(await client.fetch()) == 65536


@pytest.mark.expect_log("an answer to a peer has failed")
async def test_fault_at_sending_ends_that_connection_and_others_have_their_turn(monkeypatch):
    async with answering_with(Failing()) as (net, client):
        with monkeypatch.context() as patched:
            patched.setattr(answering.Answering, "_send", fail)
            with pytest.raises(errors.SourceUnreachable):
                await client.fetch()
        assert net.faults.count == 1
        for _ in range(20):
            assert len(await client.fetch()) == 65536


@pytest.mark.expect_log("a connection to a peer has failed")
@pytest.mark.parametrize("where", ["_dial", "run"])
async def test_fault_at_asking_ends_that_connection_alone(monkeypatch, where):
    async with answering_with(Failing()) as (_net, client):
        owner = {"_dial": peer_net.PeerNet, "run": asking.Asking}[where]
        with monkeypatch.context() as patched:
            patched.setattr(owner, where, fail_later)
            with pytest.raises(errors.SourceUnreachable):
                await client.fetch(timeout_s=0.5)
        assert client.net.faults.count == 1
        assert len(await client.fetch()) == 65536


@pytest.mark.expect_log("what was on its way has failed")
async def test_fault_of_a_flight_is_that_of_those_who_wait(nursery, caplog):
    under_way = flights.Flights(nursery)
    for _ in range(10):
        with pytest.raises(errors.SourceUnreachable):
            await under_way.join(1, fail_later).wait()
    assert not len(under_way)
    assert len([r for r in caplog.records if "on its way" in r.getMessage()]) == 1


@pytest.mark.expect_log("the work has failed")
def test_each_kind_is_said_once_in_a_while_with_its_number(caplog):
    now = [0.0]
    met = faults.Faults(lambda: now[0])
    for kind in (ValueError, KeyError) * 50:
        try:
            raise ExceptionGroup("several", [kind("x")])
        except ExceptionGroup as group:
            assert met.note("the work", group).startswith(kind.__name__)
    assert met.count == 100
    assert len(caplog.records) == 2 and all(r.exc_info for r in caplog.records)
    now[0] = faults.SAY_AGAIN_S
    met.note("the work", ValueError("without a traceback"))
    met.note("the work", ValueError(ids.HostId("again")))
    assert len(caplog.records) == 3
