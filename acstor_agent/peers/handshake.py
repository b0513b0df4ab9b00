# SPDX-License-Identifier: Apache-2.0
"""How two agents prove who they are, and agree on keys: TLS 1.3, then a secret from each side.

TLS ends with these secrets, without a word of its own.  What follows on the connection are frames,
encrypted with keys that are made of both secrets.  So frames are encrypted whole, and TLS with its
records of 16 KiB is on no path of bulk data.
"""

import contextlib
import secrets
import socket
import ssl

import trio

from acstor_agent import tls_session
from acstor_agent.peers import peer_link
from acstor_common import certificates
from acstor_common import credentials as credentials_
from acstor_common import errors
from acstor_common import peer_encryption


class ProofGiven(Exception):
    """The other side wanted to see this host's certificate, and nothing else."""


class Handshake:
    """The handshake on a connection that was opened just now.

    :raises OSError: this host has no certificate yet
    """

    def __init__(
        self, sock: socket.socket, credentials: credentials_.Credentials, *, is_server: bool
    ) -> None:
        self._sock, self._credentials, self._is_server = sock, credentials, is_server
        context = credentials.context(is_server=is_server)
        self._session = tls_session.TlsSession(context, is_server=is_server)

    async def run(self) -> peer_link.Link:
        """Do it; return the connection, on which frames may be sent now.

        :raises errors.NotAuthentic: the other side is nobody whose certificate may be taken
        :raises ProofGiven: it wanted no more than the certificate
        """
        generation, certificate = await self._prove()
        keys = await self._agree()
        link = peer_link.Link(socket.socket(fileno=self._sock.detach()), self._session.unread())
        link.certificate, link.believed_by = certificate, generation
        ours, theirs = keys.server, keys.client
        if not self._is_server:
            ours, theirs = theirs, ours
        link.sending = peer_encryption.Encryption(ours)
        link.receiving = peer_encryption.Encryption(theirs)
        return link

    async def _prove(self) -> tuple[int, certificates.HostCertificate]:
        """Do the handshake of TLS; return the other side's certificate.

        And the generation of the credentials that it was checked with.
        """
        credentials, session = self._credentials, self._session
        try:
            while not session.handshake():
                await self._send(session.take())
                await self._receive()
        except ssl.SSLError as error:
            if session.protocol == credentials_.PROOF_PROTOCOL:
                raise ProofGiven from error
            with contextlib.suppress(OSError):  # tell what was wrong, if that can be done at once
                self._sock.send(session.take())
            raise
        await self._send(session.take())
        if session.protocol != credentials.protocol:
            why = f"peer_security differs: this host's is {credentials.protocol}"
            raise errors.NotAuthentic("the other side's TLS", why)
        generation = credentials.generation  # first: other files may come meanwhile
        return generation, credentials.check(session.certificate)

    async def _agree(self) -> peer_encryption.Keys:
        """Exchange secrets in TLS; return the keys that follow from them."""
        session = self._session
        ours = secrets.token_bytes(peer_encryption.SECRET_BYTES)
        await self._send(session.encrypt(ours))
        session.put(session.unread())  # it may have come with the end of the handshake
        theirs, filled = bytearray(len(ours)), 0
        while filled < len(theirs):
            count = session.read_into(memoryview(theirs)[filled:])
            filled += count
            if session.is_over:
                raise OSError("closed during the handshake")
            if not count:
                await self._receive()
        if session.readable_bytes:
            raise OSError("more came by TLS than the handshake")
        return peer_encryption.keys(*((theirs, ours) if self._is_server else (ours, theirs)))

    async def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            await trio.lowlevel.wait_writable(self._sock)
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._sock.send(rest) :]

    async def _receive(self) -> None:
        """Receive at least a byte, or that no more comes."""
        await trio.lowlevel.checkpoint()  # all of it may be what TLS ignores
        while True:
            try:
                data = self._sock.recv(tls_session.RECORD_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
                continue
            if data:
                self._session.put(data)
            else:
                self._session.end()
            return
