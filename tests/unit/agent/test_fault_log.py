# SPDX-License-Identifier: Apache-2.0
"""Unexpected exceptions in work for peers end only the connection concerned."""

import contextlib
import logging

import pytest
import trio

from acstor_agent.images.maps import single_flight
from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import client_connection
from acstor_agent.peers.connection import server_connection
from acstor_agent.runtime import fault_log
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced
from tests.fakes import request_server
from tests.unit.agent import test_peer_network as nets


def fail(*_args, **_more):
    raise ZeroDivisionError("as if")


async def fail_later(*_args, **_more):
    await trio.sleep(0.01)
    raise ZeroDivisionError("as if")


class Failing(request_server.TaskServer):
    """A task giver whose methods a test replaces to make them fail."""

    def __init__(self, nursery, **methods):
        super().__init__(nets.serve_data, nursery)
        for name, method in methods.items():
            setattr(self, name, method)


@contextlib.asynccontextmanager
async def answering_with(on_announcement=lambda host, news: None, **methods):
    net = peer_network.PeerNetwork(nets.SERVER, admission=nets.EVERYBODY)
    net.set_callbacks(on_announcement=on_announcement)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        giver = Failing(nursery, **methods)
        await nursery.start(net.serve_forever, giver, listeners)
        async with nets.asking(nets.address_of(listeners[0])) as client:
            yield net, client, giver
            await nets.wait_until(lambda: not net._budgets.requests.used)
            await nets.wait_until(lambda: not net._budgets.bytes.used)
            assert not len(net.unauthenticated)
        await net.aclose()


@pytest.mark.expect_log("a connection of a peer has failed")
async def test_exception_in_request_handler_closes_only_that_connection(caplog):
    async with answering_with(requests_received=fail) as (net, client, giver):
        for count in range(1, 30):
            with pytest.raises(errors.SourceUnreachable):
                await client.fetch()
            assert net.faults.count == count
        del giver.requests_received
        assert len(await client.fetch()) == 65536
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1 and said[0].exc_info


@pytest.mark.expect_log("a connection of a peer has failed")
async def test_exception_in_message_handler_closes_only_that_connection():
    async with answering_with(fail) as (net, client, _):
        for count in (1, 2, 3):
            client.net.send_announcement(
                nets.SERVER, client.address, peer_wire.Advertise(announced.alone(7))
            )
            await nets.wait_until(lambda count=count: net.faults.count == count)
            await nets.wait_until(lambda: not client.net._channels)
        assert len(await client.fetch()) == 65536


@pytest.mark.expect_log("a connection of a peer has failed")
async def test_exception_on_accept_closes_only_that_connection(monkeypatch):
    async with answering_with() as (net, client, _):
        with monkeypatch.context() as patched:
            patched.setattr(server_connection, "ServerConnection", fail)
            with pytest.raises(errors.SourceUnreachable):
                await client.fetch()
        assert net.faults.count == 1
        assert len(await client.fetch()) == 65536


@pytest.mark.expect_log("a connection to a peer has failed")
@pytest.mark.parametrize("where", ["_dial", "run"])
async def test_exception_in_client_connection_closes_only_that_connection(monkeypatch, where):
    async with answering_with() as (_net, client, _):
        owner = {"_dial": peer_network.PeerNetwork, "run": client_connection.ClientConnection}[
            where
        ]
        with monkeypatch.context() as patched:
            patched.setattr(owner, where, fail_later)
            with pytest.raises(errors.SourceUnreachable):
                await client.fetch(timeout_s=0.5)
        assert client.net.faults.count == 1
        assert len(await client.fetch()) == 65536


@pytest.mark.expect_log("a shared request has failed")
async def test_exception_in_single_flight_work_fails_its_waiters(nursery, caplog):
    in_flight, ended = single_flight.SingleFlight(nursery), []
    for _ in range(10):
        in_flight.start_work(1, fail_later, lambda: ended.append(1))
        with pytest.raises(errors.SourceUnreachable):
            await in_flight.wait(1)
    assert 1 not in in_flight and len(ended) == 10
    assert len([r for r in caplog.records if "a shared request" in r.getMessage()]) == 1


@pytest.mark.expect_log("the work has failed")
async def test_fault_log_limits_the_rate_of_each_exception_type(caplog, autojump_clock):
    met = fault_log.FaultLog()
    for kind in (ValueError, KeyError) * 50:
        try:
            raise ExceptionGroup("several", [kind("x")])
        except ExceptionGroup as group:
            assert met.record_fault("the work", group).startswith(kind.__name__)
    assert met.count == 100
    assert len(caplog.records) == 2 and all(r.exc_info for r in caplog.records)
    await trio.sleep(fault_log.LOG_EVERY_S)
    met.record_fault("the work", ValueError("without a traceback"))
    met.record_fault("the work", ValueError(ids.HostId("again")))
    assert len(caplog.records) == 3
