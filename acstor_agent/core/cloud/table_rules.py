# SPDX-License-Identifier: Apache-2.0
"""Rules for accepting a v-node table, and for the hosts that may connect.

Once a signed table is in force, only a signed one with a higher epoch follows, within MAX_LEAP. A
signed table replaces an unsigned one whatever its epoch, because their epochs are unrelated.
"""

from acstor_common.model import ids
from acstor_common.ring import hash_ring

EPOCH_END = 1 << 53
"""Upper bound of epochs: larger numbers are inexact in some JSON implementations."""


def rejection_reason(epoch: int, current: int, *, is_signed: bool, is_current_signed: bool) -> str:
    """Return why a table cannot replace the ``current`` epoch (0: no table); "" if it can.

    >>> rejection_reason(7, 7, is_signed=True, is_current_signed=True)
    'epoch 7 is not higher than 7'
    >>> rejection_reason(1, 7, is_signed=True, is_current_signed=False)
    ''
    """
    if epoch >= EPOCH_END:
        return f"epoch {epoch} is out of range"
    if is_signed and not is_current_signed:
        return ""
    if is_current_signed and not is_signed:
        return "the table in force is signed by the decision service, this one is not"
    if epoch <= current:
        return f"epoch {epoch} is not higher than {current}"
    if is_signed and epoch > current + hash_ring.MAX_LEAP:
        most = hash_ring.MAX_LEAP
        return f"epoch {epoch} is too high: at most {most} above {current} is accepted"
    return ""


def admission_error(
    host: ids.HostId, not_before_s: float, current: hash_ring.Ring, former: hash_ring.Ring | None
) -> str:
    """Return why a host, certified at ``not_before_s`` (Unix), may not connect; "" if it may."""
    if host not in current and (former is None or host not in former):
        return "it is neither in the current v-node table nor in the previous one"
    if not_before_s < current.revoked.get(host, 0):
        return "its certificate was revoked"
    return ""
