# SPDX-License-Identifier: Apache-2.0
"""Bounds of the peer network."""

import dataclasses

from acstor_agent.peers.connection import loop_share
from acstor_common.model import geometry
from acstor_common.util import token_buckets


@dataclasses.dataclass(frozen=True, slots=True)
class PeerLimits:
    """Bounds of the peer network."""

    incoming: int = 8192  # connections from other agents; idle ones are replaced
    of_host: int = 2  # incoming connections of one host, for each class
    unauthenticated: int = 64  # before Hello, from addresses without hosts
    outgoing: int = 1024  # connections to other agents; idle ones are replaced
    requests: int = 4096  # in progress, of all hosts; others wait in the sockets
    host_requests: int = 256  # in progress, of one host for each class
    answer_bytes: int = 128 * geometry.MIB  # not yet in the kernel, for all hosts
    host_answer_bytes: int = 16 * geometry.MIB  # for one host and class
    hello_s: float = 5.0  # time to connect, for the handshake and Hello
    idle_s: float = 60.0  # until the client closes; the server after twice that
    silence_s: float = 20.0  # without progress of a frame or the outbox
    serve_s: float = 60.0  # longest time for a request, and for posted bytes
    check_interval_s: float = 2.0  # between two checks of certificates and of the table
    small_messages: token_buckets.Rate = loop_share.SMALL_MESSAGES  # of a host and class
    queued_bytes: int = 256 * geometry.KIB  # at a client; announcements and Pongs are dropped above
    queued_announcements: int = 256  # at a client; 1 MiB, if all are full
    remembered_cancels: int = 2048  # of a client: eight times those in progress, 0.25 MB
