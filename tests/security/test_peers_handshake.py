# SPDX-License-Identifier: Apache-2.0
"""A host with a certificate abuses the handshake with an agent, or the frames after it."""

import contextlib

import pytest
import trio

from acstor_agent.peers import connection_setup
from acstor_agent.peers import peer_network
from acstor_agent.runtime import tls_session
from acstor_common import errors
from acstor_common.wire.peer import peer_encryption
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.unit.agent import test_peer_network as nets
from tests.unit.agent import test_peer_security as security

CLIENT, SERVER = nets.CLIENT, nets.SERVER
SECRET = bytes(peer_encryption.SECRET_BYTES)
HELLO = peer_wire.Hello(CLIENT, peer_wire.ConnectionClass.DEMAND, 1)


@pytest.fixture
def tls(tmp_path):
    return {host: security.Identity(tmp_path, host).read() for host in (CLIENT, SERVER)}


class Attacker:
    """A TLS client of an agent, as a host that has a certificate."""

    def __init__(self, credentials, stream):
        context = credentials.tls_context(is_server=False)
        self.session, self.stream = tls_session.TlsSession(context, is_server=False), stream

    async def prove(self):
        """Do only the TLS handshake."""
        while not self.session.continue_handshake():
            await self.stream.send_all(self.session.take_outgoing())
            self.session.add_received(await self.stream.receive_some())
        await self.stream.send_all(self.session.take_outgoing())

    async def send(self, data):
        """Send data by TLS."""
        await self.stream.send_all(self.session.encrypt(data))

    async def is_dropped(self):
        """Return when the agent has closed the connection."""
        with contextlib.suppress(trio.BrokenResourceError):
            while await self.stream.receive_some():
                pass


@contextlib.asynccontextmanager
async def attacking(tls, **options):
    """Yield an authenticated attacker; the agent must drop it, and keep running."""
    async with nets.serving(tls=tls[SERVER], **options) as (server, address):
        attacker = Attacker(tls[CLIENT], await nets.dial(address))
        await attacker.prove()
        yield attacker
        with trio.fail_after(5):
            await attacker.is_dropped()
        await attacker.stream.aclose()
        await nets.wait_until(lambda: server.connection_counts == (0, 0))
        async with nets.asking(address, tls=tls[CLIENT]) as client:
            assert len(await client.fetch()) == 65536


@pytest.mark.expect_log("no Hello in time")
@pytest.mark.parametrize("said", [b"", SECRET[:31]], ids=["nothing", "all but a byte"])
async def test_host_without_its_secret_is_dropped_at_the_deadline(tls, said):
    async with attacking(tls, limits=peer_network.PeerLimits(hello_s=0.5)) as attacker:
        if said:
            await attacker.send(said)


@pytest.mark.expect_log("no Hello in time")
async def test_host_that_trickles_its_secret_is_dropped_at_the_deadline(tls):
    async with attacking(tls, limits=peer_network.PeerLimits(hello_s=0.5)) as attacker:
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(peer_encryption.SECRET_BYTES):
                await attacker.send(b"x")
                await trio.sleep(0.05)


@pytest.mark.expect_log("closed during the handshake")
async def test_host_that_disconnects_before_its_secret_is_dropped(tls):
    async with attacking(tls) as attacker:
        await attacker.send(SECRET[:5])
        await attacker.stream.send_eof()


@pytest.mark.expect_log("TLS data beyond the handshake")
async def test_oversized_secret_is_refused(tls):
    async with attacking(tls) as attacker:
        await attacker.send(SECRET + b"x")


@pytest.mark.expect_log("an encrypted frame of")
async def test_frames_in_tls_are_refused(tls):
    async with attacking(tls) as attacker:
        await attacker.send(SECRET)
        await attacker.send(b"".join(peer_wire.encode(HELLO)))


@pytest.mark.expect_log("an encrypted frame of")
async def test_clear_text_frames_after_the_handshake_are_refused(tls):
    async with attacking(tls) as attacker:
        await attacker.send(SECRET)
        await attacker.stream.send_all(b"".join(peer_wire.encode(HELLO)))


