# SPDX-License-Identifier: Apache-2.0
"""Contents of the samples that this host sends to the decision service."""

import time
from collections.abc import Mapping

from acstor_agent.cache import cache_files
from acstor_agent.cloud import decision_link
from acstor_agent.control import image_tasks
from acstor_agent.control import status
from acstor_agent.engine_io import exchange
from acstor_agent.images.boot import boot_timelines
from acstor_agent.images.image import mirrors
from acstor_agent.mount import dead_mounts
from acstor_agent.mount import stuck_requests
from acstor_agent.runtime import supervised_tasks
from acstor_agent.sources import source_client
from acstor_common.service import version
from acstor_common.util import sliding_window
from acstor_common.wire import decision_messages

FAILED_READS = "failed reads"
WINDOW_S = 3600.0


class HealthSummary:
    """Summarizes the host's health; ``fallbacks`` are Nova's since the start, by reason."""

    def __init__(
        self,
        images: mirrors.Mirrors,
        stuck: stuck_requests.StuckRequests,
        mounts: dead_mounts.DeadMounts,
        fallbacks: Mapping[str, int],
        tasks: supervised_tasks.SupervisedTasks,
        source: source_client.SourceClient,
    ) -> None:
        self._images, self._stuck, self._mounts = images, stuck, mounts
        self._fallbacks, self._tasks, self._source = fallbacks, tasks, source
        self._version = version.installed()[:64]
        self._window = sliding_window.SlidingWindow(WINDOW_S, time.monotonic())

    def current_health(self) -> decision_messages.HostHealth:
        """Return the current health."""
        late = sorted(
            self._stuck.list_late_requests().values(), key=lambda requests: -requests.longest_s
        )
        totals = {**self._fallbacks, FAILED_READS: self._images.failed_reads()}
        grown = self._window.grown_counters(time.monotonic(), totals)
        failed = grown.pop(FAILED_READS, 0)
        lost = sorted(self._mounts.guests)[: decision_messages.MAX_GUESTS]
        faults = status.of_faults(self._tasks.issues, self._source.list_statuses())
        return decision_messages.HostHealth(
            version=self._version,
            waiting=sum(requests.count for requests in late),
            longest_wait_s=late[0].longest_s if late else 0.0,
            waits_for=next((requests.why for requests in late if requests.why), "")[
                : decision_messages.MAX_WHY
            ],
            failed_reads=failed,
            fallbacks=dict(sorted(grown.items())[: decision_messages.MAX_REASONS]),
            faults={
                what[: decision_messages.MAX_WHY]: decision_messages.HostFault(
                    fault["why"][: decision_messages.MAX_WHY], max(0.0, fault["since_s"])
                )
                for what, fault in sorted(faults.items())[: decision_messages.MAX_FAULTS]
            },
            on_dead_mounts=tuple(guest[: decision_messages.MAX_WHY] for guest in lost),
        )


class HostReport:
    """Implements :class:`decision_link.HostReport`."""

    def __init__(
        self,
        chunks: exchange.Exchange,
        cache: cache_files.CacheFiles,
        tasks: image_tasks.ImageTasks,
        timelines: boot_timelines.BootTimelines,
        health: HealthSummary,
    ) -> None:
        self._chunks, self._cache = chunks, cache
        self.iter_cids, self.changed_images = cache.iter_cids, tasks.changed_images
        self.new_boots, self.current_health = timelines.new_boots, health.current_health

    def exchange_totals(self) -> decision_link.ExchangeTotals:
        """Return the totals of exchange and cache."""
        return decision_link.exchange_totals(self._chunks, self._cache)
