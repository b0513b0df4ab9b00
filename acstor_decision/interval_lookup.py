# SPDX-License-Identifier: Apache-2.0
"""Looks up checkpoint intervals in the metadata of Nova's aggregates and servers.

Tenants own the metadata of servers, so it counts only if the operator has set a minimum, to which
shorter intervals are raised. A host that asks too often, or while Nova is silent, must retry.
"""

import threading
import time

from acstor_common.model import checkpoint_intervals
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.wire import checkpoint_messages as messages
from acstor_decision import nova_client

KNOWN_S = 60.0  # how long aggregates are cached, or that Nova failed to list them
LEAST_S = 10.0  # minimum time between two requests of a host; daemons ask every 10 min

_TimedAggregates = tuple[float, list[nova_client.Aggregate] | None]
"""Time of the last request to Nova, and the aggregates; None: it failed."""


class IntervalLookup:
    """Looks up the intervals of hosts and their servers; thread-safe."""

    def __init__(
        self,
        nova: nova_client.NovaClient,
        least_s: int,  # minimum for servers' metadata; 0: ignore it
        clock: clocks.Clock = time,
        max_servers: int = messages.MAX_INTERVALS,  # in a response
    ) -> None:
        self._nova, self._least_s, self._clock = nova, least_s, clock
        self._max_servers = max_servers
        self._lock, self._turns = threading.Lock(), threading.Lock()
        self._aggregates: _TimedAggregates = clock.monotonic() - KNOWN_S, None
        self._hosts_asked_s: dict[str, float] = {}

    def intervals_of_host(self, host: str) -> messages.IntervalResponse:
        """Return the intervals of a host and of its servers; may raise NovaUnreachable."""
        intervals_s = [
            checkpoint_intervals.parse(server.metadata.get(checkpoint_intervals.NAME))
            for server in self._all()
            if host in server.hosts
        ]
        of_host = checkpoint_intervals.shortest(
            [wanted for wanted in intervals_s if wanted is not None]
        )
        return messages.IntervalResponse(of_host=of_host, of_servers=self._of_servers(host))

    def _all(self) -> list[nova_client.Aggregate]:
        """Return the aggregates, cached; at most one thread asks Nova."""
        asked_s, aggregates = self._aggregates
        if self._clock.monotonic() - asked_s < KNOWN_S:
            if aggregates is None:
                raise nova_client.NovaBusy("it did not list its aggregates a moment ago")
            return aggregates
        if not self._lock.acquire(blocking=False):
            raise nova_client.NovaBusy("a request for its aggregates is in progress")
        aggregates = None
        try:
            aggregates = self._nova.list_aggregates()
            return aggregates
        finally:
            self._aggregates = self._clock.monotonic(), aggregates
            self._lock.release()

    def _of_servers(self, host: str) -> tuple[messages.ServerInterval, ...]:
        if not self._least_s:
            return ()
        self._take_turn(host)
        found = []
        for instance_id, metadata in self._nova.metadata_on(host).items():
            wanted_s = checkpoint_intervals.parse(metadata.get(checkpoint_intervals.NAME))
            if wanted_s is not None:
                bounded_s = checkpoint_intervals.clamp(wanted_s, self._least_s)
                found.append(messages.ServerInterval(ids.parse_image_id(instance_id), bounded_s))
        return tuple(found[: self._max_servers])

    def _take_turn(self, host: str) -> None:
        with self._turns:
            now_s = self._clock.monotonic()
            recent = {
                other: at_s for other, at_s in self._hosts_asked_s.items() if now_s - at_s < LEAST_S
            }
            if host in recent:
                raise nova_client.NovaBusy(f"{host} sent a request a moment ago")
            self._hosts_asked_s = {**recent, host: now_s}
