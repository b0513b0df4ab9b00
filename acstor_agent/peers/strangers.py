# SPDX-License-Identifier: Apache-2.0
"""Those who have connected and not shown yet who they are: few, for a moment.

The one rule: strangers never keep out others.  When there are too many, one goes: the
oldest of the address that has most of them, so a crowd pushes itself out.
"""

import collections
import contextlib
import logging
from collections.abc import Iterator

import trio

from acstor_agent.core import log_limit

LOG = logging.getLogger(__name__)

SAY_AGAIN_S = 10.0
LINES = 32
"""Lines in the log in SAY_AGAIN_S: addresses and reasons are as many as somebody likes."""


class Strangers:
    """Connections before their Hello; ``dropped`` counts those that got no further.

    :param limit: how many there are at a time
    :param time_s: how long each has to say who it is
    """

    def __init__(self, limit: int, time_s: float) -> None:
        self.dropped = 0
        self._limit, self._time_s = limit, time_s
        self._waiting: dict[trio.CancelScope, str] = {}  # the oldest first
        self._said = log_limit.LogLimit(SAY_AGAIN_S)
        self._lines, self._lines_since_s, self._unsaid = 0, -SAY_AGAIN_S, 0

    def __len__(self) -> int:
        return len(self._waiting)

    @contextlib.contextmanager
    def one_from(self, ip: str) -> Iterator[None]:
        """Be a stranger until the block ends.

        :raises trio.TooSlowError: the time is over, or others took the place
        """
        while len(self._waiting) >= self._limit:
            self._push_one_out()
        is_dropped = True
        try:
            with trio.fail_after(self._time_s) as scope:
                self._waiting[scope] = ip
                try:
                    yield
                finally:
                    self._waiting.pop(scope, None)
            is_dropped = False
        finally:
            self.dropped += is_dropped

    def _push_one_out(self) -> None:
        crowd, _ = collections.Counter(self._waiting.values()).most_common(1)[0]
        oldest = next(scope for scope, ip in self._waiting.items() if ip == crowd)
        del self._waiting[oldest]
        oldest.cancel()

    def say(self, ip: str, peer: str, why: str) -> None:
        """Tell in the log who was dropped, once in a while for each address and reason."""
        now = trio.current_time()
        untold = self._said.left_out((ip, why), now)
        if untold is None:
            return
        if not self._may_say(now):
            self._unsaid += 1
            return
        more = f" (and {untold} more like it)" if untold else ""
        LOG.warning("Connection from %s dropped: %s%s", peer, why, more)

    def _may_say(self, now: float) -> bool:
        """Say whether the log may have one more line now, which is counted."""
        if now - self._lines_since_s >= SAY_AGAIN_S:
            if self._unsaid:
                LOG.warning("%d more connections were dropped for other reasons", self._unsaid)
            self._lines, self._lines_since_s, self._unsaid = 0, now, 0
        self._lines += 1
        return self._lines <= LINES
