# SPDX-License-Identifier: Apache-2.0
"""Connects to agents by TLS, without certificate, to see which host authenticates."""

import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.util import supervision
from acstor_decision.core.membership import address_book
from acstor_decision.identity import trust_state

ATTEMPT_S = 3.0
WORKERS = 16


class VerifyResult(NamedTuple):
    """Result of an attempt; ``why`` is the reason if ``host`` is ""."""

    address: address_book.Address
    host: str
    why: str = ""


class AddressVerifier:
    """Threads that verify addresses."""

    def __init__(self, attempt_s: float = ATTEMPT_S) -> None:
        self._attempt_s = attempt_s
        self._wanted: queue.Queue[tuple[address_book.Address, trust_state.TrustState]]
        self._wanted = queue.Queue()
        self._found: queue.SimpleQueue[VerifyResult] = queue.SimpleQueue()
        self._in_flight: set[address_book.Address] = set()

    def start(self, stopping: threading.Event) -> None:
        """Start the threads; they end with the process."""
        for number in range(WORKERS):
            supervision.start(f"address proofs {number}", self._work, stopping)

    def in_flight(self) -> frozenset[address_book.Address]:
        """Return the addresses in progress; called by the thread that submits."""
        return frozenset(self._in_flight)

    def submit_addresses(
        self, addresses: Iterable[address_book.Address], trust: trust_state.TrustState
    ) -> None:
        """Queue addresses, unless they are in progress; never waits."""
        for address in addresses:
            if address not in self._in_flight:
                self._in_flight.add(address)
                self._wanted.put((address, trust))

    def take_results(self) -> list[VerifyResult]:
        """Return the results since the last call; called by the thread that submits."""
        found: list[VerifyResult] = []
        while True:
            try:
                found.append(self._found.get_nowait())
            except queue.Empty:
                self._in_flight.difference_update(proof.address for proof in found)
                return found

    def _work(self) -> None:
        while True:
            address, trust = self._wanted.get()
            try:
                host = verify_address(address, trust, time.time(), self._attempt_s)
                proof = VerifyResult(address, host)
            except (OSError, ValueError, errors.NotAuthenticated) as e:
                proof = VerifyResult(address, "", str(e) or type(e).__name__)
            except BaseException:
                self._found.put(VerifyResult(address, "", "an internal error of this service"))
                raise
            self._found.put(proof)


def verify_address(
    address: address_book.Address,
    trust: trust_state.TrustState,
    now_s: float,
    attempt_s: float = ATTEMPT_S,
) -> str:
    """Return the host that authenticates by TLS at an address.

    :raises OSError: there is no TLS handshake in time
    :raises errors.NotAuthenticated: the certificate is not trusted
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name is a host ID, checked below
    context.verify_flags |= credentials.NO_CHECK_TIME
    context.set_alpn_protocols([credentials.PROOF_PROTOCOL])
    context.load_verify_locations(cadata=trust.ca.decode("ascii"))
    with socket.create_connection(address, attempt_s) as link:
        with context.wrap_socket(link, do_handshake_on_connect=False) as tls:
            tls.settimeout(attempt_s)  # for the whole handshake
            tls.do_handshake()
            shown = tls.getpeercert(binary_form=True) or b""
    certificate = certificates.read_host_certificate(shown, trust.ca)
    if fault := trust.why_untrusted(certificate, now_s):
        raise errors.NotAuthenticated(f"the certificate of {certificate.host}", fault)
    return certificate.host
