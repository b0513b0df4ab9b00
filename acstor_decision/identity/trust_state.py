# SPDX-License-Identifier: Apache-2.0
"""Whom the decision service believes, and what it signs with, as it was at one time.

A certificate of the right authority is not enough.  Its host has to have
enrolled here, with this key, and not to have been revoked since.
"""

from collections.abc import Mapping
from typing import NamedTuple

from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.ring import hash_ring
from acstor_common.wire import signed_messages
from acstor_decision.core import enrolment_rules
from acstor_decision.db import models

REVOCATION_KEPT_S = (366 + 60) * 86400
"""For how long the table names a revocation of a host that enrolled anew or is gone: longer than
the longest ``certificate_lifetime_s``, and the grace of agents."""


class TrustState(NamedTuple):
    """Whom the service believes, as it was at one time.

    :param ca: authorities whose certificates count (PEM)
    :param signers: public keys that may sign (PEM)
    :param signer: the key that signs now (PEM)
    :param hosts: what is known of each host
    """

    ca: bytes = b""
    signers: bytes = b""
    signer: bytes = b""
    hosts: Mapping[str, models.Enrolment] = {}

    def why_untrusted(self, certificate: certificates.HostCertificate, now_s: float) -> str:
        """Return why a host is not believed that has this certificate; "" if it is."""
        row = self.hosts.get(certificate.host)
        if row is not None and row.state == enrolment_rules.EnrolmentState.REVOKED:
            return "it is revoked"
        if row is None or row.state != enrolment_rules.EnrolmentState.ENROLLED:
            return "it has not enrolled here"
        if certificate.not_before_s < row.revoked_before_s:
            return "its certificate is revoked"
        known = [signing.read_public_keys(key.encode())[0] for key in keys_of(row)]
        if certificate.public_key not in known:
            return "its certificate is of another key than the one that enrolled"
        return certificates.time_fault(certificate, now_s, certificates.GRACE_S)

    def is_enrolled(self, host: str) -> bool:
        """Say whether a host has enrolled, and was not revoked since."""
        row = self.hosts.get(host)
        return row is not None and row.state == enrolment_rules.EnrolmentState.ENROLLED

    def list_revoked(self, now_s: float) -> dict[str, int]:
        """Return what a v-node table says of revoked hosts.

        If there are too many, those whose names were freed go first, then the oldest.
        """
        found = [row for row in self.hosts.values() if _is_named(row, now_s)]
        found.sort(key=_rank, reverse=True)
        return {row.host: row.revoked_before_s for row in found[: hash_ring.MAX_REVOKED]}

    def sign_data(self, purpose: str, data: bytes) -> str:
        """Return the signature of ``data``, in base64."""
        return signed_messages.signature_of(purpose, data, self.signer)


def _rank(row: models.Enrolment) -> tuple[bool, int, str]:
    return row.state != enrolment_rules.EnrolmentState.FORGOTTEN, row.revoked_before_s, row.host


def _is_named(row: models.Enrolment, now_s: float) -> bool:
    if row.state == enrolment_rules.EnrolmentState.REVOKED:
        return row.revoked_before_s > 0
    return row.revoked_before_s > max(0.0, now_s - REVOCATION_KEPT_S)


def keys_of(row: models.Enrolment) -> tuple[str, ...]:
    """Return the public keys (PEM) that a host may have."""
    return tuple(key for key in (row.public_key, row.former_key) if key)
