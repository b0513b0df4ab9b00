# SPDX-License-Identifier: Apache-2.0
"""Nova's checkpoint intervals that libvirt's XML lacks, as the decision service last sent them."""

import logging
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.wire import checkpoint_messages as messages

LOG = logging.getLogger(__name__)

EVERY_S: Final = 600.0
RETRY_S: Final = 120.0  # pause after a failure; a request takes up to a minute


class Intervals(NamedTuple):
    """Intervals from the service, in seconds."""

    of_host: int | None = None  # from the host's aggregates; 0: never; None: not set
    of_servers: Mapping[str, int] = {}  # of servers with a valid interval in their metadata


FetchIntervals = Callable[[Sequence[messages.Failing]], Intervals]
"""Asks the decision service, and reports failures.

Raises errors.DecisionUnreachable or errors.NotAuthenticated."""


class NovaIntervals:
    """Polls intervals (``ask`` None: there are none); not thread-safe, except for :attr:`last`."""

    def __init__(self, ask: FetchIntervals | None, clock: clocks.Clock = time) -> None:
        self._ask, self._clock = ask, clock
        self._next_s = clock.monotonic()
        self.last = Intervals()
        """The last known intervals; thread-safe."""
        self._faults = log_once.LogOnce(LOG)

    def current_intervals(self, failing: Sequence[messages.Failing] = ()) -> Intervals:
        """Return the intervals; ask if due, and report failures."""
        if self._ask is None or self._clock.monotonic() < self._next_s:
            return self.last
        try:
            self.last = self._ask(failing)
            self._faults.log_warning("")
            every_s = EVERY_S
        except errors.AcstorError as e:
            self._faults.log_warning(f"intervals of checkpoints stay as they are: {e}")
            every_s = RETRY_S
        self._next_s = self._clock.monotonic() + every_s
        return self.last


def server_interval_s(
    instance: ids.ImageId, spec_s: int | None, intervals: Intervals, default_s: int
) -> int:
    """Return a server's interval in seconds, 0: never; ``spec_s`` is of its flavor.

    >>> it = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> server_interval_s(it, None, Intervals(), 9), server_interval_s(it, None, Intervals(8), 9)
    (9, 8)
    >>> server_interval_s(it, 7, Intervals(8), 9)
    7
    >>> server_interval_s(it, 7, Intervals(8, {it: 6}), 9)
    6
    """
    intervals_s = (intervals.of_servers.get(instance), spec_s, intervals.of_host)
    return next((wanted for wanted in intervals_s if wanted is not None), default_s)
