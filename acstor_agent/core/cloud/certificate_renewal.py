# SPDX-License-Identifier: Apache-2.0
"""When a host asks for its next certificate: long before the one that it has ends.

Hosts that were started together must not ask together, nor for ever.  Each asks in
a stretch of a tenth of its certificate's life before two thirds of it, and after a
failure waits twice as long as before, up to RETRY_LAST_S, give or take a quarter.
With a life of 24 h a host has 8 h to be heard before its certificate ends, and the
days of ``certificates.GRACE_S`` after that.
"""

from acstor_common.identity import certificates

LATEST_SHARE = 2 / 3
STRETCH = 0.1
RETRY_FIRST_S = 5.0
RETRY_LAST_S = 600.0
CLOCK_FAULT_S = 60.0
"""Clocks that differ by less are not worth a word."""


def due_s(certificate: certificates.HostCertificate, dice: float) -> float:
    """Return when to ask for the next certificate, by the clock of who issued it.

    :param dice: from 0 to 1, drawn once for each certificate
    """
    begin_s = min(certificate.not_before_s + certificates.BACKDATE_S, certificate.not_after_s)
    life_s = certificate.not_after_s - begin_s
    return begin_s + life_s * (LATEST_SHARE - STRETCH * dice)


def retry_s(failures: int, dice: float) -> float:
    """Return how long to wait after so many failures in a row.

    >>> [retry_s(failures, 0.5) for failures in (1, 2, 3, 100)]
    [5.0, 10.0, 20.0, 600.0]

    :param dice: from 0 to 1
    """
    doubled = RETRY_FIRST_S * 2.0 ** min(failures - 1, 16)
    return min(RETRY_LAST_S, doubled) * (0.75 + dice / 2)


def clock_fault(off_s: float) -> str:
    """Return what is wrong with this host's clock; "" if it is right.

    >>> clock_fault(-86400.0)
    "this host's clock is 86400 s behind that of the decision service"

    :param off_s: how far it is ahead of the decision service's
    """
    if abs(off_s) < CLOCK_FAULT_S:
        return ""
    way = "ahead of" if off_s > 0 else "behind"
    return f"this host's clock is {abs(off_s):.0f} s {way} that of the decision service"
