# SPDX-License-Identifier: Apache-2.0
"""Keeps the trusted keys up to date, from the decision service or from files."""

import logging
import pathlib
import threading
from typing import NamedTuple

import msgspec
from oslo_config import cfg

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.ring import hash_ring
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_glance.client import decision_client

LOG = logging.getLogger(__name__)

CA_FILE, SIGNERS_FILE = "ca.pem", "signers.pem"
REFRESH_S = 60.0
RETRY_S = 5.0
MAX_ANSWER_BYTES = 1 << 22  # longest answer: MAX_REVOKED hosts with the longest names fit


class _AuthorityAnswer(msgspec.Struct, frozen=True):
    ca: str
    signers: str
    revoked: dict[str, int] = {}


class TrustAnchors(NamedTuple):
    """Keys that messages and grants are verified against."""

    ca: bytes  # PEM of the authorities for host certificates; empty: no host is trusted
    signers: tuple[signing.PublicKey, ...]
    revoked: dict[str, int]  # by host: certificates that begin before this wall-clock time


NO_TRUST = TrustAnchors(b"", (), {})


class TrustStore:
    """Trusted keys, refreshed by a thread; thread-safe."""

    def __init__(self, conf: cfg.ConfigOpts, *, retry_s: float = RETRY_S) -> None:
        self._conf, self._retry_s = conf, retry_s
        self._trust = NO_TRUST
        self._stopping = threading.Event()
        self._fault = log_once.LogOnce(LOG)
        self._service = decision_client.DecisionClient(conf)

    def trust_anchors(self) -> TrustAnchors:
        """Return the keys, as last known."""
        return self._trust

    def start(self) -> None:
        """Start the thread."""
        supervision.start("acstor-authority", self._run, self._stopping)

    def stop(self) -> None:
        """Stop refreshing."""
        self._stopping.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            try:
                self.refresh()
            except (errors.AcstorError, OSError) as exc:
                self._fault.log_warning(
                    f"the trusted keys of the message bus cannot be refreshed: {exc}"
                )
                wait_s = self._retry_s
            else:
                self._fault.log_warning("")
                wait_s = REFRESH_S

    def refresh(self) -> None:
        """Read the keys once; raises NotAuthenticated, or OSError for a file."""
        own = self._conf.acstor_glance
        if own.trusted_dir:
            ca, signers = (pathlib.Path(own.trusted_dir, name) for name in (CA_FILE, SIGNERS_FILE))
            try:
                signer_keys = _read(signers) if signers.exists() else b""
                self._trust = parse_trust(_read(ca), signer_keys, {})
            except errors.NotAuthenticated as exc:
                raise errors.Unusable(own.trusted_dir, str(exc)) from exc
            return
        answer = self._service.get("/v1/authority", _AuthorityAnswer, MAX_ANSWER_BYTES)
        self._trust = parse_trust(answer.ca.encode(), answer.signers.encode(), answer.revoked)


def parse_trust(ca: bytes, signers: bytes, revoked: dict[str, int]) -> TrustAnchors:
    """Parse trusted keys; empty ones trust no host or no service."""
    if ca:
        certificates.read_ca(ca)
    if len(revoked) > hash_ring.MAX_REVOKED:
        raise errors.NotAuthenticated("the list of revoked hosts", f"{len(revoked)} are too many")
    return TrustAnchors(ca, signing.read_public_keys(signers) if signers else (), revoked)


def _read(path: pathlib.Path) -> bytes:
    with path.open("rb") as file:
        return file.read(certificates.MAX_BUNDLE_BYTES)
