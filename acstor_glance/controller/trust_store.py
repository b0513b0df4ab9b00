# SPDX-License-Identifier: Apache-2.0
"""Asks the decision service, again and again, whom to believe; or reads it from files.

Nobody waits for this.  What was known last counts while the service is away, and
what nobody has said yet is believed of nobody.
"""

import logging
import pathlib
import threading

import msgspec
from oslo_config import cfg

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.ring import hash_ring
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_glance.client import decision_client
from acstor_glance.controller import message_verifier

LOG = logging.getLogger(__name__)

CA_FILE, SIGNERS_FILE = "ca.pem", "signers.pem"
ASK_EVERY_S = 60.0
ASK_AGAIN_S = 5.0
MAX_ANSWER_BYTES = 1 << 22
"""As many revoked hosts as there may be, with the longest names, and more."""


class _Answer(msgspec.Struct, frozen=True):
    """What ``GET /v1/authority`` says, as far as it counts here."""

    ca: str
    signers: str
    revoked: dict[str, int] = {}


class TrustStore:
    """Knows whom to believe; start it, then ask :meth:`trust_anchors` from any thread."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._trust = message_verifier.NO_TRUST
        self._stopping = threading.Event()
        self._fault = log_once.LogOnce(LOG)
        self._service = decision_client.DecisionClient(conf)

    def trust_anchors(self) -> message_verifier.TrustAnchors:
        """Return whom to believe, as it was known last."""
        return self._trust

    def start(self) -> None:
        """Begin to look; waits for nothing."""
        supervision.start("acstor-authority", self._run, self._stopping)

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            try:
                self.refresh()
            except (errors.AcstorError, OSError) as exc:
                self._fault.log_warning(
                    f"whom to believe on the message bus is not known anew: {exc}"
                )
                wait_s = ASK_AGAIN_S
            else:
                self._fault.log_warning("")
                wait_s = ASK_EVERY_S

    def refresh(self) -> None:
        """Look once.

        :raises errors.ImageServiceError: the decision service says nothing
        :raises errors.NotAuthenticated: what it says makes no sense
        :raises OSError: a file cannot be read
        """
        own = self._conf.acstor_glance
        if own.trusted_dir:
            ca, signers = (pathlib.Path(own.trusted_dir, name) for name in (CA_FILE, SIGNERS_FILE))
            try:
                told = _read(signers) if signers.exists() else b""
                self._trust = parse_trust(_read(ca), told, {})
            except errors.NotAuthenticated as exc:
                raise errors.Unusable(own.trusted_dir, str(exc)) from exc
            return
        answer = self._service.get("/v1/authority", _Answer, MAX_ANSWER_BYTES)
        self._trust = parse_trust(answer.ca.encode(), answer.signers.encode(), answer.revoked)


def parse_trust(
    ca: bytes, signers: bytes, revoked: dict[str, int]
) -> message_verifier.TrustAnchors:
    """Return whom to believe; what is empty stands for nobody.

    :raises errors.NotAuthenticated: it is no PEM of authorities or of public keys
    """
    if ca:
        certificates.read_ca(ca)
    if len(revoked) > hash_ring.MAX_REVOKED:
        raise errors.NotAuthenticated("what is revoked", f"{len(revoked)} hosts are too many")
    return message_verifier.TrustAnchors(
        ca, signing.read_public_keys(signers) if signers else (), revoked
    )


def _read(path: pathlib.Path) -> bytes:
    with path.open("rb") as file:
        return file.read(certificates.MAX_BUNDLE_BYTES)
