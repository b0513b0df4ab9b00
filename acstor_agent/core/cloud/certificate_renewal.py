# SPDX-License-Identifier: Apache-2.0
"""When a host requests its next certificate: long before the current one expires.

Requests are spread, so that hosts started together do not act together. A host asks in the tenth of
the lifetime before two thirds of it; after failures it waits twice as long each time, plus or minus
a quarter. A lifetime of 24 h leaves it 8 h, and the days of ``certificates.GRACE_S`` after.
"""

from acstor_common.identity import certificates
from acstor_common.util import backoff

LATEST_SHARE = 2 / 3
STRETCH = 0.1
RETRY_FIRST_S = 5.0
RETRY_LONGEST_S = 600.0
CLOCK_FAULT_S = 60.0  # smaller differences of clocks are not reported


def due_s(certificate: certificates.HostCertificate, jitter: float) -> float:
    """Return when to renew, by the issuer's clock; ``jitter``: 0 to 1, drawn per certificate."""
    begin_s = min(certificate.not_before_s + certificates.BACKDATE_S, certificate.not_after_s)
    life_s = certificate.not_after_s - begin_s
    return begin_s + life_s * (LATEST_SHARE - STRETCH * jitter)


def retry_s(failures: int, jitter: float) -> float:
    """Return the wait after ``failures`` in a row.

    >>> [retry_s(failures, 0.5) for failures in (1, 2, 3, 100)]
    [5.0, 10.0, 20.0, 600.0]
    """
    return backoff.pause_s(failures - 1, RETRY_FIRST_S, RETRY_LONGEST_S) * (0.75 + jitter / 2)


def clock_fault(off_s: float) -> str:
    """Return the fault of a clock that is ``off_s`` ahead; "" if there is none.

    >>> clock_fault(-86400.0)
    "this host's clock is 86400 s behind that of the decision service"
    """
    if abs(off_s) < CLOCK_FAULT_S:
        return ""
    way = "ahead of" if off_s > 0 else "behind"
    return f"this host's clock is {abs(off_s):.0f} s {way} that of the decision service"
