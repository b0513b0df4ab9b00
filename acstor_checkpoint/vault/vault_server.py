# SPDX-License-Identifier: Apache-2.0
"""Server of this host's vault: mutual TLS 1.3, a thread per connection.

Before each request, and each second of a body, it checks that the host's certificate is not
revoked.  Handshakes run in the connections' threads; WSGI servers such as cheroot (10 and 11) run
them in the accepting thread.
"""

import contextlib
import http
import itertools
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple

import h11

from acstor_checkpoint.vault import authorized_hosts
from acstor_checkpoint.vault import connection_limit
from acstor_checkpoint.vault import vault_api
from acstor_checkpoint.vault_protocol import tls_channel
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import handshake_rate_limit
from acstor_common.util import log_limit
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)

LINGER_S: Final = 2.0  # how long to read from a refused client, so that it can read the response
_BACKLOG: Final = 128
_LOOK_S: Final = 1.0
_REFUSALS_S: Final = 10.0  # between two log lines about refused handshakes
_METHODS: Final = (b"GET", b"PUT", b"POST", b"DELETE")


class ServerLimits(NamedTuple):
    """Limits of a server."""

    handshake_s: float = 10.0  # an unauthenticated connection holds a scarce slot
    idle_s: float = 120.0  # between requests; a daemon handles its next disk sooner, or reconnects
    channel: tls_channel.ChannelLimits = tls_channel.LIMITS


