# SPDX-License-Identifier: Apache-2.0
"""Schedule of servers' checkpoints: the most overdue is next; times are of a monotonic clock."""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from typing import Final

from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.schedule import nova_intervals
from acstor_common import errors
from acstor_common.model import checkpoint_intervals
from acstor_common.model import ids
from acstor_common.util import backoff

_FIRST_PAUSE_S: Final = 30.0  # after a failure; doubles with each one, up to the interval


def interval_s(
    server: domain_xml.Server, intervals: nova_intervals.Intervals, default_s: int
) -> int:
    """Return a server's interval in seconds; 0: never."""
    spec_s = checkpoint_intervals.parse(server.extra_specs.get(checkpoint_intervals.NAME))
    wanted_s = nova_intervals.server_interval_s(server.instance, spec_s, intervals, default_s)
    return checkpoint_intervals.clamp(wanted_s)


@dataclasses.dataclass
class _Entry:
    server: domain_xml.Server
    every_s: float
    due_s: float
    since_s: float
    failures: int = 0
    is_retried: bool = False
    asked_s: float = -math.inf
    promised_s: float = 0.0

    @property
    def needs_checkpoints(self) -> bool:
        """Whether it needs checkpoints, or a last one that withdraws its promise."""
        return bool(self.every_s or self.promised_s)


class ServerSchedule:
    """Schedule of all servers of a host; ``default_s``: interval of servers without their own."""

    def __init__(self, default_s: int) -> None:
        self._default_s = default_s
        self._entries: dict[ids.ImageId, _Entry] = {}

    def set_servers(
        self,
        present: Iterable[domain_xml.Server],
        now_s: float,
        age_s: Callable[[ids.ImageId], float | None],  # of the last checkpoint; None: there is none
        intervals: nova_intervals.Intervals = nova_intervals.Intervals(),  # noqa: B008 (it is never changed)
    ) -> None:
        """Set the servers that are on this host."""
        entries = {}
        for server in present:
            every_s = interval_s(server, intervals, self._default_s)
            entry = self._entries.get(server.instance)
            if entry is None:
                age = age_s(server.instance)
                past_s = every_s if age is None else min(max(age, 0.0), every_s)
                entry = _Entry(server, every_s, now_s + every_s - past_s, now_s - past_s)
            if not entry.needs_checkpoints:  # not overdue while disabled
                entry.due_s = entry.since_s = now_s
            entry.due_s = min(entry.due_s, now_s + every_s)
            entry.server, entry.every_s = server, every_s
            entries[server.instance] = entry
        self._entries = entries

    def has_server(self, instance: ids.ImageId) -> bool:
        """Return whether a server was on this host at the last update."""
        return instance in self._entries

    def every_s(self, instance: ids.ImageId) -> int:
        """Return a server's interval; 0: none, or not here."""
        entry = self._entries.get(instance)
        return 0 if entry is None else int(entry.every_s)

    def overdue_s(self, now_s: float) -> dict[ids.ImageId, float]:
        """Return for how long each server is overdue; 0: it is not."""
        return {
            instance: max(0.0, now_s - entry.since_s - entry.every_s)
            for instance, entry in self._entries.items()
            if entry.every_s
        }

    def is_retried(self, instance: ids.ImageId) -> bool:
        """Return whether a server's last attempt failed or was delayed."""
        entry = self._entries.get(instance)
        return entry is not None and entry.is_retried

    def is_due(self, instance: ids.ImageId, now_s: float) -> bool:
        """Return whether it is time for a server's checkpoint."""
        entry = self._entries.get(instance)
        return entry is not None and entry.needs_checkpoints and entry.due_s <= now_s

    def next_server(
        self, now_s: float, busy: Container[ids.ImageId] = (), *, may_retry: bool = True
    ) -> domain_xml.Server | None:
        """Return the next due server; skip ``busy`` and, without ``may_retry``, retried ones."""
        due = [
            entry
            for instance, entry in self._entries.items()
            if self.is_due(instance, now_s)
            and instance not in busy
            and (may_retry or not entry.is_retried)
        ]
        return min(due, key=lambda entry: entry.due_s).server if due else None

    def prioritize(self, instance: ids.ImageId, now_s: float) -> None:
        """Schedule a server next; Unusable if it is not here or has no interval."""
        entry = self._entries.get(instance)
        if entry is None:
            raise errors.Unusable(
                f"server {instance}",
                "it is not on this host, not on a mirror, or libvirt does not describe it",
            )
        if not entry.every_s:
            names = f"[acstor_checkpoint] checkpoint_interval_s, {checkpoint_intervals.NAME}"
            why = f"it has no interval ({names})"
            raise errors.Unusable(f"server {instance}", why)
        entry.asked_s = now_s
        entry.due_s = min([now_s, *(other.due_s for other in self._entries.values())]) - 1.0

    def record_success(
        self,
        instance: ids.ImageId,
        began_s: float,
        promised_s: float,  # the interval that it was registered with
        *,
        was_delayed: bool = False,  # it waited for a slow holder
    ) -> None:
        """Record a checkpoint that began at ``began_s``; a later request needs another."""
        if entry := self._entries.get(instance):
            entry.failures, entry.is_retried = 0, was_delayed
            entry.since_s, entry.promised_s = began_s, promised_s
            if entry.asked_s <= began_s:
                entry.due_s = began_s + entry.every_s

    def record_part(self, instance: ids.ImageId, now_s: float) -> None:
        """Record a part: continue after all waiting servers had their turn."""
        if entry := self._entries.get(instance):
            entry.due_s, entry.is_retried = now_s, True

    def record_failure(
        self, instance: ids.ImageId, now_s: float, *, is_replaced: bool = False
    ) -> float:
        """Record a failed checkpoint; return the seconds until the next attempt.

        :param is_replaced: the next attempt uses another holder, so the first one has no pause
        """
        entry = self._entries.get(instance)
        if entry is None:
            return 0.0
        longest_s = entry.every_s or entry.promised_s
        pause_s = backoff.pause_s(entry.failures, _FIRST_PAUSE_S, longest_s)
        if is_replaced and not entry.failures:
            pause_s = 0.0
        entry.failures, entry.is_retried = entry.failures + 1, True
        entry.due_s = now_s + pause_s
        return pause_s
