# SPDX-License-Identifier: Apache-2.0
"""How often checkpoints of a host's servers are wanted, as Nova knows it: aggregates, metadata.

Who owns a server may ask for no more than the operator offers.  Metadata is the tenant's,
so it counts only where the operator has said how short an interval may be, and a shorter
one is that.  What aggregates and flavors say is the operator's own.

Hosts that ask while Nova does not answer, or too often, are told to ask again; none waits for
what another one asked.
"""

import threading
import time
from collections.abc import Callable

from acstor_common.model import checkpoint_intervals
from acstor_common.model import ids
from acstor_common.wire import checkpoint_messages as messages
from acstor_decision import nova_client

KNOWN_S = 60.0
"""For so long aggregates are known: one question to Nova tells of those of all hosts.

That Nova did not say them is remembered for as long."""
LEAST_S = 10.0
"""Between two questions of a host for what Nova says of its servers; daemons ask every 10 min."""

_Told = tuple[float, list[nova_client.Aggregate] | None]
"""When Nova was asked last, and what it said; None: nothing."""


class IntervalLookup:
    """What Nova says of intervals; may be asked by many threads.

    :param least_s: the shortest that metadata of servers may ask for; 0: metadata says nothing
    :param clock: monotonic
    """

    def __init__(
        self,
        nova: nova_client.NovaClient,
        least_s: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nova, self._least_s, self._clock = nova, least_s, clock
        self._lock, self._turns = threading.Lock(), threading.Lock()
        self._told: _Told = clock() - KNOWN_S, None
        self._hosts_asked_s: dict[str, float] = {}

    def intervals_of_host(self, host: str) -> messages.IntervalResponse:
        """Return what counts for a host and its servers.

        :raises nova_client.NovaUnreachable: it cannot be known
        """
        said = [
            checkpoint_intervals.parse(one.metadata.get(checkpoint_intervals.NAME))
            for one in self._all()
            if host in one.hosts
        ]
        of_host = checkpoint_intervals.shortest([wanted for wanted in said if wanted is not None])
        return messages.IntervalResponse(of_host=of_host, of_servers=self._of_servers(host))

    def _all(self) -> list[nova_client.Aggregate]:
        """Return the aggregates; one thread asks at a time, and no other waits for it."""
        asked_s, told = self._told
        if self._clock() - asked_s < KNOWN_S:
            if told is None:
                raise nova_client.NovaBusy("it did not tell its aggregates a moment ago")
            return told
        if not self._lock.acquire(blocking=False):
            raise nova_client.NovaBusy("another host waits for its aggregates")
        told = None
        try:
            told = self._nova.list_aggregates()
            return told
        finally:
            self._told = self._clock(), told
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
        return tuple(found[: messages.MAX_INTERVALS])

    def _take_turn(self, host: str) -> None:
        """Note that a host asks; only those of the last LEAST_S are remembered."""
        with self._turns:
            now_s = self._clock()
            recent = {
                one: at_s for one, at_s in self._hosts_asked_s.items() if now_s - at_s < LEAST_S
            }
            if host in recent:
                raise nova_client.NovaBusy(f"{host} has asked a moment ago")
            self._hosts_asked_s = {**recent, host: now_s}
