# SPDX-License-Identifier: Apache-2.0
"""Changes rows of enrolments; :mod:`core.enrolment_rules` decides about requests.

A name that passes to another user must never make old certificates valid again.
"""

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import signed_messages
from acstor_decision.core import enrolment_rules
from acstor_decision.db import json_columns
from acstor_decision.db import models
from acstor_decision.identity import trust_state


def read_request(user_id: str, csr: bytes, proof: str) -> enrolment_rules.CertificateRequest:
    """Parse a certificate request; NotAuthenticated if its own signature is wrong."""
    key = certificates.request_key(csr)
    return enrolment_rules.CertificateRequest(
        user_id,
        signing.pem_of(key),
        certificates.fingerprint(key),
        lambda of: _is_signed_by(of, csr, proof),
    )


def fingerprint(row: models.Enrolment) -> str:
    """Return the fingerprint of a host's key, or of the allowed key; "" if it is damaged."""
    if not row.public_key:
        return row.allowed_fingerprint
    try:
        return certificates.fingerprint(signing.read_public_keys(row.public_key.encode())[0])
    except errors.NotAuthenticated as e:
        json_columns.log_damage(f"enrolments.public_key of {row.host}", e)
        return ""


def state_of(row: models.Enrolment) -> enrolment_rules.EnrolmentState:
    """Return the state of an enrolment; an unknown value counts as revoked."""
    try:
        return enrolment_rules.EnrolmentState(row.state)
    except ValueError as e:
        revoked = enrolment_rules.EnrolmentState.REVOKED
        json_columns.log_damage(f"enrolments.state of {row.host}", e, revoked)
        return revoked


def is_name_free(row: models.Enrolment | None) -> bool:
    """Return whether a host's name is free."""
    return row is None or row.state == enrolment_rules.EnrolmentState.FORGOTTEN


def new_row(host: ids.HostId) -> models.Enrolment:
    """Return the row of a new host."""
    row = models.Enrolment(host=host, revoked_before_s=0)
    row.user_id = row.address = row.public_key = row.former_key = row.allowed_fingerprint = ""
    return row


def allow_host(row: models.Enrolment, key_fingerprint: str, user_id: str, now_s: float) -> None:
    """Allow a host to enrol; the allowed request, if it waits, keeps the name."""
    is_waiting = row.state == enrolment_rules.EnrolmentState.WAITING
    is_same_request = key_fingerprint in ("", fingerprint(row)) and user_id in ("", row.user_id)
    if not is_waiting or not is_same_request:
        if row.state is not None:
            invalidate_certificates(row, now_s)
        row.user_id, row.allowed_fingerprint = user_id, key_fingerprint
    row.state = enrolment_rules.EnrolmentState.ALLOWED


def release_name(row: models.Enrolment, now_s: float) -> bool:
    """Free a host's name; return whether to keep the row, which revokes certificates."""
    if not row.revoked_before_s and row.issued_s is None:
        return False
    invalidate_certificates(row, now_s)
    row.state, row.address, row.asked_s = enrolment_rules.EnrolmentState.FORGOTTEN, "", None
    return True


def invalidate_certificates(row: models.Enrolment, now_s: float) -> None:
    """Invalidate a host's certificates, even if a fast clock issued them."""
    before_s = certificates.refused_before(max(now_s, row.issued_s or 0.0))
    row.revoked_before_s = max(before_s, row.revoked_before_s or 0)
    row.user_id = row.public_key = row.former_key = row.allowed_fingerprint = ""
    row.not_after_s = row.issued_s = None


def known_enrolment(row: models.Enrolment | None) -> enrolment_rules.KnownEnrolment | None:
    """Return the enrolment as the rules need it."""
    if row is None:
        return None
    return enrolment_rules.KnownEnrolment(
        state_of(row),
        row.user_id,
        trust_state.keys_of(row),
        row.allowed_fingerprint,
    )


def _is_signed_by(key: str, csr: bytes, proof: str) -> bool:
    try:
        signed_messages.check_signature(
            signing.read_public_keys(key.encode()), signing.RENEWAL, csr, proof
        )
    except errors.NotAuthenticated:
        return False
    return True


def record_request(
    row: models.Enrolment | None,
    host: ids.HostId,
    asked: enrolment_rules.CertificateRequest,
    address: str,
    now_s: float,
) -> models.Enrolment:
    """Record the first request for a free name; later requests change nothing."""
    if row is not None and not is_name_free(row):
        return row
    row = row or new_row(host)
    row.state, row.asked_s = enrolment_rules.EnrolmentState.WAITING, now_s
    row.user_id, row.public_key, row.address = asked.user_id, asked.key, address
    return row


def bind_key(
    row: models.Enrolment,
    asked: enrolment_rules.CertificateRequest,
    address: str,
    issued_s: float,
    not_after_s: float,
) -> None:
    """Bind a host to the key of its certificate; a replayed request does not remove a new key.

    The previous key stays valid until the new one is used, in case the response is lost.
    """
    if asked.key == row.former_key:
        row.public_key, row.former_key = row.former_key, row.public_key
    elif asked.key != row.public_key:
        proven = [key for key in trust_state.keys_of(row) if asked.is_proven_by(key)]
        row.former_key = proven[0] if proven else ""
        row.public_key = asked.key
    else:
        row.former_key = ""
    row.state = enrolment_rules.EnrolmentState.ENROLLED
    row.user_id, row.address, row.allowed_fingerprint = asked.user_id, address, ""
    row.issued_s, row.not_after_s = issued_s, not_after_s


def check_rate(row: models.Enrolment, now_s: float, least_interval_s: float) -> None:
    """Raise EnrolmentRefused if the host received a certificate a moment ago."""
    if row.issued_s is not None and abs(now_s - row.issued_s) < least_interval_s:
        why = "it received a certificate less than a second ago"
        raise enrolment_rules.EnrolmentRefused(row.host, enrolment_rules.Verdict.TOO_OFTEN, why)


def refusal(
    verdict: enrolment_rules.Verdict, host: str, row: models.Enrolment | None = None
) -> enrolment_rules.EnrolmentRefused:
    """Return a refusal; its remedy never allows the request's key, which any client may send."""
    if (
        row is not None
        and row.state == enrolment_rules.EnrolmentState.WAITING
        and verdict in _OTHERS
    ):
        return enrolment_rules.EnrolmentRefused(host, verdict, _FIRST.format(host=host))
    return enrolment_rules.EnrolmentRefused(host, verdict, _WHY[verdict].format(host=host))


_OTHERS = (enrolment_rules.Verdict.OTHER_USER, enrolment_rules.Verdict.OTHER_KEY)
_ALLOW = "openstack acstor host allow {host} --fingerprint KEY (acstor-agent-ctl status shows KEY)"
_FIRST = (
    "another user or key requested this name first (openstack acstor host show {host}); if that is "
    f"not one of your hosts: {_ALLOW}"
)
_WHY = {
    enrolment_rules.Verdict.WAIT: f"an operator has to allow it: {_ALLOW}",
    enrolment_rules.Verdict.REVOKED: f"it is revoked; to allow it again: {_ALLOW}",
    enrolment_rules.Verdict.OTHER_USER: "another Keystone user enrolled it; if this user is "
    f"right now, an operator has to allow it again: {_ALLOW}",
    enrolment_rules.Verdict.OTHER_KEY: "it enrolled before, and its key did not sign this request. "
    f"If the key is lost, an operator has to allow it again: {_ALLOW}",
    enrolment_rules.Verdict.NOT_LET_IN: "an operator allowed another key; if this one is right, "
    f"an operator has to allow it instead: {_ALLOW}",
}
