# SPDX-License-Identifier: Apache-2.0
"""Whether a sample is newer than those that came before it, by session and sequence number.

Anybody who can publish on the broker can send a recorded sample again.  The one rule: a
sample counts once, and only while it is the newest of its sender.
"""

import enum
from collections.abc import Hashable
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

from acstor_common.wire import decision_messages

CLOCK_SLACK_S = 30.0
"""How far the clocks of two hosts may differ."""

Who = TypeVar("Who", bound=Hashable)


class Refusal(enum.Enum):
    """Why a sample is not used; the values are names in logs and metrics."""

    NOT_ALLOWED = "not_allowed"  # no host of this name may join
    FUTURE = "future"  # it was sent, or its agent started, after now
    LATE = "late"  # it says what was, not what is
    DOUBLED = "doubled"  # it was here already
    OUT_OF_ORDER = "out_of_order"  # a later one was here already
    OLD_SESSION = "old_session"  # of an agent that another one of this name has replaced
    TAKEN_ADDRESS = "taken_address"  # another member lives there
    UNREACHABLE = "unreachable"  # its address leads nobody else to it
    CROWDED = "crowded"  # as many hosts as may be are at its IP address
    FULL = "full"  # no v-node table has room for more hosts


class _Newest(NamedTuple):
    session: int
    started_s: float
    number: int
    sent_s: float
    heard_s: float


class ReplayFilter(Generic[Who]):
    """The newest sample of each sender.

    :param silent_s: time without a sample after which an agent may begin a session that is older
        than the last one, since its clock may have gone back
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._newest: dict[Who, _Newest] = {}

    def why_refused(
        self, who: Who, sample: decision_messages.Sample, now_s: float, wall_s: float
    ) -> Refusal | None:
        """Return why a sample is not the newest of its sender; None if it is.

        :param now_s: of a clock that never goes back
        :param wall_s: of the clock that samples are stamped with
        """
        if max(sample.sent_s, sample.started_s) > wall_s + CLOCK_SLACK_S:
            return Refusal.FUTURE
        if sample.sent_s < wall_s - self._longest_s():
            return Refusal.LATE
        newest = self._newest.get(who)
        if newest is None:
            return None
        if now_s - newest.heard_s > self._silent_s:
            return Refusal.OUT_OF_ORDER if sample.sent_s <= newest.sent_s else None
        if sample.session != newest.session:
            return None if sample.started_s > newest.started_s else Refusal.OLD_SESSION
        if sample.number == newest.number:
            return Refusal.DOUBLED
        return Refusal.OUT_OF_ORDER if sample.number < newest.number else None

    def record_newest(self, who: Who, sample: decision_messages.Sample, now_s: float) -> None:
        """Note the newest sample of a sender."""
        self._newest[who] = _Newest(
            sample.session, sample.started_s, sample.number, sample.sent_s, now_s
        )

    def forget_late(self, now_s: float) -> None:
        """Forget samples of which a copy is refused as late."""
        since_s = now_s - self._longest_s() - CLOCK_SLACK_S
        self._newest = {who: one for who, one in self._newest.items() if one.heard_s >= since_s}

    def _longest_s(self) -> float:
        """Return for how long a sample may be on its way."""
        return self._silent_s + CLOCK_SLACK_S
