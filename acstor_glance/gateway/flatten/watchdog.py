# SPDX-License-Identifier: Apache-2.0
"""Whether a composition goes on, as the one who waits for it sees it.

Whatever it waits for, a client, a store or Glance, it ends when nothing has moved for
so long, or when its deadline has passed.  What works asks often, what waits decides.
"""

import http
import math
import time
from collections.abc import Callable

from acstor_glance.gateway import http_errors


class Watchdog:
    """The watch over one composition; two threads use it.

    :param longest_s: how long nothing may move
    :param clock: never goes back
    """

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.longest_s, self._clock = longest_s, clock
        self._moved_s = clock()
        self._why: http_errors.HttpError | None = None
        self._ends_s, self._deadline_s = math.inf, math.inf

    def set_deadline(self, deadline_s: float) -> None:
        """Let what works end when so much time has passed, though something moves."""
        self._ends_s, self._deadline_s = self._clock() + deadline_s, deadline_s

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has moved for too long."""
        return self._clock() - self._moved_s > self.longest_s

    @property
    def left_s(self) -> float:
        """How long it may go on without a move."""
        return max(0.0, self._moved_s + self.longest_s - self._clock())

    def note_progress(self) -> None:
        """Note that something has come or gone.

        :raises http_errors.HttpError: it has been ended
        """
        self.check()
        self._moved_s = self._clock()

    def stop_work(self, why: http_errors.HttpError) -> None:
        """Let what works end at its next move; the first reason counts."""
        self._why = self._why or why

    def check(self) -> None:
        """Go on, if it has not been ended.

        :raises http_errors.HttpError: it has
        """
        if self._clock() > self._ends_s:
            words = f"it was not done in {self._deadline_s:.0f} s"
            self.stop_work(
                http_errors.FlattenAborted(http.HTTPStatus.GATEWAY_TIMEOUT, words, "base")
            )
        if self._why is not None:
            raise self._why
