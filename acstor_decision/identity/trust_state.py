# SPDX-License-Identifier: Apache-2.0
"""Snapshot of trusted certificates and keys, and the current signing key.

A trusted host has enrolled here with its key, and has not been revoked since.
"""

from collections.abc import Mapping
from typing import NamedTuple

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import signed_messages
from acstor_decision.core import enrolment_rules
from acstor_decision.db import json_columns
from acstor_decision.db import models

REVOCATION_KEPT_S = (366 + 60) * 86400
"""How long the table names a revocation of a host that enrolled again or is gone.

It exceeds the longest ``certificate_lifetime_s`` plus the grace of agents.
"""


class TrustState(NamedTuple):
    """Trusted certificates and keys."""

    ca: bytes = b""  # trusted authorities (PEM)
    signers: bytes = b""  # public keys that may sign (PEM)
    signer: bytes = b""  # the current private key (PEM)
    hosts: Mapping[str, models.Enrolment] = {}  # enrolments by host

    def why_untrusted(self, certificate: certificates.HostCertificate, now_s: float) -> str:
        """Return why a certificate is not trusted; "" if it is."""
        row = self.hosts.get(certificate.host)
        if row is not None and row.state == enrolment_rules.EnrolmentState.REVOKED:
            return "it is revoked"
        if row is None or row.state != enrolment_rules.EnrolmentState.ENROLLED:
            return "it has not enrolled here"
        if certificate.not_before_s < row.revoked_before_s:
            return "its certificate is revoked"
        try:
            known = [signing.read_public_keys(key.encode())[0] for key in keys_of(row)]
        except errors.NotAuthenticated:
            return "its key in the database is damaged"
        if certificate.public_key not in known:
            return "the key of its certificate is not the one that enrolled"
        return certificates.time_fault(certificate, now_s, certificates.GRACE_S)

    def is_enrolled(self, host: str) -> bool:
        """Return whether a host has enrolled and is not revoked."""
        row = self.hosts.get(host)
        return row is not None and row.state == enrolment_rules.EnrolmentState.ENROLLED

    def list_revoked(self, now_s: float, limit: int = hash_ring.MAX_REVOKED) -> dict[str, int]:
        """Return revocations; above ``limit``, omit those of freed names first, then the oldest."""
        found = [row for row in self.hosts.values() if _is_named(row, now_s)]
        found.sort(key=_rank, reverse=True)
        return {row.host: min(row.revoked_before_s, hash_ring.MAX_EPOCH) for row in found[:limit]}

    def sign_data(self, purpose: str, data: bytes) -> str:
        """Return the signature of ``data``, in base64."""
        return signed_messages.signature_of(purpose, data, self.signer)


def _rank(row: models.Enrolment) -> tuple[bool, int, str]:
    return row.state != enrolment_rules.EnrolmentState.FORGOTTEN, row.revoked_before_s, row.host


def _is_named(row: models.Enrolment, now_s: float) -> bool:
    if not ids.HOST_ID.fullmatch(row.host):  # one such name would invalidate the whole table
        json_columns.log_damage(f"enrolments.host {row.host!r}", ValueError("no host id"), "absent")
        return False
    if row.state == enrolment_rules.EnrolmentState.REVOKED:
        return row.revoked_before_s > 0
    return row.revoked_before_s > max(0.0, now_s - REVOCATION_KEPT_S)


def keys_of(row: models.Enrolment) -> tuple[str, ...]:
    """Return a host's valid public keys (PEM)."""
    return tuple(key for key in (row.public_key, row.former_key) if key)
