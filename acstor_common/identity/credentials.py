# SPDX-License-Identifier: Apache-2.0
"""What this host proves to other hosts who it is with, and what it believes of them.

The files (``identity_files``) may be replaced at any time; they are looked at every few
seconds, and what cannot be used leaves in force what was there.

Whether a certificate may be taken is said here and nowhere else, with times:
OpenSSL checks the chain and that the key is there, but not the time, since hosts
go on for a while with certificates that nobody could renew.
"""

import contextlib
import functools
import logging
import os
import ssl
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import identity_files

LOG = logging.getLogger(__name__)

PROOF_PROTOCOL = "acstor-proof"
"""ALPN of who only wants to see this host's certificate, as the decision service does before it
publishes an address; the handshake is all, and its client shows none."""
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL; Python has no name for it."""
SAY_AGAIN_S = 600.0

_read = functools.lru_cache(maxsize=256)(certificates.read_host_certificate)
"""A host opens connections of two classes, and to look at its certificate takes 0.3 ms."""


class _Loaded(NamedTuple):
    """What new connections are begun with, all of one set of files."""

    identity: identity_files.Identity
    own: certificates.HostCertificate
    server: ssl.SSLContext
    client: ssl.SSLContext


class Credentials:
    """The certificate, key and authorities of one host.

    :param files: where they come from
    :param protocol: what both sides must mean to speak inside TLS (ALPN)
    :param grace_s: for how long after its end a certificate is taken nevertheless
    :param clock: wall clock
    """

    def __init__(
        self,
        files: identity_files.IdentityFiles,
        protocol: str,
        grace_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.protocol = protocol
        self.generation = 0
        """Grows when another set is in force: what was believed must be looked at again."""
        self._files = files
        self._grace_s = grace_s
        self._clock = clock
        self._seen: identity_files.Identity | None = None
        self._loaded: _Loaded | None = None
        self._said = ("", 0.0)

    @property
    def is_there(self) -> bool:
        """Say whether there is something to prove who this host is with."""
        return self._loaded is not None

    def reload_files(self) -> None:
        """Take the files if they have been replaced; say in the log what is wrong with them.

        Reads the disk.  A set that cannot be used leaves in force what was there.
        """
        identity, fault = self._files.current_credentials(), ""
        if identity is not self._seen:
            self._seen = identity
            if identity.certificate is not None:
                fault = self._take(identity, identity.certificate)
        self._say(fault or self._own_fault())

    def _take(self, identity: identity_files.Identity, own: certificates.HostCertificate) -> str:
        """Put a set in force; return why it cannot be."""
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
        context.check_hostname = False  # the name is a host id; ``check`` finds it
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= NO_CHECK_TIME
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # connections live long and are never resumed
        is_server = protocol == ssl.PROTOCOL_TLS_SERVER
        context.set_alpn_protocols([self.protocol, PROOF_PROTOCOL][: 1 + is_server])
        context.load_verify_locations(cadata=identity.ca.decode("ascii"))
        with _in_memory(own.pem + identity.key) as path:
            context.load_cert_chain(path)
        return context

    def _own_fault(self) -> str:
        return certificates.time_fault(self._loaded.own, self._clock(), 0.0) if self._loaded else ""

    def _say(self, fault: str) -> None:
        said, at_s = self._said
        now = self._clock()
        if fault and (fault != said or abs(now - at_s) >= SAY_AGAIN_S):
            LOG.warning("%s: %s", self._files.files.certificate, fault)
            self._said = fault, now
        elif said and not fault:
            LOG.info("%s can be used again", self._files.files.certificate)
            self._said = "", 0.0

    def tls_context(self, *, is_server: bool) -> ssl.SSLContext:
        """Return what a new connection is begun with.

        :raises OSError: there is no certificate yet
        """
        if self._loaded is None:
            raise OSError("this host has no certificate yet")
        return self._loaded.server if is_server else self._loaded.client

    def check(self, der: bytes | None) -> certificates.HostCertificate:
        """Return whose certificate the other side has shown.

        :raises errors.NotAuthenticated: it is not to be believed
        """
        what = "the other side's certificate"
        if self._loaded is None or der is None:
            raise errors.NotAuthenticated(what, "there is none")
        found = _read(der, self._loaded.identity.ca)
        if why := self.time_fault(found):
            raise errors.NotAuthenticated(f"the certificate of {found.host}", why)
        return found

    def time_fault(self, certificate: certificates.HostCertificate) -> str:
        """Return why a certificate is not to be taken now, and by how much; empty if it is."""
        return certificates.time_fault(certificate, self._clock(), self._grace_s)

    def chain_fault(self, certificate: certificates.HostCertificate) -> str:
        """Return why a certificate that was believed before is not any more; empty if it is."""
        try:
            self.check(certificate.pem)
        except errors.NotAuthenticated as e:
            return e.why
        return ""


_PROTOCOLS = (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)


@contextlib.contextmanager
def _in_memory(pem: bytes) -> Iterator[str]:
    """Give what ``ssl`` reads from a file alone a name: of one set, and never on a disk."""
    fd = os.memfd_create("certificate")
    try:
        os.write(fd, pem)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
