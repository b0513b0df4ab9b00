# SPDX-License-Identifier: Apache-2.0
"""vNavigator: predicts the zone and the time of a guest's next request (Ling 2015, section 3).

The disk is cut into zones. A request adds 1 to the density of its zone, and each prediction window
divides all densities by the decay (equations 1 to 3). A *dense* zone reaches the mean of all
densities of 1 or more (equation 4); requests are expected there, and in its next neighbour if that
is below the mean (equation 5). The mean time between a zone's requests predicts when (6, 7).

The sum of the densities decays as a whole, and zones leave it in a precomputed window: a request
costs constant time. Differences from the paper, so that a mean interval is worth waiting for:

* an interval counts from the last answer to the next request, with nothing of the zone pending;
* a mean of fewer than INTERVALS_KNOWN intervals is unknown: an indirect block and its data are two
  requests in a row. Until then a dense zone has the interval of the one before it;
* a request counts when it is answered, because its weight would decay while it waits in the queue;
* windows count only the time for which the guest was served; the caller passes such a clock.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from acstor_common.util import lru_table

SECTOR_BYTES = 512
ZONE_BYTES = 2000 * SECTOR_BYTES
DECAY = 2.0
WINDOW_S = 0.020
ZONE_LIMIT = 1024  # zones that are remembered
INTERVALS_KNOWN = 2  # intervals of a zone from which on their mean is known
_NEVER = -1


class Unit(NamedTuple):
    """A sub-region unit: one zone or two, and how soon their next request will come."""

    start: int
    stop: int
    interval_s: float

    def contains(self, offset: int) -> bool:
        """Return whether an offset lies within the unit."""
        return self.start <= offset < self.stop


@dataclasses.dataclass(slots=True)
class _Zone:
    density: float  # as of ``window``
    window: int
    leaves: int  # the first window in which the density is below 1
    last_s: float
    interval_s: float = math.inf
    intervals: int = 0

    def add_interval(self, seconds: float) -> None:
        """Equation 7."""
        total_s = self.interval_s * self.intervals if self.intervals else 0.0
        self.intervals += 1
        self.interval_s = (total_s + seconds) / self.intervals


class Navigator:
    """The prediction for one stream.

    >>> navigator = Navigator()
    >>> for number in range(30):
    ...     navigator.request_arrived(number * 45056, number * 0.001)
    ...     navigator.request_answered(number * 45056, number * 0.001)
    >>> navigator.unit_at(20 * 45056) is not None, navigator.unit_at(10**9) is None
    (True, True)
    """

    def __init__(
        self,
        zone_bytes: int = ZONE_BYTES,  # B of the paper
        decay: float = DECAY,  # lambda of the paper, above 1
        window_s: float = WINDOW_S,  # length of a prediction window
        zone_limit: int = ZONE_LIMIT,
    ) -> None:
        self.zone_bytes = zone_bytes
        self._decay = decay
        self._window_s = window_s
        self._zones = lru_table.LruTable[int, _Zone](zone_limit)
        self._leaving: dict[int, set[int]] = {}  # window: zones that leave the sum in it
        self._now_s = 0.0
        self._window = 0
        self._sum = 0.0  # of the densities of 1 or more, as of ``_window``
        self._count = 0

    def request_arrived(self, offset: int, now_s: float, was_awaited: bool = True) -> None:
        """Record a request; ``was_awaited``: nothing else of its zone is pending."""
        self.advance_time(now_s)
        zone = self._zones.get(offset // self.zone_bytes)
        if zone is not None and was_awaited:
            zone.add_interval(self._now_s - zone.last_s)

    def request_answered(self, offset: int, now_s: float) -> None:
        """Record a served request, which makes its zone denser."""
        self.advance_time(now_s)
        number = offset // self.zone_bytes
        zone = self._zones.get(number)
        if zone is None:
            zone = _Zone(0.0, self._window, _NEVER, self._now_s)
        evicted = self._zones.put(number, zone)
        self._leave(number, zone)
        zone.last_s = self._now_s
        zone.density = self._density(zone) + 1.0
        zone.window = self._window
        self._join(number, zone)
        if evicted is not None:
            self._leave(*evicted)

    def advance_time(self, now_s: float) -> None:
        """Let time pass; a time before the last one counts as the last."""
        self._now_s = max(self._now_s, now_s)
        window = int(self._now_s / self._window_s)
        if self._leaving and window > max(self._leaving):
            self._forget_sum()
        while self._window < window and self._count:
            self._window += 1
            self._sum /= self._decay
            for number in self._leaving.pop(self._window, ()):
                zone = self._zones[number]
                self._sum -= self._density(zone)
                self._count -= 1
                zone.leaves = _NEVER
        self._window = window
        if not self._count:
            self._sum = 0.0

    def _forget_sum(self) -> None:
        for numbers in self._leaving.values():
            for number in numbers:
                self._zones[number].leaves = _NEVER
        self._leaving.clear()
        self._sum, self._count = 0.0, 0

    def _density(self, zone: _Zone) -> float:
        return zone.density * self._decay ** min(0, zone.window - self._window)

    def _leave(self, number: int, zone: _Zone) -> None:
        if zone.leaves == _NEVER:
            return
        numbers = self._leaving[zone.leaves]
        numbers.discard(number)
        if not numbers:
            del self._leaving[zone.leaves]
        self._sum -= self._density(zone)
        self._count -= 1
        zone.leaves = _NEVER

    def _join(self, number: int, zone: _Zone) -> None:
        zone.leaves = self._window + 1 + int(math.log(zone.density) / math.log(self._decay))
        self._leaving.setdefault(zone.leaves, set()).add(number)
        self._sum += zone.density
        self._count += 1

    @property
    def threshold(self) -> float:
        """The mean of the densities of 1 or more (equation 4); infinite if there is none."""
        return self._sum / self._count if self._count else math.inf

    def zone_density(self, offset: int) -> float:
        """Return the present density of the zone around ``offset``."""
        zone = self._zones.get(offset // self.zone_bytes)
        return self._density(zone) if zone else 0.0

    def _is_dense(self, number: int) -> bool:
        zone = self._zones.get(number)
        # A sum that was added up in another order may differ in its last digits.
        return zone is not None and self._density(zone) >= self.threshold * (1 - 1e-9)

    def _is_known(self, number: int) -> bool:
        zone = self._zones.get(number)
        return zone is not None and zone.intervals >= INTERVALS_KNOWN

    def _is_regular(self, number: int) -> bool:
        return self._is_dense(number) and self._is_known(number)

    def unit_at(self, offset: int) -> Unit | None:
        """Return the unit that holds ``offset``, None if none does."""
        return self._unit_at(offset, self._is_dense)

    def regular_unit_at(self, offset: int) -> Unit | None:
        """Return the unit that holds ``offset`` of those whose interval is known, or None."""
        return self._unit_at(offset, self._is_regular) or self._continued_at(offset)

    def _continued_at(self, offset: int) -> Unit | None:
        """Return the unit of a dense zone with the interval of the zone before it, or None."""
        number = offset // self.zone_bytes
        if not self._is_dense(number) or not self._is_known(number - 1):
            return None
        unit = self._unit_of(number, self._is_dense)
        return unit._replace(interval_s=self._zones[number - 1].interval_s)

    def _unit_at(self, offset: int, begins: Callable[[int], bool]) -> Unit | None:
        number = offset // self.zone_bytes
        first = next((zone for zone in (number, number - 1) if begins(zone)), None)
        return None if first is None else self._unit_of(first, begins)

    def _unit_of(self, first: int, begins: Callable[[int], bool]) -> Unit:
        zones = 1 if begins(first + 1) else 2
        start = first * self.zone_bytes
        return Unit(start, start + zones * self.zone_bytes, self._zones[first].interval_s)

    def __len__(self) -> int:
        return len(self._zones)
