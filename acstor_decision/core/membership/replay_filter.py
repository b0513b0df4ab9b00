# SPDX-License-Identifier: Apache-2.0
"""Replay protection: any sender on the broker can repeat a sample; only new ones count."""

import enum
from collections.abc import Hashable
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

from acstor_common.wire import decision_messages

CLOCK_SLACK_S = 30.0  # largest difference between the clocks of two hosts

Sender = TypeVar("Sender", bound=Hashable)


class Refusal(enum.Enum):
    """Why a sample is refused; the values appear in logs and metrics."""

    NOT_ALLOWED = "not_allowed"  # allowed_hosts excludes the name
    FUTURE = "future"  # it was sent, or its agent started, in the future
    LATE = "late"  # too old
    DOUBLED = "doubled"  # received before
    OUT_OF_ORDER = "out_of_order"  # a later one was received before
    OLD_SESSION = "old_session"  # of an agent that another session has replaced
    TAKEN_ADDRESS = "taken_address"  # another member has its address
    UNREACHABLE = "unreachable"  # other hosts cannot reach its address
    CROWDED = "crowded"  # too many hosts are at its IP address
    FULL = "full"  # the v-node table has no room for more hosts


class _Newest(NamedTuple):
    session: int
    started_s: float
    number: int
    sent_s: float
    received_s: float


class ReplayFilter(Generic[Sender]):
    """The newest sample of each sender.

    :param silent_s: silence after which an agent may begin a session that looks older than the last
        one, as its clock may have been set back
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._newest: dict[Sender, _Newest] = {}

    def why_refused(
        self, sender: Sender, sample: decision_messages.Sample, now_s: float, wall_s: float
    ) -> Refusal | None:
        """Return why a sample is not the newest of its sender; None if it is."""
        if max(sample.sent_s, sample.started_s) > wall_s + CLOCK_SLACK_S:
            return Refusal.FUTURE
        if sample.sent_s < wall_s - self._longest_s():
            return Refusal.LATE
        newest = self._newest.get(sender)
        if newest is None:
            return None
        if now_s - newest.received_s > self._silent_s:
            return Refusal.OUT_OF_ORDER if sample.sent_s <= newest.sent_s else None
        if sample.session != newest.session:
            return None if sample.started_s > newest.started_s else Refusal.OLD_SESSION
        if sample.number == newest.number:
            return Refusal.DOUBLED
        return Refusal.OUT_OF_ORDER if sample.number < newest.number else None

    def record_newest(self, sender: Sender, sample: decision_messages.Sample, now_s: float) -> None:
        """Record the newest sample of a sender."""
        self._newest[sender] = _Newest(
            sample.session, sample.started_s, sample.number, sample.sent_s, now_s
        )

    def forget_expired(self, now_s: float) -> None:
        """Forget samples so old that a copy would be refused as late."""
        since_s = now_s - self._longest_s() - CLOCK_SLACK_S
        self._newest = {
            sender: newest
            for sender, newest in self._newest.items()
            if newest.received_s >= since_s
        }

    def _longest_s(self) -> float:
        return self._silent_s + CLOCK_SLACK_S
