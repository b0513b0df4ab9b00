# SPDX-License-Identifier: Apache-2.0
"""Exchanges Hello, the first message of each side on a connection.

Nothing else is handled before the other side's host ID is authentic, expected and admitted.
"""

import math
from typing import Protocol

from acstor_agent.peers import peer_link
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire


class Admission(Protocol):
    """Which hosts may connect to this one."""

    @property
    def ring(self) -> hash_ring.Ring:
        """The current v-node table."""

    def admission_error(self, host: ids.HostId, not_before_s: float) -> str:
        """Return why a host may not connect; "" if it may.

        :param not_before_s: start of the certificate's validity, wall clock
        """

    def hosts_at(self, ip: str) -> int:
        """Return the number of admitted hosts at an address (``unauthenticated_connections``)."""


async def send_hello(
    link: peer_link.PeerLink,
    receiver: peer_receiver.Receiver,
    ours: peer_wire.Hello,
    expected: ids.HostId,
    admission: Admission,
) -> list[peer_wire.Message]:
    """Send Hello and check the answer; return the messages that came with it.

    :raises errors.RemoteProtocolError: another host than ``expected`` answers
    :raises errors.NotAuthenticated: the host is not admitted
    """
    await _send(link, ours)
    theirs, early = await _receive_hello(link, receiver, admission)
    if theirs.host_id != expected:
        raise errors.RemoteProtocolError(
            receiver.peer,
            f"this is {theirs.host_id}, not {expected}: the address in the ring is wrong",
        )
    if theirs.klass != ours.klass:
        raise errors.RemoteProtocolError(receiver.peer, "Hello of another traffic class")
    return early


async def await_hello(
    link: peer_link.PeerLink,
    receiver: peer_receiver.Receiver,
    host_id: ids.HostId,
    admission: Admission,
) -> tuple[peer_wire.Hello, list[peer_wire.Message]]:
    """Wait for Hello and answer it; return it and the messages that came with it.

    :raises errors.NotAuthenticated: the host is not admitted, or uses this host's name
    """
    theirs, early = await _receive_hello(link, receiver, admission)
    if theirs.host_id == host_id:
        raise errors.NotAuthenticated(f"Hello of {host_id}", "that is this host's own name")
    await _send(link, peer_wire.Hello(host_id, theirs.klass, admission.ring.epoch))
    return theirs, early


async def _receive_hello(
    link: peer_link.PeerLink, receiver: peer_receiver.Receiver, admission: Admission
) -> tuple[peer_wire.Hello, list[peer_wire.Message]]:
    messages = await link.receive(receiver)
    if messages is None:
        raise OSError("closed before Hello")
    hello, *early = messages
    if not isinstance(hello, peer_wire.Hello):  # the receiver enforces this
        raise errors.RemoteProtocolError(receiver.peer, f"{type(hello).__name__} before Hello")
    if why := refusal_reason(link, hello.host_id, admission):
        raise errors.NotAuthenticated(f"Hello of {hello.host_id}", why)
    return hello, early


def refusal_reason(link: peer_link.PeerLink, host: ids.HostId, admission: Admission) -> str:
    """Return why ``host`` is not admitted on a link; empty if it is."""
    if link.certificate is None:
        return admission.admission_error(host, math.inf)
    if link.certificate.host != host:
        return f"its certificate is of {link.certificate.host}"
    return admission.admission_error(host, link.certificate.not_before_s)


async def _send(link: peer_link.PeerLink, message: peer_wire.Message) -> None:
    buffers = peer_wire.encode(message, link.sending)
    while buffers:
        buffers = peer_link.rest_of(buffers, await link.send_some(buffers))
