# SPDX-License-Identifier: Apache-2.0
"""Opens and accepts connections between agents: TCP options and the handshake.

A failure leaves no socket open.
"""

import socket

import trio

from acstor_agent.peers import handshake
from acstor_agent.peers import peer_link
from acstor_common.identity import credentials


def _tune(sock: socket.socket, silence_s: float) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, peer_link.NOT_SENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))


async def _start(
    sock: socket.socket,
    credentials: credentials.Credentials | None,
    silence_s: float,
    *,
    is_server: bool,
) -> peer_link.Link:
    try:
        _tune(sock, silence_s)
        if credentials is None:
            return peer_link.Link(sock)
        return await handshake.Handshake(sock, credentials, is_server=is_server).run()
    except BaseException:
        sock.close()
        raise


async def connect(
    ip: str, port: int, credentials: credentials.Credentials | None, silence_s: float
) -> peer_link.Link:
    """Connect to an agent.

    :param credentials: None: clear text
    :param silence_s: the connection is lost when sent bytes stay unacknowledged for so long
    :raises errors.NotAuthenticated: the other side's certificate is not valid
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    dialled = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await dialled.connect((ip, port))
    except BaseException:
        dialled.close()
        raise
    sock = socket.socket(fileno=dialled.detach())
    return await _start(sock, credentials, silence_s, is_server=False)


async def wait_for_first_byte(stream: trio.SocketStream) -> None:
    """Wait until a new connection can be read, without reading.

    :raises OSError: the other side has closed
    """
    if not await stream.socket.recv(1, socket.MSG_PEEK):
        raise OSError("closed before Hello")


async def accept(
    stream: trio.SocketStream, credentials: credentials.Credentials | None, silence_s: float
) -> peer_link.Link:
    """Return the link of an accepted connection; see :func:`connect`."""
    sock = socket.socket(fileno=stream.socket.detach())
    return await _start(sock, credentials, silence_s, is_server=True)
