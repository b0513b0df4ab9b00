# SPDX-License-Identifier: Apache-2.0
"""Which hosts may speak to the vault of this one: those of the v-node table that are not revoked.

The one rule: a certificate says who a host is, and the v-node table whether it is of this cloud.
"""

from collections.abc import Callable

from acstor_common import certificates
from acstor_common import errors
from acstor_common import ring as ring_


def fault(ring: Callable[[], ring_.Ring], certificate: certificates.HostCertificate) -> str:
    """Return why a host that has proven who it is may not speak; empty if it may.

    :param ring: returns the table in force; raises errors.Unusable if there is none
    """
    try:
        table = ring()
    except (errors.Unusable, errors.RingFormatError) as e:
        return f"this host knows no other: {e}"
    if certificates.is_revoked(certificate, table.revoked):
        return "its certificate was revoked"
    if certificate.host not in table:
        return f"it is not in v-node table {table.epoch}"
    return ""
