# SPDX-License-Identifier: Apache-2.0
"""Exchanges Hello, the first message of each side on a connection.

No other message is handled before the other side's host ID is known, matches its certificate and
the dialled host, and is admitted.
"""

import math
from collections.abc import Callable

from acstor_agent.peers import peer_link
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire import peer_wire

MaySpeak = Callable[[ids.HostId, float], str]
"""Returns why a host, with a certificate valid from a time on, is not admitted, or ""."""


async def send_hello(
    link: peer_link.Link,
    receiver: peer_wire.Receiver,
    ours: peer_wire.Hello,
    expected: ids.HostId,
    may_speak: MaySpeak,
) -> list[peer_wire.Message]:
    """Send Hello and check the answer; return the messages that came with it.

    :raises errors.RemoteProtocolError: another host than ``expected`` answers
    :raises errors.NotAuthenticated: the host is not admitted
    """
    await _send(link, ours)
    theirs, early = await _receive_hello(link, receiver, may_speak)
    if theirs.host_id != expected:
        raise errors.RemoteProtocolError(
            receiver.peer,
            f"this is {theirs.host_id}, not {expected}: the address in the ring is wrong",
        )
    if theirs.klass != ours.klass:
        raise errors.RemoteProtocolError(receiver.peer, "Hello of another traffic class")
    return early


async def await_hello(
    link: peer_link.Link,
    receiver: peer_wire.Receiver,
    host_id: ids.HostId,
    ring_epoch: int,
    may_speak: MaySpeak,
) -> tuple[peer_wire.Hello, list[peer_wire.Message]]:
    """Wait for Hello and answer it; return it and the messages that came with it.

    :raises errors.NotAuthenticated: the host is not admitted, or uses this host's name
    """
    theirs, early = await _receive_hello(link, receiver, may_speak)
    if theirs.host_id == host_id:
        raise errors.NotAuthenticated(f"Hello of {host_id}", "that is this host's own name")
    await _send(link, peer_wire.Hello(host_id, theirs.klass, ring_epoch))
    return theirs, early


async def _receive_hello(
    link: peer_link.Link, receiver: peer_wire.Receiver, may_speak: MaySpeak
) -> tuple[peer_wire.Hello, list[peer_wire.Message]]:
    messages = await link.receive(receiver)
    if messages is None:
        raise OSError("closed before Hello")
    hello, *early = messages
    if not isinstance(hello, peer_wire.Hello):  # the receiver enforces this
        raise errors.RemoteProtocolError(receiver.peer, f"{type(hello).__name__} before Hello")
    if why := refusal_reason(link, hello.host_id, may_speak):
        raise errors.NotAuthenticated(f"Hello of {hello.host_id}", why)
    return hello, early


def refusal_reason(link: peer_link.Link, host: ids.HostId, may_speak: MaySpeak) -> str:
    """Return why ``host`` is not admitted on a link; empty if it is."""
    if link.certificate is None:
        return may_speak(host, math.inf)
    if link.certificate.host != host:
        return f"its certificate is of {link.certificate.host}"
    return may_speak(host, link.certificate.not_before_s)


async def _send(link: peer_link.Link, message: peer_wire.Message) -> None:
    buffers = peer_wire.encode(message, link.sending)
    while buffers:
        buffers = peer_link.rest_of(buffers, await link.send_some(buffers))