@pytest.mark.expect_log("its MAC is wrong")
async def test_frames_with_keys_of_another_connection_are_refused(tls):
    """Frames recorded on another connection are refused."""
    async with attacking(tls) as attacker:
        await attacker.send(SECRET)
        key = peer_encryption.keys(SECRET, SECRET).client  # the server's secret differs
        encryption = peer_encryption.Encryption(key)
        await attacker.stream.send_all(b"".join(peer_wire.encode(HELLO, encryption)))


async def test_each_direction_of_each_connection_has_its_own_key(tls):
    async with nets.serving(tls=tls[SERVER]) as (server, address):
        async with nets.asking(address, tls=tls[CLIENT]) as client:
            await client.fetch(priority=nets.PEER)
            await client.fetch(priority=nets.PREFETCH)
            ours = [line.connection.link for line in client.net._channels.values()]
            theirs = [connection.link for connection in server._incoming]
            sending = {link.sending._key for link in (*ours, *theirs)}
            assert len(sending) == 4
            assert sending == {link.receiving._key for link in (*ours, *theirs)}


# A lying server with valid keys


def encoded(encryption, *messages):
    return b"".join(b"".join(peer_wire.encode(message, encryption)) for message in messages)


def skipped(link):
    encoded(link.sending, peer_wire.Ping(1))  # lost in transit
    return encoded(link.sending, peer_wire.Ping(2))


def reflected(link):
    return encoded(peer_encryption.Encryption(link.receiving._key), HELLO)


LIES = {
    "unrequested chunk": (
        lambda link: encoded(link.sending, peer_wire.Chunk(99, b"x")),
        "unsolicited response",
    ),
    "other length": (lambda link: encoded(link.sending, peer_wire.Chunk(1, b"x")), "1 bytes where"),
    "wrong side": (lambda link: encoded(link.sending, peer_wire.Cancel((1,))), "wrong direction"),
    "repeated frame": (lambda link: 2 * encoded(link.sending, peer_wire.Ping(1)), "MAC"),
    "frame that was left out": (skipped, "MAC"),
    "the client's own frame": (reflected, "MAC"),
    "endless frame": (lambda link: b"\xff\xff\xff\xff", "frame of 4294967295 bytes"),
    "frame longer than all requested chunks": (
        lambda link: (1 << 21).to_bytes(4, "big"),
        "frame of 2097152 bytes",
    ),
    "empty frame": (lambda link: bytes(20), "frame of 0 bytes"),
    "clear text": (lambda link: encoded(None, peer_wire.Ping(1)), "encrypted frame of"),
}


@contextlib.asynccontextmanager
async def hostile_server_session(tls, lie, *, hangs_up=False):
    """Yield a client of a server that answers the first request with a lie."""

    async def handler(stream):
        link = await connection_setup.accept(stream, tls[SERVER], 5.0)
        hello = encoded(link.sending, peer_wire.Hello(SERVER, peer_wire.ConnectionClass.DEMAND, 1))
        receiver = peer_receiver.receiver("client", peer_wire.FROM_CLIENT, link.receiving)
        await link.receive(receiver)
        await link.send_some([hello])
        await link.receive(receiver)
        await link.send_some([lie(link)])
        if not hangs_up:
            with contextlib.suppress(OSError):
                await link.receive(receiver)
        link.close()

    async with nets.faking(handler) as address, nets.asking(address, tls=tls[CLIENT]) as client:
        yield client


@pytest.mark.expect_log("server.example .* broke the protocol")
@pytest.mark.parametrize("name", LIES)
async def test_lie_in_encrypted_frames_ends_the_connection(tls, name):
    lie, why = LIES[name]
    async with hostile_server_session(tls, lie) as client:
        with pytest.raises(errors.RemoteProtocolError, match=why):
            await client.fetch()


async def test_truncated_frame_is_not_delivered(tls):
    """An attacker in transit cannot shorten a response: frames arrive completely or not at all."""

    def cut(link):
        return encoded(link.sending, peer_wire.Chunk(1, bytes(65536)))[:-1]

    async with hostile_server_session(tls, cut, hangs_up=True) as client:
        with pytest.raises(errors.SourceUnreachable):
            await client.fetch()
