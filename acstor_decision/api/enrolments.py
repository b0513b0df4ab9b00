# SPDX-License-Identifier: Apache-2.0
"""Who a host is: certificates for those who can prove it, and what operators say of it.

The one rule: every request for a certificate is logged with the host, the user and
the address that it came from, whatever became of it.
"""

import http
import logging
from typing import Annotated

import msgspec

from acstor_common import errors
from acstor_common import ids
from acstor_decision import authority
from acstor_decision.api import hosts
from acstor_decision.api import operation
from acstor_decision.core import enrolment
from acstor_decision.core import members

LOG = logging.getLogger(__name__)

_STATUS = {
    enrolment.Verdict.REVOKED: http.HTTPStatus.FORBIDDEN,
    None: http.HTTPStatus.TOO_MANY_REQUESTS,
}


class CertificateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a certificate.

    :param csr: PKCS 10 in PEM, of an Ed25519 key; the name in it is not looked at
    :param proof: Ed25519 signature over the bytes of ``csr``, purpose ``renewal``, in base64, by
        the key of the certificate that the host has; empty: it has none, or keeps its key
    """

    csr: Annotated[str, msgspec.Meta(max_length=8192)]
    proof: Annotated[str, msgspec.Meta(max_length=128)] = ""


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
    except authority.Refused as e:
        _log_refusal(call, host, e.why)
        status = _STATUS.get(e.verdict, http.HTTPStatus.CONFLICT)
        raise operation.Refused(status, str(e)) from e
    except errors.NotAuthentic as e:
        _log_refusal(call, host, str(e))
        raise operation.Refused(http.HTTPStatus.BAD_REQUEST, str(e)) from e
    LOG.info("host %s: certificate for user %s at %s", host, call.user_id, call.address)
    return Certificate(
        certificate=issued.certificate.decode(),
        ca=issued.ca.decode(),
        signers=issued.signers.decode(),
        not_after=issued.not_after_s,
        now=issued.now_s,
    )


def _log_refusal(call: operation.Call, host: str, why: str) -> None:
    who = (host, call.user_id, call.address, why)
    LOG.warning("host %s: no certificate for user %s at %s: %s", *who)


def _check_name(host: ids.HostId, limits: members.Limits) -> None:
    if not members.may_join(host, limits):
        raise authority.Refused(
            host, enrolment.Verdict.REVOKED, "[acstor_decision] allowed_hosts has no place for it"
        )


def allow(call: operation.Call) -> hosts.HostDetail:
    """Let a host enrol once, for the first time or with another user or key."""
    call.authority.allow(operation.host_id(call.path["host"]))
    return _told(call, "allowed to enrol")


def revoke(call: operation.Call) -> hosts.HostDetail:
    """Shut a host out: the next v-node table says so, and names it no more."""
    call.authority.revoke(operation.host_id(call.path["host"]))
    return _told(call, "revoked")


def _told(call: operation.Call, what: str) -> hosts.HostDetail:
    LOG.info("host %s: %s by user %s at %s", call.path["host"], what, call.user_id, call.address)
    return hosts.one(call)


OPERATIONS = (
    operation.Operation(
        "host:enrol",
        "POST",
        "/v1/hosts/{host}/certificate",
        "Give a host a certificate",
        Certificate,
        issue,
        rule=operation.SERVICE,
        body=CertificateRequest,
    ),
    operation.Operation(
        "host:allow",
        "POST",
        "/v1/hosts/{host}/allow",
        "Let a host enrol once, for the first time or with another user or key",
        hosts.HostDetail,
        allow,
        rule=operation.ADMIN,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.Operation(
        "host:revoke",
        "POST",
        "/v1/hosts/{host}/revoke",
        "Shut a host out: none of its certificates counts any more",
        hosts.HostDetail,
        revoke,
        rule=operation.ADMIN,
        status=http.HTTPStatus.ACCEPTED,
    ),
)
