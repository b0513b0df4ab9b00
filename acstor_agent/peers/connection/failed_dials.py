# SPDX-License-Identifier: Apache-2.0
"""Failed dials: pauses of announcements, and rate-limited warnings."""

import logging
import math

import trio

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_limit
from acstor_common.util import lru_table

LOG = logging.getLogger(__name__)

REDIAL_S = 1.0  # after a failed dial, until announcements dial again; requests dial at once
LOG_INTERVAL_S = 10.0


class FailedDials:
    """The last failed dial to each address of a host, ``limit`` at most."""

    def __init__(self, limit: int) -> None:
        self._failed_s = lru_table.LruTable[tuple[ids.HostId, str], float](limit)
        self._log_limit = log_limit.LogLimit(LOG_INTERVAL_S)

    def dial_failed(self, host: ids.HostId, address: str) -> None:
        """Record a failed dial."""
        self._failed_s[host, address] = trio.current_time()

    def may_announce(self, host: ids.HostId, address: str) -> bool:
        """Return whether an announcement may dial a host."""
        failed_s = self._failed_s.get((host, address), -math.inf)
        return trio.current_time() >= failed_s + REDIAL_S

    def log_rejection(self, host: ids.HostId, peer: str, error: errors.AcstorError) -> None:
        """Log that a host is not authenticated or has another version."""
        suppressed = self._log_limit.take_line(host, trio.current_time())
        if suppressed is not None:
            more = f" (and {suppressed} more like it)" if suppressed else ""
            LOG.warning("Connection to %s dropped: %s%s", peer, error, more)
