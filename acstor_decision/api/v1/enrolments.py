# SPDX-License-Identifier: Apache-2.0
"""Enrolment of hosts: certificates, and decisions of operators."""

import http
import logging
from typing import Annotated

import msgspec

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.model import text_constraints
from acstor_decision.api import operation
from acstor_decision.api.v1 import hosts
from acstor_decision.core import enrolment_rules
from acstor_decision.core.membership import members

LOG = logging.getLogger(__name__)

_STATUS = {
    enrolment_rules.Verdict.REVOKED: http.HTTPStatus.FORBIDDEN,
    enrolment_rules.Verdict.NOT_ALLOWED: http.HTTPStatus.FORBIDDEN,
    enrolment_rules.Verdict.TOO_OFTEN: http.HTTPStatus.TOO_MANY_REQUESTS,
    enrolment_rules.Verdict.NO_ROOM: http.HTTPStatus.TOO_MANY_REQUESTS,
}


class CertificateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a certificate.

    :param csr: PKCS 10 in PEM, of an Ed25519 key; its subject is ignored
    :param proof: Ed25519 signature over the bytes of ``csr``, purpose ``renewal``, in base64, by
        the key of the current certificate; empty: there is none, or the key stays the same
    """

    csr: Annotated[str, text_constraints.text_without_nul(8192)]
    proof: Annotated[str, text_constraints.text_without_nul(128)] = ""


class AllowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Key and user that may enrol a host.

    :param fingerprint: SHA-256 of the public key (SubjectPublicKeyInfo) of the host's next request,
        in hex; empty: the key of the first request, if the host waits, else any key
    :param user_id: Keystone user of the next request; empty likewise
    """

    fingerprint: text_constraints.OptionalHex64 = ""
    user_id: Annotated[str, text_constraints.text_without_nul(255)] = ""


class ForgottenHost(msgspec.Struct, frozen=True):
    """A host whose record was deleted, so its name is free again."""

    host: str


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate, and the keys that its host trusts; all in PEM.

    :param certificate: its only name is the host id
    :param ca: authorities that issue the certificates of other hosts
    :param signers: public keys that sign v-node tables and tasks
    :param not_after: end of the certificate, in seconds since 1970
    :param now: the service's clock, in seconds since 1970
    """

    certificate: str
    ca: str
    signers: str
    not_after: float
    now: float


def issue(call: operation.Call) -> Certificate:
    """Issue a certificate to a host, for the first time or as a renewal."""
    host = operation.host_id(call.path["host"])
    try:
        _check_name(host, call.limits)
        issued = call.authority.enrol_host(
            host, call.user_id, call.address, call.body.csr.encode(), call.body.proof
        )
    except enrolment_rules.EnrolmentRefused as e:
        verdict = e.verdict or enrolment_rules.Verdict.MALFORMED
        _note_refusal(call, host, verdict, e.why)
        status = _STATUS.get(verdict, http.HTTPStatus.CONFLICT)
        raise operation.RequestRefused(status, str(e)) from e
    except errors.NotAuthenticated as e:
        _note_refusal(call, host, enrolment_rules.Verdict.MALFORMED, str(e))
        raise operation.RequestRefused(http.HTTPStatus.BAD_REQUEST, str(e)) from e
    LOG.info("host %s: certificate for user %s at %s", host, call.user_id, call.address)
    return Certificate(
        certificate=issued.certificate.decode(),
        ca=issued.ca.decode(),
        signers=issued.signers.decode(),
        not_after=issued.not_after_s,
        now=issued.now_s,
    )


def _note_refusal(
    call: operation.Call, host: str, verdict: enrolment_rules.Verdict, why: str
) -> None:
    refused = (host, call.user_id, call.address, why)
    LOG.warning("host %s: no certificate for user %s at %s: %s", *refused)
    call.store.count_refused(verdict)


def _check_name(host: ids.HostId, limits: members.MembershipLimits) -> None:
    if not members.may_join(host, limits):
        raise enrolment_rules.EnrolmentRefused(
            host,
            enrolment_rules.Verdict.NOT_ALLOWED,
            "it matches no pattern of [acstor_decision] allowed_hosts",
        )


def allow(call: operation.Call) -> hosts.HostDetail:
    """Allow a host to enrol once, for the first time or with another user or key."""
    wanted: AllowRequest = call.body
    host = operation.host_id(call.path["host"])
    call.authority.allow_host(host, wanted.fingerprint, wanted.user_id)
    return _log_and_show(call, "allowed to enrol")


def revoke(call: operation.Call) -> hosts.HostDetail:
    """Revoke a host's certificates; the next v-node table omits the host."""
    call.authority.revoke_host(operation.host_id(call.path["host"]))
    return _log_and_show(call, "revoked")


def forget(call: operation.Call) -> ForgottenHost:
    """Delete the record of a decommissioned host, so its name is free again."""
    host = operation.host_id(call.path["host"])
    try:
        is_known = call.authority.delete_host(host)
    except enrolment_rules.EnrolmentRefused as e:
        raise operation.RequestRefused(http.HTTPStatus.CONFLICT, str(e)) from e
    if not is_known:
        raise operation.not_found(f"host {host}")
    _log(call, "record deleted")
    return ForgottenHost(host)


def _log_and_show(call: operation.Call, what: str) -> hosts.HostDetail:
    _log(call, what)
    return hosts.show_host(call)


def _log(call: operation.Call, what: str) -> None:
    LOG.info("host %s: %s by user %s at %s", call.path["host"], what, call.user_id, call.address)


OPERATIONS = (
    operation.Operation(
        "host:enrol",
        "POST",
        "/v1/hosts/{host}/certificate",
        "Issue a certificate to a host",
        Certificate,
        issue,
        rule=operation.AGENT,
        body=CertificateRequest,
    ),
    operation.host_action(
        "allow",
        "Allow a host to enrol once, for the first time or with another user or key",
        hosts.HostDetail,
        allow,
        body=AllowRequest,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.host_action(
        "revoke",
        "Revoke the certificates of a host",
        hosts.HostDetail,
        revoke,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.host_action(
        "forget", "Delete the record of a decommissioned host", ForgottenHost, forget
    ),
)
