# SPDX-License-Identifier: Apache-2.0
"""How fast a disk is read for a checkpoint, and whether it still is.

The one rule: over any time that is longer than a moment, no more than the rate.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from acstor_common import errors

_AHEAD_S: Final = 0.1
"""What was not used is saved up for this long: a pause does not end in a burst."""


class Pace:
    """Bounds one reader.

    :param rate_bytes_s: 0: as fast as it goes
    :param ended: set when nothing is to be read any more
    :param clock: monotonic
    """

    def __init__(
        self,
        rate_bytes_s: int,
        ended: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate_bytes_s, self._ended, self._clock = rate_bytes_s, ended, clock
        self._free_at_s = clock() - _AHEAD_S

    def spend(self, count_bytes: int) -> None:
        """Wait until as much may be read.

        :raises errors.Unusable: nothing is to be read any more
        """
        now_s = self._clock()
        wait_s = 0.0
        if self._rate_bytes_s:
            saved_s = max(self._free_at_s, now_s - _AHEAD_S)
            self._free_at_s = saved_s + count_bytes / self._rate_bytes_s
            wait_s = max(0.0, self._free_at_s - now_s)
        if self._ended.wait(wait_s) if wait_s else self._ended.is_set():
            raise errors.Unusable("a checkpoint", "the daemon ends")
