# SPDX-License-Identifier: Apache-2.0
"""A peer under a test's control: it connects to an agent and sends any message."""

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Self

from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.wire.peer import peer_encryption
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.lab import local

PATIENCE_S = 10.0
NO_CHECK_TIME = 0x200000
AS_HOME = peer_wire.Mode.HOME_ONLY, peer_wire.Priority.PEER


def context_of(files: identity_files.IdentitySet, protocol: str = "secure") -> ssl.SSLContext:
    """Return the TLS context of a host with these files; it accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.verify_flags |= NO_CHECK_TIME
    context.set_alpn_protocols([protocol])
    fd = os.memfd_create("certificate")
    try:
        os.write(fd, files.certificate + files.key)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context


def _agree(link: ssl.SSLSocket) -> tuple[socket.socket, peer_encryption.Keys]:
    """Exchange secrets by TLS; return the TCP connection and the derived keys."""
    ours, theirs = os.urandom(peer_encryption.SECRET_BYTES), b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):  # the agent refuses the certificate
        link.sendall(ours)
        while len(theirs) < len(ours) and (more := link.recv(len(ours) - len(theirs))):
            theirs += more
    raw = socket.socket(fileno=link.detach())
    raw.settimeout(PATIENCE_S)
    return raw, peer_encryption.keys(ours, theirs)


class RawPeer:
    """A connection to an agent.

    :param name: the host name it claims
    :param files: its certificate and key; None: no encryption
    """

    def __init__(
        self,
        port: int,
        name: str,
        files: identity_files.IdentitySet | None,
        klass: peer_wire.ConnectionClass = peer_wire.ConnectionClass.DEMAND,
    ) -> None:
        self.name = ids.HostId(name)
        self._klass = klass
        self._last_id = 0
        self._unsent = bytearray()
        self._ours: peer_encryption.Encryption | None = None
        theirs: peer_encryption.Encryption | None = None
        self.link: socket.socket = socket.create_connection((local.LOOPBACK, port), PATIENCE_S)
        if files is not None:
            self.link, keys = _agree(context_of(files).wrap_socket(self.link))
            self._ours, theirs = map(peer_encryption.Encryption, keys)
        self._receiver = peer_receiver.receiver("agent", peer_wire.FROM_SERVER, theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def send(self, *messages: peer_wire.Message) -> None:
        """Send messages; after a timeout, the next call sends the rest first."""
        self._unsent += self.encoded(*messages)
        while self._unsent:
            del self._unsent[: self.link.send(self._unsent)]

    def encoded(self, *messages: peer_wire.Message) -> bytes:
        """Return encoded messages, to be sent next: the cipher counts frames."""
        frames = [peer_wire.encode(message, self._ours) for message in messages]
        return b"".join([b"".join(frame) for frame in frames])

    def receive(self) -> peer_wire.Message | None:
        """Return the agent's next message, None when it disconnects."""
        with contextlib.suppress(ConnectionError):
            while data := self.link.recv(65536):
                for message in self._receiver.feed_bytes(data):
                    if isinstance(message, peer_wire.Ping):
                        self.send(peer_wire.Pong(message.token))
                    else:
                        return message
        return None

    def greet(self) -> peer_wire.Message | None:
        """Send Hello; return the reply."""
        with contextlib.suppress(ConnectionError):
            self.send(peer_wire.Hello(self.name, self._klass, 1))
        return self.receive()

    def get(
        self,
        asked: str,
        image_id: ids.ImageId,
        offset: int,
        length: int,
        cid: ids.Cid,
        proof: bytes | None = None,
    ) -> peer_wire.Message | None:
        """Request a chunk; return the reply."""
        self._last_id += 1
        shown = proof or peer_wire.proof_of(cid, self.name, ids.HostId(asked))
        request = peer_wire.ChunkRequest(
            self._last_id, image_id, offset, length, shown, *AS_HOME, timeout_ms=5000
        )
        self.send(peer_wire.Get((request,)))
        return self.receive()


@contextlib.contextmanager
def greeted(port: int, name: str, files: identity_files.IdentitySet | None) -> Iterator[RawPeer]:
    """Yield a peer after the handshake with the agent."""
    with RawPeer(port, name, files) as peer:
        assert isinstance(peer.greet(), peer_wire.Hello)
        yield peer
