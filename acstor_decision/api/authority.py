# SPDX-License-Identifier: Apache-2.0
"""The certificate authority, for those who are to trust it; nothing here is secret."""

import datetime

import msgspec

from acstor_decision.api import operation


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """Whom hosts, and what runs next to Glance, are to trust; certificates and keys in PEM.

    :param ca: authorities that issue hosts' certificates, the one that issues now first
    :param signers: public keys that sign v-node tables and tasks
    :param revoked: by host: certificates whose validity begins before this time do not count, in
        seconds since 1970
    :param enrolment: whether new hosts are let in ``automatic``ally or have to be ``approved``
    """

    ca: str
    signers: str
    revoked: dict[str, int]
    enrolment: str
    certificate_life_s: int
    now: datetime.datetime


def show(call: operation.Call) -> Authority:
    """Answer with the authority."""
    trust, now_s = call.authority.trust(), call.wall()
    return Authority(
        ca=trust.ca.decode(),
        signers=trust.signers.decode(),
        revoked=trust.revoked(now_s),
        enrolment=call.authority.enrolment,
        certificate_life_s=call.authority.certificate_life_s,
        now=datetime.datetime.fromtimestamp(now_s, datetime.UTC),
    )


OPERATIONS = (
    operation.Operation(
        "authority:get",
        "GET",
        "/v1/authority",
        "Show whom hosts are to trust",
        Authority,
        show,
        rule=f"{operation.SERVICE} or {operation.READER}",
    ),
)