def listen(ip: str, port: int) -> socket.socket:
    """Return a listening socket, or raise OSError."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.create_server((ip, port), family=family, backlog=_BACKLOG)


class VaultServer:
    """Serves authorized hosts until it is closed."""

    def __init__(
        self,
        sock: socket.socket,  # of :func:`listen`; closed with the server
        api: vault_api.VaultApi,
        credentials: credentials.Credentials,
        hosts: authorized_hosts.AuthorizedHosts,
        limits: ServerLimits = ServerLimits(),  # noqa: B008 (it is never changed)
    ) -> None:
        self._sock, self._api, self._limits = sock, api, limits
        self._credentials, self._hosts = credentials, hosts
        self._connections = connection_limit.ConnectionLimit(hosts)
        self._handshakes = handshake_rate_limit.HandshakeRateLimit(hosts)
        self._refusals = log_limit.LogLimit(_REFUSALS_S)
        self._errors = log_limit.LogLimit(_LOOK_S)
        self._numbers = itertools.count(1)
        self._is_closed = threading.Event()

    def serve(self) -> None:
        """Accept connections until :meth:`close` is called."""
        self._sock.settimeout(_LOOK_S)
        while not self._is_closed.is_set():
            try:
                sock, address = self._sock.accept()
            except TimeoutError:
                continue
            except OSError as e:  # no descriptors, or a reset connection
                if not self._is_closed.is_set():
                    LOG.warning("the vault cannot accept connections: %s", e)
                    self._is_closed.wait(_LOOK_S)
                continue
            self._start_thread(sock, address[0])

    @property
    def connection_count(self) -> int:
        """Number of authenticated connections."""
        return self._connections.authenticated_count

    def close(self) -> None:
        """Stop accepting, and close all connections."""
        self._is_closed.set()
        self._sock.close()
        self._connections.end_all()

    def _start_thread(self, sock: socket.socket, ip: str) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            if not self._may_begin(ip, time.monotonic()):
                return
            try:
                handle = stack.enter_context(sock.dup())  # TLS takes ownership of the socket
                stack.callback(self._connections.remove, handle, ip)
                self._connections.add(handle, ip)
                supervision.start_once(
                    "vault connection", lambda: self._serve_connection(sock, handle, ip)
                )
            except (OSError, RuntimeError) as e:  # no more descriptors, or threads
                LOG.warning("a connection of %s cannot be served: %s", ip, e)
                return
            stack.pop_all()

    def _may_begin(self, ip: str, now_s: float) -> bool:
        may = self._handshakes.admit_handshake(ip, now_s)
        if not may and (before := self._refusals.take_line(None, now_s)) is not None:
            why = "Too many handshakes: one from %s is refused (and %d before it)"
            LOG.warning(why, ip, before)
        return may

    def _log_error(self, ip: str, error: Exception) -> None:
        """Log why a connection ended, at most once a second, as any host can connect."""
        if self._errors.take_line(None, time.monotonic()) is not None:
            LOG.info("connection of %s: %s", ip, error)

    def _serve_connection(self, sock: socket.socket, handle: socket.socket, ip: str) -> None:
        try:
            with sock, handle, contextlib.ExitStack() as unauthenticated:
                unauthenticated.callback(self._connections.remove, handle, ip)
                with self._handshake(sock) as tls:
                    certificate = self._authenticate(tls)
                    unauthenticated.close()
                    with self._connections.admit_host(handle, certificate.host) as has_place:
                        if has_place:
                            self._serve_requests(tls, handle, certificate)
        except (OSError, ValueError, errors.NotAuthenticated, tls_channel.ConnectionBroken) as e:
            self._log_error(ip, e)

    def _handshake(self, sock: socket.socket) -> ssl.SSLSocket:
        self._credentials.reload_files()
        sock.settimeout(self._limits.handshake_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._credentials.tls_context(is_server=True).wrap_socket(sock, server_side=True)

    def _authenticate(self, tls: ssl.SSLSocket) -> certificates.HostCertificate:
        if tls.selected_alpn_protocol() != tls_channel.PROTOCOL:
            raise errors.NotAuthenticated(
                "the other side's TLS", "it does not use the protocol of vaults"
            )
        return self._check_trust(tls.getpeercert(binary_form=True))

    def _check_trust(self, certificate: bytes | None) -> certificates.HostCertificate:
        found = self._credentials.check_peer(certificate)
        if why := self._hosts.why_refused(found):
            raise errors.NotAuthenticated(f"the certificate of {found.host}", why)
        return found

    def _serve_requests(
        self, tls: ssl.SSLSocket, handle: socket.socket, certificate: certificates.HostCertificate
    ) -> None:
        rate, number = self._api.piece_rate(certificate.host), next(self._numbers)
        channel = tls_channel.TlsChannel(
            tls, h11.SERVER, self._limits.channel, note_piece=rate.note_piece
        )
        while isinstance(request := channel.receive(self._limits.idle_s), h11.Request):
            with self._connections.mark_busy(handle):
                if not self._answer(channel, request, certificate, number):
                    return
            rate.begin_request()

    def _answer(
        self,
        channel: tls_channel.TlsChannel,
        request: h11.Request,
        certificate: certificates.HostCertificate,
        connection: int,
    ) -> bool:
        """Answer a request; return whether the connection is reusable."""
        self._credentials.reload_files()
        self._check_trust(certificate.pem)
        if request.method not in _METHODS:
            return False
        length = tls_channel.content_length(request)
        pieces = self._checked_body(channel.iter_body(length or 0), certificate)
        body = vault_api.RequestBody(length, pieces, connection)
        method, target = request.method.decode(), request.target.decode("latin-1")
        with self._api.answer_request(certificate.host, method, target, body) as answer:
            _send(channel, answer)
        return _finished(channel, body)

    def _checked_body(
        self, pieces: Iterator[bytes], certificate: certificates.HostCertificate
    ) -> Iterator[bytes]:
        """Yield a body; NotAuthenticated if the host is revoked meanwhile."""
        checked_s = time.monotonic()
        for piece in pieces:
            if time.monotonic() - checked_s >= _LOOK_S:
                self._credentials.reload_files()
                self._check_trust(certificate.pem)
                checked_s = time.monotonic()
            yield piece


def _send(channel: tls_channel.TlsChannel, answer: vault_api.Response) -> None:
    length = (
        []
        if answer.status == http.HTTPStatus.NO_CONTENT
        else [("content-length", str(answer.length))]
    )
    channel.send(h11.Response(status_code=answer.status, headers=length))
    channel.send_body(answer.pieces, answer.length)


def _finished(channel: tls_channel.TlsChannel, body: vault_api.RequestBody) -> bool:
    until_s = time.monotonic() + LINGER_S
    for _ in body.iter_rest():
        if time.monotonic() > until_s:
            return False
    return channel.begin_again()
