# SPDX-License-Identifier: Apache-2.0
"""The certificate authority and the signers, without secrets."""

import datetime

import msgspec

from acstor_decision.api import operation


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates and keys that hosts and Glance's listeners trust, in PEM.

    :param ca: authorities that issue hosts' certificates, the current one first
    :param signers: public keys that sign v-node tables and tasks
    :param revoked: by host: certificates that became valid before this time are revoked, in seconds
        since 1970
    :param enrolment: ``automatic``: new hosts get a certificate at once; ``approved``: after an
        operator allows them
    """

    ca: str
    signers: str
    revoked: dict[str, int]
    enrolment: str
    certificate_lifetime_s: int
    now: datetime.datetime


def show(call: operation.Call) -> Authority:
    """Return the authority."""
    trust, now_s = call.authority.load_trust_state(), call.wall()
    return Authority(
        ca=trust.ca.decode(),
        signers=trust.signers.decode(),
        revoked=trust.list_revoked(now_s),
        enrolment=call.authority.enrolment,
        certificate_lifetime_s=call.authority.certificate_lifetime_s,
        now=datetime.datetime.fromtimestamp(now_s, datetime.UTC),
    )


OPERATIONS = (
    operation.Operation(
        "authority:get",
        "GET",
        "/v1/authority",
        "Show the authority and the signers that hosts trust",
        Authority,
        show,
        rule=f"{operation.SERVICE} or {operation.READER}",
    ),
)
