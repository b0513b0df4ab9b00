# SPDX-License-Identifier: Apache-2.0
"""What Nova says of intervals that libvirt does not: the decision service tells it now and then.

While the service does not answer, what it said last goes on counting.
"""

import logging
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.wire import checkpoint_messages as messages

LOG = logging.getLogger(__name__)

EVERY_S: Final = 600.0
AGAIN_S: Final = 120.0
"""After the decision service has not answered; a question waits for up to a minute."""


class Answer(NamedTuple):
    """What the service said.

    :param of_host: seconds, by the aggregates that the host is in; 0: never; None: they say nothing
    :param of_servers: seconds, of servers whose metadata says something that counts
    """

    of_host: int | None = None
    of_servers: Mapping[str, int] = {}


AskIntervals = Callable[[Sequence[messages.Failing]], Answer]
"""Asks the decision service, which notes what fails.

Raises errors.DecisionUnreachable, or errors.NotAuthenticated, if it does not say it."""


class NovaIntervals:
    """What is known of intervals; for one thread, but :attr:`last`.

    :param ask: None: nobody is asked, and nothing is known
    :param clock: monotonic
    :param failing: returns what the service is told
    """

    def __init__(
        self,
        ask: AskIntervals | None,
        clock: Callable[[], float] = time.monotonic,
        failing: Callable[[], Sequence[messages.Failing]] = tuple,
    ) -> None:
        self._ask, self._clock, self._failing = ask, clock, failing
        self._next_s = clock()
        self.last = Answer()
        """What counted when it was asked for last; may be read by any thread."""
        self._faults = log_once.LogOnce(LOG)

    def current_intervals(self) -> Answer:
        """Return what counts now; ask, if it is time."""
        if self._ask is None or self._clock() < self._next_s:
            return self.last
        try:
            self.last = self._ask(self._failing())
            self._faults.log_warning("")
            every_s = EVERY_S
        except errors.AcstorError as e:
            self._faults.log_warning(f"intervals of checkpoints stay as they are: {e}")
            every_s = AGAIN_S
        self._next_s = self._clock() + every_s
        return self.last


def server_interval_s(
    instance: ids.ImageId, spec_s: int | None, told: Answer, default_s: int
) -> int:
    """Return how often a server's checkpoints are taken, in seconds; 0: never.

    >>> it = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> server_interval_s(it, None, Answer(), 9), server_interval_s(it, None, Answer(8), 9)
    (9, 8)
    >>> server_interval_s(it, 7, Answer(8), 9), server_interval_s(it, 7, Answer(8, {it: 6}), 9)
    (7, 6)

    :param spec_s: what its flavor says
    :param default_s: of this host
    """
    said = (told.of_servers.get(instance), spec_s, told.of_host)
    return next((wanted for wanted in said if wanted is not None), default_s)
