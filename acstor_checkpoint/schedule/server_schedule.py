# SPDX-License-Identifier: Apache-2.0
"""Schedule of servers' checkpoints: the most overdue server is next.

Times are of a monotonic clock, so steps of the wall clock have no effect.
"""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from typing import Final

from acstor_checkpoint.capture import domain_xml
from acstor_checkpoint.schedule import nova_intervals
from acstor_common import errors
from acstor_common.model import checkpoint_intervals
from acstor_common.model import ids

_FIRST_PAUSE_S: Final = 30.0
"""After a failure; doubles with each one, up to the interval."""


def interval_s(server: domain_xml.Server, told: nova_intervals.Answer, default_s: int) -> int:
    """Return a server's interval in seconds; 0: never."""
    spec_s = checkpoint_intervals.parse(server.specs.get(checkpoint_intervals.NAME))
    wanted_s = nova_intervals.server_interval_s(server.instance, spec_s, told, default_s)
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
    def is_owed(self) -> bool:
        """Whether it needs checkpoints, or a last one that withdraws its promise."""
        return bool(self.every_s or self.promised_s)


class ServerSchedule:
    """Schedule of all servers of a host.

    :param default_s: interval of servers without their own
    """

    def __init__(self, default_s: int) -> None:
        self._default_s = default_s
        self._turns: dict[ids.ImageId, _Entry] = {}

    def set_servers(
        self,
        present: Iterable[domain_xml.Server],
        now_s: float,
        age_s: Callable[[ids.ImageId], float | None],
        told: nova_intervals.Answer = nova_intervals.Answer(),  # noqa: B008 (it is never changed)
    ) -> None:
        """Set the servers that are on this host.

        :param age_s: returns the age of a server's last checkpoint; None: none
        :param told: intervals of the decision service
        """
        turns = {}
        for server in present:
            every_s = interval_s(server, told, self._default_s)
            turn = self._turns.get(server.instance)
            if turn is None:
                age = age_s(server.instance)
                past_s = every_s if age is None else min(max(age, 0.0), every_s)
                turn = _Entry(server, every_s, now_s + every_s - past_s, now_s - past_s)
            if not turn.is_owed:  # not overdue while disabled
                turn.due_s = turn.since_s = now_s
            turn.due_s = min(turn.due_s, now_s + every_s)
            turn.server, turn.every_s = server, every_s
            turns[server.instance] = turn
        self._turns = turns

    def is_here(self, instance: ids.ImageId) -> bool:
        """Return whether a server was on this host at the last update."""
        return instance in self._turns

    def every_s(self, instance: ids.ImageId) -> int:
        """Return a server's interval; 0: none, or not here."""
        turn = self._turns.get(instance)
        return 0 if turn is None else int(turn.every_s)

    def overdue_s(self, now_s: float) -> dict[ids.ImageId, float]:
        """Return for how long each server is overdue; 0: it is not."""
        return {
            instance: max(0.0, now_s - turn.since_s - turn.every_s)
            for instance, turn in self._turns.items()
            if turn.every_s
        }

    def is_retried(self, instance: ids.ImageId) -> bool:
        """Return whether a server's last attempt failed or was delayed."""
        turn = self._turns.get(instance)
        return turn is not None and turn.is_retried

    def next_server(
        self, now_s: float, busy: Container[ids.ImageId] = (), *, may_retry: bool = True
    ) -> domain_xml.Server | None:
        """Return the next due server; None if none is due.

        :param busy: servers to skip
        :param may_retry: include servers with :meth:`is_retried`
        """
        due = [
            turn
            for instance, turn in self._turns.items()
            if turn.is_owed
            and turn.due_s <= now_s
            and instance not in busy
            and (may_retry or not turn.is_retried)
        ]
        return min(due, key=lambda turn: turn.due_s).server if due else None

    def request_turn(self, instance: ids.ImageId, now_s: float) -> None:
        """Schedule a server next; Unusable if it is not here or has no interval."""
        turn = self._turns.get(instance)
        if turn is None:
            raise errors.Unusable(
                f"server {instance}", "it is not on this host, or not on a mirror"
            )
        if not turn.every_s:
            names = f"[acstor_checkpoint] checkpoint_interval_s, {checkpoint_intervals.NAME}"
            why = f"it has no interval ({names})"
            raise errors.Unusable(f"server {instance}", why)
        turn.asked_s = now_s
        turn.due_s = min([now_s, *(other.due_s for other in self._turns.values())]) - 1.0

    def record_taken(
        self, instance: ids.ImageId, began_s: float, *, is_held_up: bool = False
    ) -> None:
        """Record a checkpoint whose attempt began at ``began_s``.

        A request after that time needs a further checkpoint.

        :param is_held_up: it waited for a slow holder
        """
        if turn := self._turns.get(instance):
            turn.failures, turn.is_retried = 0, is_held_up
            turn.since_s, turn.promised_s = began_s, turn.every_s
            if turn.asked_s <= began_s:
                turn.due_s = began_s + turn.every_s

    def cut_off(self, instance: ids.ImageId, now_s: float) -> None:
        """Record a part: continue after all waiting servers had their turn."""
        if turn := self._turns.get(instance):
            turn.due_s, turn.is_retried = now_s, True

    def record_failure(
        self, instance: ids.ImageId, now_s: float, *, is_replaced: bool = False
    ) -> float:
        """Record a failed checkpoint; return the seconds until the next attempt.

        :param is_replaced: what failed is replaced in the next attempt: the first one is at once
        """
        turn = self._turns.get(instance)
        if turn is None:
            return 0.0
        longest_s = turn.every_s or turn.promised_s
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(turn.failures, 20), longest_s)
        if is_replaced and not turn.failures:
            pause_s = 0.0
        turn.failures, turn.is_retried = turn.failures + 1, True
        turn.due_s = now_s + pause_s
        return pause_s
