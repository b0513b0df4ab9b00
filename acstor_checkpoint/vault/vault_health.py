# SPDX-License-Identifier: Apache-2.0
"""Health issues of this host's vault, for operators."""

import enum
import time
from collections.abc import Sequence
from typing import Final

from acstor_checkpoint.vault import group_sync
from acstor_checkpoint.vault import quota
from acstor_common.model import clocks
from acstor_common.util import sliding_window

WINDOW_S: Final = 1800.0
SLOW_S: Final = 5.0  # average duration of a sync, as in the alert AcstorVaultSlow


class Issue(enum.StrEnum):
    """An issue; the value is a word of the cloud's status."""

    FULL = "full"  # the whole vault, not the quota of one host
    SLOW = "slow"
    NOT_SAFE = "not_safe"


class VaultHealth:
    """Health of a vault over the last WINDOW_S; not thread-safe."""

    def __init__(
        self,
        vault_quota: quota.Quota,
        vault_sync: group_sync.GroupSync,
        clock: clocks.Clock = time,
        slow_s: float = SLOW_S,
    ) -> None:
        self._quota, self._sync, self._clock = vault_quota, vault_sync, clock
        self._slow_s = slow_s
        self._window = sliding_window.SlidingWindow(WINDOW_S, clock.monotonic(), self._totals())

    def list_issues(self) -> Sequence[Issue]:
        """Return the current issues."""
        grown = self._window.grown_counters(self._clock.monotonic(), self._totals())
        syncs = max(1, grown.get("syncs", 0))  # the first one may hang
        has = {
            Issue.FULL: "refused" in grown,
            Issue.SLOW: grown.get("sync_ms", 0) > 1000 * self._slow_s * syncs,
            Issue.NOT_SAFE: self._sync.has_failed,
        }
        return [issue for issue in Issue if has[issue]]

    def _totals(self) -> dict[str, int]:
        return {
            "refused": sum(
                self._quota.refused[bound] for bound in quota.Bound if not bound.is_of_host
            ),
            "syncs": self._sync.passes,
            "sync_ms": int(1000 * self._sync.took_s),
        }
