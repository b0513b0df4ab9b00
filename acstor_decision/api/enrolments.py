# SPDX-License-Identifier: Apache-2.0
"""Who a host is: certificates for those who can prove it, and what operators say of it.

Every request for a certificate is logged with the host, the user and the address
that it came from, whatever became of it, and those that are refused are counted.
"""

import http
import logging
from typing import Annotated

import msgspec

from acstor_common import errors
from acstor_common import ids
from acstor_common import patterns
from acstor_decision.api import hosts
from acstor_decision.api import operation
from acstor_decision.core import enrolment
from acstor_decision.core import members

LOG = logging.getLogger(__name__)

_STATUS = {
    enrolment.Verdict.REVOKED: http.HTTPStatus.FORBIDDEN,
    enrolment.Verdict.NOT_ALLOWED: http.HTTPStatus.FORBIDDEN,
    enrolment.Verdict.TOO_OFTEN: http.HTTPStatus.TOO_MANY_REQUESTS,
    enrolment.Verdict.NO_ROOM: http.HTTPStatus.TOO_MANY_REQUESTS,
}


class CertificateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a certificate.

    :param csr: PKCS 10 in PEM, of an Ed25519 key; the name in it is not looked at
    :param proof: Ed25519 signature over the bytes of ``csr``, purpose ``renewal``, in base64, by
        the key of the certificate that the host has; empty: it has none, or keeps its key
    """

    csr: Annotated[str, msgspec.Meta(max_length=8192)]
    proof: Annotated[str, msgspec.Meta(max_length=128)] = ""


class LetIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom an operator lets in.

    :param fingerprint: SHA-256 of the public key (SubjectPublicKeyInfo) of the host's next request,
        in hex; empty: that which asked first, if the host waits, or whichever comes
    :param user_id: of the Keystone user whose the host is to be; empty likewise
    """

    fingerprint: patterns.OptionalHex64 = ""
    user_id: Annotated[str, msgspec.Meta(max_length=255)] = ""


class ForgottenHost(msgspec.Struct, frozen=True):
    """A host whose name is free again."""

    host: str


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate, and whom its host is to trust; all in PEM.

    :param certificate: its one name is the host's
    :param ca: authorities whose certificates are those of other hosts
    :param signers: public keys that sign v-node tables and tasks
    :param not_after: its end, in seconds since 1970
    :param now: the service's clock; a host whose own says otherwise has a wrong one
    """

    certificate: str
    ca: str
    signers: str
    not_after: float
    now: float


def issue(call: operation.Call) -> Certificate:
    """Give a host a certificate, for the first time or anew."""
    host = operation.host_id(call.path["host"])
    try:
        _check_name(host, call.limits)
        issued = call.authority.enrol(
            host, call.user_id, call.address, call.body.csr.encode(), call.body.proof
        )
    except enrolment.Refused as e:
        verdict = e.verdict or enrolment.Verdict.MALFORMED
        _note_refusal(call, host, verdict, e.why)
        status = _STATUS.get(verdict, http.HTTPStatus.CONFLICT)
        raise operation.Refused(status, str(e)) from e
    except errors.NotAuthentic as e:
        _note_refusal(call, host, enrolment.Verdict.MALFORMED, str(e))
        raise operation.Refused(http.HTTPStatus.BAD_REQUEST, str(e)) from e
    LOG.info("host %s: certificate for user %s at %s", host, call.user_id, call.address)
    return Certificate(
        certificate=issued.certificate.decode(),
        ca=issued.ca.decode(),
        signers=issued.signers.decode(),
        not_after=issued.not_after_s,
        now=issued.now_s,
    )


def _note_refusal(call: operation.Call, host: str, verdict: enrolment.Verdict, why: str) -> None:
    who = (host, call.user_id, call.address, why)
    LOG.warning("host %s: no certificate for user %s at %s: %s", *who)
    call.store.count_refused(verdict)


def _check_name(host: ids.HostId, limits: members.Limits) -> None:
    if not members.may_join(host, limits):
        raise enrolment.Refused(
            host,
            enrolment.Verdict.NOT_ALLOWED,
            "it is not in [acstor_decision] allowed_hosts",
        )


def allow(call: operation.Call) -> hosts.HostDetail:
    """Let a host enrol once, for the first time or with another user or key."""
    wanted: LetIn = call.body
    host = operation.host_id(call.path["host"])
    call.authority.allow(host, wanted.fingerprint, wanted.user_id)
    return _told(call, "allowed to enrol")


def revoke(call: operation.Call) -> hosts.HostDetail:
    """Shut a host out: the next v-node table says so, and names it no more."""
    call.authority.revoke(operation.host_id(call.path["host"]))
    return _told(call, "revoked")


def forget(call: operation.Call) -> ForgottenHost:
    """Free the name of a host that is gone."""
    host = operation.host_id(call.path["host"])
    try:
        is_known = call.authority.forget(host)
    except enrolment.Refused as e:
        raise operation.Refused(http.HTTPStatus.CONFLICT, str(e)) from e
    if not is_known:
        raise operation.not_found(f"host {host}")
    _log(call, "forgotten")
    return ForgottenHost(host)


def _told(call: operation.Call, what: str) -> hosts.HostDetail:
    _log(call, what)
    return hosts.one(call)


def _log(call: operation.Call, what: str) -> None:
    LOG.info("host %s: %s by user %s at %s", call.path["host"], what, call.user_id, call.address)


OPERATIONS = (
    operation.Operation(
        "host:enrol",
        "POST",
        "/v1/hosts/{host}/certificate",
        "Give a host a certificate",
        Certificate,
        issue,
        rule=operation.AGENT,
        body=CertificateRequest,
    ),
    operation.about_host(
        "allow",
        "Let a host enrol once, for the first time or with another user or key",
        hosts.HostDetail,
        allow,
        body=LetIn,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.about_host(
        "revoke",
        "Shut a host out: none of its certificates counts any more",
        hosts.HostDetail,
        revoke,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.about_host("forget", "Free the name of a host that is gone", ForgottenHost, forget),
)
