# SPDX-License-Identifier: Apache-2.0
"""Links over real TCP on the loopback interface."""

import contextlib
import socket

import pytest
import trio
import trio.testing

from acstor_agent.peers import connection_setup
from acstor_agent.peers import peer_link
from acstor_agent.runtime import tls_session
from acstor_common.model import ids
from acstor_common.wire.peer import peer_encryption
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.unit.agent import test_peer_security as security

SILENCE_S = 5.0
CLIENT, SERVER = security.CLIENT, security.SERVER


@pytest.fixture
def credentials(tmp_path):
    """Return a function that reads the credentials of both sides for a mode."""

    def read(mode):
        return {host: security.Identity(tmp_path, host).read(mode) for host in (CLIENT, SERVER)}

    return read


@contextlib.asynccontextmanager
async def linked(tls):
    """Yield both ends of a connection: the opened one and the accepted one."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    ends = []

    async def accept():
        ends.append(await connection_setup.accept(await listener.accept(), tls[SERVER], SILENCE_S))

    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        address = listener.socket.getsockname()
        ends.insert(0, await connection_setup.connect(*address, tls[CLIENT], SILENCE_S))
    yield ends
    for link in ends:
        link.close()


async def send_all(link, buffers):
    while buffers:
        buffers = peer_link.rest_of(buffers, await link.send_some(buffers[:16]))


async def test_frame_sent_together_with_the_secret_is_received(credentials):
    """A side that has the other's secret may send at once."""
    tls = credentials(security.SECURE)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    session = tls_session.TlsSession(tls[CLIENT].tls_context(is_server=False), is_server=False)
    hello = peer_wire.Hello(ids.HostId(CLIENT), peer_wire.ConnectionClass.DEMAND, 1)
    received = []

    async def answer():
        link = await connection_setup.accept(await listener.accept(), tls[SERVER], SILENCE_S)
        receiver = peer_receiver.receiver("client", peer_wire.FROM_CLIENT, link.receiving)
        received.extend(await link.receive(receiver))
        link.close()

    with trio.fail_after(SILENCE_S):
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            stream = await trio.testing.open_stream_to_socket_listener(listener)
            while not session.continue_handshake():
                await stream.send_all(session.take_outgoing())
                session.add_received(await stream.receive_some())
            await stream.send_all(session.take_outgoing())
            theirs = memoryview(bytearray(peer_encryption.SECRET_BYTES))
            while not session.read_into(theirs):
                session.add_received(await stream.receive_some())
            ours = bytes(peer_encryption.SECRET_BYTES)
            encryption = peer_encryption.Encryption(
                peer_encryption.keys(ours, bytes(theirs)).client
            )
            frame = b"".join(peer_wire.encode(hello, encryption))
            await stream.send_all(session.encrypt(ours) + frame)
    assert received == [hello]


async def test_socket_that_cannot_be_tuned_is_closed(monkeypatch):
    """The other side may have reset the connection by then."""
    failed = []

    def tune(sock, silence_s):
        failed.append(sock)
        raise OSError("reset")

    monkeypatch.setattr(connection_setup, "_tune", tune)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        with pytest.raises(OSError, match="reset"):
            await connection_setup.connect(*listener.socket.getsockname(), None, SILENCE_S)
        with pytest.raises(OSError, match="reset"):
            await connection_setup.accept(await listener.accept(), None, SILENCE_S)
    assert [sock.fileno() for sock in failed] == [-1, -1]


async def test_bytes_are_undelivered_until_the_peer_has_received_them(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # accepted ones inherit it
        link = await connection_setup.connect(*listener.getsockname(), None, SILENCE_S)
        receiver, _ = listener.accept()
    with receiver:
        sent = link.send_nowait([bytes(1 << 20)])
        assert 0 < link.undelivered_bytes <= sent
        assert not (link.is_delivered or link.is_far) and link.least_rtt_s > 0
        with monkeypatch.context() as patch:  # as if the other side were far
            patch.setattr(peer_link, "FAR_S", link.least_rtt_s)
            assert link.is_far
        receiver.settimeout(SILENCE_S)
        received = 0
        while received < sent:
            received += len(receiver.recv(1 << 16))
        for _ in range(500):
            await trio.sleep(0.01 if link.undelivered_bytes else 0)
        assert not link.undelivered_bytes and link.is_delivered
        link.close()


class Counting(socket.socket):
    """A socket that counts its receive calls."""

    calls = 0

    def recv(self, *args):
        self.calls += 1
        return super().recv(*args)

    def recvmsg_into(self, *args):
        self.calls += 1
        return super().recvmsg_into(*args)


@pytest.mark.parametrize("mode", list(security.peer_network.SecurityMode))
async def test_single_message_takes_one_receive_call(credentials, mode):
    insecure = mode is security.INSECURE
    hello = peer_wire.Hello(SERVER, peer_wire.ConnectionClass.DEMAND, 1)
    sent = [hello, *[peer_wire.Ping(number) for number in range(10)]]
    received = []

    async def receive_all(link):
        receiver = peer_receiver.receiver("server", peer_wire.FROM_SERVER, link.receiving)
        while len(received) < len(sent):
            received.extend(await link.receive(receiver))

    async with linked(dict.fromkeys((CLIENT, SERVER)) if insecure else credentials(mode)) as ends:
        client, server = ends
        client._sock = Counting(fileno=client._sock.detach())
        with trio.fail_after(SILENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive_all, client)
                for number, message in enumerate(sent, 1):
                    await trio.testing.wait_all_tasks_blocked()
                    await send_all(server, peer_wire.encode(message, server.sending))
                    await security.wait_until(lambda number=number: len(received) == number)
                    assert client._sock.calls <= 1 + number  # the first call found nothing
    assert received == sent


def kept_unsent(link):
    return link._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)


@pytest.mark.parametrize("mode", list(security.peer_network.SecurityMode))
async def test_not_sent_limit_grows_only_while_the_link_drains_fast(credentials, mode):
    insecure = mode is security.INSECURE
    async with linked(dict.fromkeys((CLIENT, SERVER)) if insecure else credentials(mode)) as ends:
        for link in ends:
            kept = [kept_unsent(link)]
            for _ in range(6):
                link._adapt_not_sent(200_000, 0.0001)  # 2 GB/s
                kept.append(kept_unsent(link))
            link._adapt_not_sent(64_000, 0.02)  # 3 MB/s: urgent data waits behind queued data
            kept.append(kept_unsent(link))
            link._adapt_not_sent(40_000, 0.001)  # 40 MB/s
            kept.append(kept_unsent(link))
            assert [n >> 10 for n in kept] == [16, 32, 64, 128, 256, 512, 512, 16, 16]


async def test_not_sent_limit_of_a_slow_link_grows_little_after_one_fast_send():
    async with linked(dict.fromkeys((CLIENT, SERVER))) as (_client, server):
        for _ in range(10):
            server._adapt_not_sent(64_000, 0.00001)
            assert kept_unsent(server) <= 2 * peer_link.NOT_SENT_BYTES
            server._adapt_not_sent(16_000, 0.005)
        assert kept_unsent(server) == peer_link.NOT_SENT_BYTES
