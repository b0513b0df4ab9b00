# SPDX-License-Identifier: Apache-2.0
import errno
import socket

import pytest
import trio

from acstor_agent.peers import peer_listener


async def echo(stream):
    async with stream:
        async for data in stream:
            await stream.send_all(data)


async def ask(address):
    stream = await trio.open_tcp_stream(*address)
    async with stream:
        await stream.send_all(b"alive?")
        with trio.fail_after(10):
            return await stream.receive_some(100)


async def wait_for(is_true):
    with trio.fail_after(30):
        while not is_true():  # noqa: ASYNC110  a socket's state has no event
            await trio.sleep(0.02)


@pytest.fixture
async def endpoint(nursery):
    made = peer_listener.PeerListener(echo)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(made.serve, listeners, nursery)
    yield made, listeners[0]
    nursery.cancel_scope.cancel()


@pytest.mark.expect_log("the peer listener .* has failed")
async def test_dead_listener_is_reopened_and_connections_stay_up(endpoint):
    made, listener = endpoint
    address = listener.socket.getsockname()
    old = await trio.open_tcp_stream(*address)
    for times in (1, 2):
        dead = listener if times == 1 else None
        if dead is not None:
            dead.socket.shutdown(socket.SHUT_RDWR)
            await wait_for(lambda: made.reopened == 1)
        assert await ask(address) == b"alive?"
    await old.send_all(b"still?")
    with trio.fail_after(10):
        assert await old.receive_some(100) == b"still?"
    await old.aclose()


@pytest.mark.expect_log("the peer listener .* has failed")
@pytest.mark.expect_log("cannot be opened")
async def test_reopening_is_retried_while_the_address_is_in_use(endpoint, monkeypatch):
    made, listener = endpoint
    address = listener.socket.getsockname()
    open_listeners, failures = trio.open_tcp_listeners, [OSError(98, "Address already in use")] * 2

    async def fail_twice(port, host):
        if failures:
            raise failures.pop()
        return await open_listeners(port, host=host)

    monkeypatch.setattr(trio, "open_tcp_listeners", fail_twice)
    listener.socket.shutdown(socket.SHUT_RDWR)
    await wait_for(lambda: made.reopened == 1)
    assert await ask(address) == b"alive?"


@pytest.mark.expect_log("is no longer listening")
async def test_socket_that_stopped_listening_without_an_error_is_reopened(
    endpoint, autojump_clock, monkeypatch
):
    """As if the kernel woke no task."""
    made, listener = endpoint
    monkeypatch.setattr(listener.socket, "getsockopt", lambda *_: 0, raising=False)
    with trio.fail_after(60):
        while not made.reopened:  # noqa: ASYNC110
            await trio.sleep(1)


async def test_connection_of_a_rejected_address_is_closed_and_others_served(nursery):
    asked = []
    made = peer_listener.PeerListener(echo, lambda ip: asked.append(ip) or ip == "127.0.0.9")
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(made.serve, [listener], nursery)
    ip, port = listener.socket.getsockname()
    for _ in range(3 * peer_listener.ACCEPTS_PER_TURN):
        stream = await trio.open_tcp_stream(ip, port, local_address="127.0.0.8")
        with trio.fail_after(10):
            assert await stream.receive_some() == b""
        await stream.aclose()
    stream = await trio.open_tcp_stream(ip, port, local_address="127.0.0.9")
    await stream.send_all(b"alive?")
    with trio.fail_after(10):
        assert await stream.receive_some() == b"alive?"
    await stream.aclose()
    assert len(asked) == 3 * peer_listener.ACCEPTS_PER_TURN + 1
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("failure", [errno.ECONNABORTED, errno.EPERM])
async def test_failed_accept_does_not_end_the_listener(endpoint, monkeypatch, failure):
    made, listener = endpoint
    accept, failures = socket.socket.accept, [OSError(failure, "as if")] * 2

    def fail_twice(self):
        if failures:
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", fail_twice)
    assert await ask(listener.socket.getsockname()) == b"alive?"
    assert not failures and not made.reopened
