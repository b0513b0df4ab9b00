# SPDX-License-Identifier: Apache-2.0
"""The first message on a connection: who are you, and can you prove it?

The one rule: no other message is acted upon before the other side's host id is
known, is the expected one, and with TLS is in its certificate.
"""

from acstor_agent.peers import peer_link
from acstor_agent.peers.connection import base
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire


async def greet(
    link: peer_link.Link, receiver: peer_wire.Receiver, ours: peer_wire.Hello, expected: ids.HostId
) -> list[peer_wire.Message]:
    """Say Hello first and check who answers; return what came with the answer.

    :raises errors.RemoteProtocolError: it is not ``expected``
    """
    await _send(link, ours)
    theirs, early = await _receive_hello(link, receiver)
    if theirs.host_id != expected:
        raise errors.RemoteProtocolError(
            receiver.peer,
            f"this is {theirs.host_id}, not {expected}: the address in the ring is wrong",
        )
    if theirs.klass != ours.klass:
        raise errors.RemoteProtocolError(receiver.peer, "Hello of another class")
    return early


async def welcome(
    link: peer_link.Link, receiver: peer_wire.Receiver, host_id: ids.HostId, ring_epoch: int
) -> tuple[peer_wire.Hello, list[peer_wire.Message]]:
    """Wait for Hello and answer it; return it and the messages that came with it."""
    theirs, early = await _receive_hello(link, receiver)
    await _send(link, peer_wire.Hello(host_id, theirs.klass, ring_epoch))
    return theirs, early


async def _receive_hello(
    link: peer_link.Link, receiver: peer_wire.Receiver
) -> tuple[peer_wire.Hello, list[peer_wire.Message]]:
    messages = await link.receive(receiver)
    if messages is None:
        raise OSError("closed before Hello")
    hello, *early = messages
    if not isinstance(hello, peer_wire.Hello):  # the receiver lets nothing else be first
        raise errors.RemoteProtocolError(receiver.peer, f"{type(hello).__name__} before Hello")
    if link.names is not None and hello.host_id not in link.names:
        raise errors.RemoteProtocolError(
            receiver.peer,
            f"Hello of {hello.host_id} with a certificate of {sorted(link.names)[:3]}",
        )
    return hello, early


async def _send(link: peer_link.Link, message: peer_wire.Message) -> None:
    buffers = peer_wire.encode(message)
    while buffers:
        buffers = base.rest_of(buffers, await link.send_some(buffers))
