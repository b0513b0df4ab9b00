# SPDX-License-Identifier: Apache-2.0
"""TLS credentials of this host, and checks of other hosts' certificates.

The files may be replaced at any time; an unusable set leaves the old one in force.  OpenSSL checks
chain and key, this module the times: hosts continue for a while with expired certificates.
"""

import contextlib
import functools
import logging
import os
import ssl
import time
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import clocks

LOG = logging.getLogger(__name__)

PROOF_PROTOCOL = "acstor-proof"
"""ALPN of a client that only wants to see this host's certificate.

The decision service uses it before it publishes an address; the client shows no certificate."""
NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python does not define
SAY_AGAIN_S = 600.0

_read = functools.lru_cache(maxsize=256)(certificates.read_host_certificate)
"""Cached, because parsing takes 0.3 ms and hosts open two classes of connections."""


class _Loaded(NamedTuple):
    identity: identity_files.Identity
    own: certificates.HostCertificate
    server: ssl.SSLContext
    client: ssl.SSLContext


class Credentials:
    """One host's certificate, key and authorities; both sides must select ALPN ``protocol``."""

    def __init__(
        self,
        files: identity_files.IdentityFiles,
        protocol: str,
        grace_s: float,
        clock: clocks.Clock = time,
    ) -> None:
        self.protocol = protocol
        self.generation = 0  # increases with each new set; connections must then be checked again
        self._files = files
        self._grace_s = grace_s  # tolerance after a certificate's end
        self._clock = clock
        self._seen: identity_files.Identity | None = None
        self._loaded: _Loaded | None = None
        self._logged = ("", 0.0)

    @property
    def has_certificate(self) -> bool:
        """Whether the host has a certificate."""
        return self._loaded is not None

    def reload_files(self) -> None:
        """Load replaced files (reads the disk); log faults, and keep the old set then."""
        identity, fault = self._files.current_credentials(), ""
        if identity is not self._seen:
            self._seen = identity
            if identity.certificate is not None:
                fault = self._load_set(identity, identity.certificate)
        self._log_fault(fault or self._own_fault())

    def _load_set(
        self, identity: identity_files.Identity, own: certificates.HostCertificate
    ) -> str:
        try:
            server, client = (self._context(identity, own, protocol) for protocol in _PROTOCOLS)
        except (OSError, ValueError) as e:  # ssl.SSLError is an OSError
            return str(e)
        self._loaded = _Loaded(identity, own, server, client)
        self.generation += 1
        return ""

    def _context(
        self, identity: identity_files.Identity, own: certificates.HostCertificate, protocol: int
    ) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the name is a host ID; ``check_peer`` returns it
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= NO_CHECK_TIME
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # long connections, no resumption
        is_server = protocol == ssl.PROTOCOL_TLS_SERVER
        context.set_alpn_protocols([self.protocol, PROOF_PROTOCOL][: 1 + is_server])
        context.load_verify_locations(cadata=identity.ca.decode("ascii"))
        with _in_memory(own.pem + identity.key) as path:
            context.load_cert_chain(path)
        return context

    def _own_fault(self) -> str:
        return (
            certificates.time_fault(self._loaded.own, self._clock.time(), 0.0)
            if self._loaded
            else ""
        )

    def _log_fault(self, fault: str) -> None:
        logged, at_s = self._logged
        now = self._clock.time()
        if fault and (fault != logged or abs(now - at_s) >= SAY_AGAIN_S):
            LOG.warning("%s: %s", self._files.files.certificate, fault)
            self._logged = fault, now
        elif logged and not fault:
            LOG.info("%s can be used again", self._files.files.certificate)
            self._logged = "", 0.0

    def tls_context(self, *, is_server: bool) -> ssl.SSLContext:
        """Return the TLS context for a new connection; OSError without a certificate."""
        if self._loaded is None:
            raise OSError("this host has no certificate yet")
        return self._loaded.server if is_server else self._loaded.client

    def client_context(self) -> ssl.SSLContext:
        """Return a client's TLS context of the current files; OSError: no certificate."""
        self.reload_files()
        return self.tls_context(is_server=False)

    def check_peer(self, der: bytes | None) -> certificates.HostCertificate:
        """Return the peer's certificate, or raise NotAuthenticated."""
        what = "the other side's certificate"
        if self._loaded is None or der is None:
            raise errors.NotAuthenticated(what, "there is none")
        found = _read(der, self._loaded.identity.ca)
        if why := self.time_fault(found):
            raise errors.NotAuthenticated(f"the certificate of {found.host}", why)
        return found

    def time_fault(self, certificate: certificates.HostCertificate) -> str:
        """Return why a certificate is not valid now; "" if it is."""
        return certificates.time_fault(certificate, self._clock.time(), self._grace_s)

    def validity_fault(self, certificate: certificates.HostCertificate) -> str:
        """Return why an accepted certificate is no longer valid; "" if it is."""
        try:
            self.check_peer(certificate.pem)
        except errors.NotAuthenticated as e:
            return e.why
        return ""


_PROTOCOLS = (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)


@contextlib.contextmanager
def _in_memory(pem: bytes) -> Iterator[str]:
    """Yield a path of PEM data in memory, for ``ssl`` functions that need a file."""
    fd = os.memfd_create("certificate")
    try:
        os.write(fd, pem)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
