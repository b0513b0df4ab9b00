# SPDX-License-Identifier: Apache-2.0
"""Health of this host for the decision service, sent with every sample."""

import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from acstor_agent.core.mount import blocked_requests
from acstor_common.service import version
from acstor_common.util import sliding_window
from acstor_common.wire import decision_messages

FAILED = "failed reads"
WINDOW_S = 3600.0


class Health:
    """Summarizes the host's health.

    :param late: returns the requests that have waited long, by file
    :param failed_reads: returns their number since the start
    :param fallbacks: returns Nova's fallbacks since the start, by reason
    :param on_dead_mounts: returns the guests on dead mounts
    :param troubles: returns the faults of parts, as in status
    """

    def __init__(
        self,
        *,
        late: Callable[[], Collection[blocked_requests.LateWaits]],
        failed_reads: Callable[[], int],
        fallbacks: Callable[[], Mapping[str, int]],
        troubles: Callable[[], Mapping[str, Mapping[str, Any]]],
        on_dead_mounts: Callable[[], Collection[str]],
    ) -> None:
        self._late, self._failed_reads = late, failed_reads
        self._fallbacks, self._troubles = fallbacks, troubles
        self._on_dead_mounts = on_dead_mounts
        self._version = version.installed()[:64]
        self._window = sliding_window.SlidingWindow(WINDOW_S, time.monotonic())

    def current_health(self) -> decision_messages.HostHealth:
        """Return the current health."""
        late = sorted(self._late(), key=lambda one: -one.longest_s)
        totals = {**self._fallbacks(), FAILED: self._failed_reads()}
        grown = self._window.grown_counters(time.monotonic(), totals)
        failed = grown.pop(FAILED, 0)
        lost = sorted(self._on_dead_mounts())[: decision_messages.MAX_GUESTS]
        troubles = sorted(self._troubles().items())[: decision_messages.MAX_FAULTS]
        return decision_messages.HostHealth(
            version=self._version,
            waiting=sum(one.count for one in late),
            longest_wait_s=late[0].longest_s if late else 0.0,
            waits_for=next((one.why for one in late if one.why), "")[: decision_messages.MAX_WHY],
            failed_reads=failed,
            fallbacks=dict(sorted(grown.items())[: decision_messages.MAX_REASONS]),
            faults={
                what[: decision_messages.MAX_WHY]: decision_messages.HostFault(
                    one["why"][: decision_messages.MAX_WHY], max(0.0, one["since_s"])
                )
                for what, one in troubles
            },
            on_dead_mounts=tuple(guest[: decision_messages.MAX_WHY] for guest in lost),
        )
