# SPDX-License-Identifier: Apache-2.0
"""Which peers are worth asking: quarantine with exponential back-off.

The one rule: a peer that failed costs the others little time.  A peer that does
not answer is left alone after a few failures in a row; one that gave bytes that
do not hash to their CID, or broke the protocol, at once and for longer.  When
its time is over one trial request is let through: if that succeeds the peer is
as good as new, else the next quarantine is twice as long.

Times are seconds of one clock that never goes back, given by the caller, as is
the random generator whose jitter keeps hosts from trying all at once.
"""

import collections
import dataclasses
import enum
from typing import Protocol

from acstor_common import ids


class Random(Protocol):
    """The part of ``random.Random`` that is needed."""

    def random(self) -> float:
        """Return a number from 0 up to 1."""


class FailureKind(enum.Enum):
    """What a peer did wrong."""

    UNREACHABLE = enum.auto()  # refused, reset, too late or busy: it may recover soon
    LYING = enum.auto()  # it gave bytes that do not hash to their CID, or broke the protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that decide how patient a host is.

    :param failures_allowed: failures in a row at which an unreachable peer goes in quarantine
    :param first_s: length of its first quarantine, before jitter
    :param liar_first_s: length of the first quarantine of a peer that lied
    :param longest_s: no quarantine is longer, before jitter
    :param trial_s: how long others wait for the outcome of a trial request
    :param jitter: share of the length that is added or taken off at random
    :param max_peers: peers remembered; the one that failed longest ago is forgotten first
    """

    failures_allowed: int = 2
    first_s: float = 0.5
    liar_first_s: float = 60.0
    longest_s: float = 600.0
    trial_s: float = 1.0
    jitter: float = 0.25
    max_peers: int = 16384


@dataclasses.dataclass(slots=True)
class _Record:
    failures: int = 0  # in a row
    quarantines: int = 0  # in a row
    is_liar: bool = False
    until: float = 0.0  # end of the quarantine
    trial_until: float = 0.0  # before this no other trial is let through


@dataclasses.dataclass(slots=True)
class Statistics:
    """Totals since the start."""

    failures: collections.Counter[FailureKind] = dataclasses.field(
        default_factory=collections.Counter
    )
    quarantines: int = 0
    recoveries: int = 0


class PeerHealth:
    """What this host thinks of its peers.  A peer without a record is healthy."""

    def __init__(self, rng: Random, limits: Limits | None = None) -> None:
        self.statistics = Statistics()
        self._rng = rng
        self._limits = limits or Limits()
        self._records: collections.OrderedDict[ids.HostId, _Record] = collections.OrderedDict()

    def is_usable(self, host: ids.HostId, now: float) -> bool:
        """Say whether to ask ``host``; True after a quarantine is the leave for one trial request.

        The others hear False until the trial :meth:`failed` or :meth:`succeeded`, or ``trial_s``
        is over: the caller may have had no need of the leave.
        """
        record = self._records.get(host)
        if record is None or not record.quarantines:
            return True
        if now < record.until or now < record.trial_until:
            return False
        record.trial_until = now + self._limits.trial_s
        return True

    def failed(self, host: ids.HostId, now: float, kind: FailureKind) -> None:
        """Note that a request to ``host`` failed."""
        self.statistics.failures[kind] += 1
        record = self._records.setdefault(host, _Record())
        self._records.move_to_end(host)
        if len(self._records) > self._limits.max_peers:
            self._records.popitem(last=False)
        is_lie = kind is FailureKind.LYING
        if now < record.until and (record.is_liar or not is_lie):
            return  # a request from before the quarantine: it tells nothing new
        record.failures += 1
        record.is_liar |= is_lie
        if is_lie or record.quarantines or record.failures >= self._limits.failures_allowed:
            self._quarantine(record, now)

    def succeeded(self, host: ids.HostId, now: float) -> None:
        """Note that ``host`` gave right bytes, or an honest no: it is as good as new.

        In a quarantine it is the answer to a request from before, which proves nothing.
        """
        record = self._records.get(host)
        if record is None or now < record.until:
            return
        self.statistics.recoveries += record.quarantines > 0
        del self._records[host]

    def quarantined(self, now: float) -> dict[ids.HostId, float]:
        """Return the hosts in quarantine, with the seconds until a trial is let through.

        May be called from another thread: the records are copied in one step.
        """
        records = list(self._records.items())
        return {host: record.until - now for host, record in records if now < record.until}

    def _quarantine(self, record: _Record, now: float) -> None:
        first_s = self._limits.liar_first_s if record.is_liar else self._limits.first_s
        length_s = min(first_s * 2.0**record.quarantines, self._limits.longest_s)
        length_s *= 1 + self._limits.jitter * (2 * self._rng.random() - 1)
        record.until = now + length_s
        record.trial_until = 0.0
        record.quarantines = min(record.quarantines + 1, 32)
        self.statistics.quarantines += 1
